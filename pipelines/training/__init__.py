"""Parts that all training jobs share: strategy, loop, checkpoints, progress."""
