"""Training, evaluating and predicting with any task."""
