"""Modules that compute again in backward what they have computed in forward."""
