"""The jobs: each file here is a program, `python -m pipelines.NAME --help`."""

import os

# What TensorFlow logs at its start would be the first thing a user meets; real failures raise.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
