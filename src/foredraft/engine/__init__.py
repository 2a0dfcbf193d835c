"""The decoding loop and what belongs to one request."""
