"""Recipes that need no speech."""
