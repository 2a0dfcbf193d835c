"""*AdaEAGLE*: draft lengths, the oracle among them, and the adaptive policy against fixed structures."""
