"""The jobs: each file here is a program, `python -m pipelines.NAME --help`."""

import os

# TensorFlow's start-up chatter would be the first thing a user meets; real failures raise.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
