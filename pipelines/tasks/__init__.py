"""What a model is fine-tuned to do: reading a task's files, examples to pieces, scores."""
