"""What every training job shares: strategy, loop, checkpoints, progress."""
