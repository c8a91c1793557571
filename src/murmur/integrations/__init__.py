"""Strategies inside training frameworks, through each framework's own extension point."""
