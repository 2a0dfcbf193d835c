"""Lossless speculative decoding with drafts whose shape follows the text."""

__version__ = "0.1.0"
