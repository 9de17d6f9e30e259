"""The tasks of fine-tuning: reading a task's files, tokenizing examples, scoring."""
