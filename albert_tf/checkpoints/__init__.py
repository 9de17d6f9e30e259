"""Reads and writes models in the formats of this project, Google's TF1 code and Hugging Face."""
