"""The OpenAI-compatible server. Needs the `serve` extra; nothing else in the package imports it."""
