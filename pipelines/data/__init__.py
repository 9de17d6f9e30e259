"""Reads text files and makes batches of sentence-order and masked-LM examples."""
