"""Tokenization of text, and tags of words, in Python and in the TensorFlow graph."""
