"""Reads and writes weights: our model directories, Google's TF1 checkpoints, Hugging Face files."""
