"""Code shared by all training jobs: distribution strategy, training loop, checkpoints, logs."""
