"""The programs of this project. For help, run `python -m pipelines.NAME --help`."""

import os

import albert_tf  # noqa: F401  Selects Keras 2, which must precede any import of TensorFlow.

# Hide TensorFlow's start-up messages. Real failures raise exceptions.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
