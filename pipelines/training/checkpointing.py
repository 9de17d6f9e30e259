"""A run and its model directory: whose it is, where it stands, how it goes on."""

from __future__ import annotations

import json
import os

import tensorflow as tf
from absl import logging

from albert_tf import files
from albert_tf.checkpoints import model_directory

RUN_FILE = "run.json"


def claim(model_dir: str, settings: dict) -> None:
    """Makes `model_dir` the directory of the run with these settings, or finds that it is.

    Args:
      settings: everything that changes the run's result, JSON-serialisable.

    Raises:
      ValueError: if the directory holds another run or something else.
    """
    path = os.path.join(model_dir, RUN_FILE)
    settings = json.loads(json.dumps(settings))
    if tf.io.gfile.exists(path):
        theirs = files.read_json(path)
        differing = [
            f"{key} {theirs.get(key)!r} there, {settings.get(key)!r} here"
            for key in sorted({*theirs, *settings})
            if theirs.get(key) != settings.get(key)
        ]
        if differing:
            raise ValueError(
                f"{model_dir!r} holds another run ({'; '.join(differing)}): choose another "
                "directory, or the same settings to go on with that run"
            )
        return
    if tf.io.gfile.isdir(model_dir) and any(
        not name.startswith(".") for name in tf.io.gfile.listdir(model_dir)
    ):
        raise ValueError(
            f"{model_dir!r} holds files but no run of this job ({RUN_FILE}): choose an empty "
            "or new directory"
        )
    files.write_atomically(path, json.dumps(settings, indent=2) + "\n")


class Checkpointer:
    """Saves and restores a model with its optimizer; the optimizer counts the steps.

    Args:
      model_dir: holds the newest checkpoints, and in BEST_DIR the best weights.
      model: its weights lie under the key "model".
      optimizer: its moments and step count lie there too, but not in BEST_DIR.
      max_to_keep: how many of the newest checkpoints stay.
      writes: false on all hosts of a run but one.
    """

    def __init__(
        self,
        model_dir: str,
        model: tf.keras.Model,
        optimizer: tf.keras.optimizers.Optimizer,
        max_to_keep: int = 3,
        writes: bool = True,
    ):
        self._checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
        self._manager = tf.train.CheckpointManager(
            self._checkpoint,
            model_directory.checkpoints_directory(model_dir),
            max_to_keep=max_to_keep,
            checkpoint_name="ckpt",
        )
        self._best = tf.train.CheckpointManager(
            tf.train.Checkpoint(model=model),
            os.path.join(model_dir, model_directory.BEST_DIR),
            max_to_keep=1,
            checkpoint_name="ckpt",
        )
        self._optimizer = optimizer
        self._writes = writes

    def restore(self) -> int:
        """Restores the newest checkpoint that can be read; returns the step it was saved at.

        A damaged one is passed over with a warning. Without any checkpoint the run stands at 0.
        """
        for path in reversed(self._manager.checkpoints):
            try:
                self._checkpoint.restore(path).assert_existing_objects_matched()
            except model_directory.UNREADABLE as error:
                logging.warning(
                    "checkpoint %s is damaged, trying the one before: %s",
                    path,
                    str(error).strip().splitlines()[0],
                )
                continue
            return int(self._optimizer.iterations.numpy())
        if self._manager.checkpoints:
            raise ValueError(
                f"none of the {len(self._manager.checkpoints)} checkpoints in "
                f"{self._manager.directory!r} can be read: restore one from a backup, or start "
                "again in another directory"
            )
        return 0

    def save(self, step: int) -> None:
        """Writes a checkpoint."""
        if self._writes:
            self._manager.save(checkpoint_number=step)

    def save_best(self, step: int) -> None:
        """Keeps the weights of this step as the best ones."""
        if self._writes:
            self._best.save(checkpoint_number=step)
