"""Benchmarks that can be believed: every method and every peer on the same prompts, in one run."""
