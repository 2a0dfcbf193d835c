"""What a lossy method does to answers: the law of their tokens, their likelihood, their correctness."""
