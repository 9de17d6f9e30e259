"""SavedModel export for TF Serving: `python -m export.export_saved_model --help`."""

import os

import albert_tf  # noqa: F401  Selects Keras 2; must be imported before TensorFlow.

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # hides most of TensorFlow's log messages
