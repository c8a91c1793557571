"""Recipes: short experiment files, one per corpus, and the demo."""
