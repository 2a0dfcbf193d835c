"""Seeing how an answer is made, round by round, without changing it."""
