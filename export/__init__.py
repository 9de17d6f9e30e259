"""SavedModel export for TF Serving: `python -m export.export_saved_model --help`."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # as pipelines does
