"""Connectionist temporal classification: units, criterion, graphs, words."""
