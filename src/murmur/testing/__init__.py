"""Conformance checks for worlds and strategies of a user."""
