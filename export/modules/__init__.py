"""One module of a SavedModel for each kind of model."""
