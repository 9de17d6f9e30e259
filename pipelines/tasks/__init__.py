"""The tasks of fine-tuning: they read files, tokenize examples and score answers."""
