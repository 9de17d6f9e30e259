"""SavedModel export for TF Serving: `python -m export.export_saved_model --help`."""

from albert_tf import tensorflow_messages

tensorflow_messages.hide()
