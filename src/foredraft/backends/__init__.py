"""Models that score draft trees. `table` is exact and tiny; `hf` is any Hugging Face causal LM."""
