"""The tasks of fine-tuning. They read files, tokenize examples and score answers."""
