"""Tokenization, packing and word tags, in Python and in the TensorFlow graph."""
