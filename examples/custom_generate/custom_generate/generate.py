"""Speculative decoding by Foredraft, for `model.generate(custom_generate=...)`."""

from foredraft.hf import generate

__all__ = ["generate"]
