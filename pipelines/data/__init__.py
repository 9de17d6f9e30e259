"""Reads text files and creates batches of masked-LM and sentence-order examples."""
