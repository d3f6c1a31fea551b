"""Passes as objects, and what runs several."""
