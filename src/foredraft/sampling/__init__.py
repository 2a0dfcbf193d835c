"""Processed laws and the one source of randomness. Nothing here knows a model."""
