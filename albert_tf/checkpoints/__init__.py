"""Reads and writes models: our own directories, Google's TF1 checkpoints, Hugging Face's files."""
