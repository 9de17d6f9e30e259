"""The jobs: each file here is a program, `python -m pipelines.NAME --help`."""

from albert_tf import tensorflow_messages

tensorflow_messages.hide()
