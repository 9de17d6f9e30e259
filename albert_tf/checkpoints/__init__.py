"""Weights in and out: our own model directories, Google's TF1 checkpoints, Hugging Face's files."""
