"""What decides the shape of a draft."""
