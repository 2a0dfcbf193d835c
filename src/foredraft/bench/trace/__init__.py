"""How an answer was made, round by round, as one page."""
