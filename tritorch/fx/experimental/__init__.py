"""Passes that make models faster."""
