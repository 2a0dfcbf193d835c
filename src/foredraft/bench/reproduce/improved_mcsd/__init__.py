"""*Improving Multi-candidate Speculative Decoding*: its line-up, its figures, and equal budgets."""
