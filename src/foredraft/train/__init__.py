"""Drafters that learn from their target: data, losses, loops."""
