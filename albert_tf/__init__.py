"""ALBERT (Lan et al., 2020) on TensorFlow 2: the model, its tokenizer and its optimizer."""

__version__ = "0.2.0"
