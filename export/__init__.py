"""SavedModel export for TF Serving: `python -m export.export_saved_model --help`."""

import os

# TensorFlow's start-up chatter would be the first thing a user meets; real failures raise.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
