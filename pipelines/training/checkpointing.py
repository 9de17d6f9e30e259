"""Saves, restores and removes the checkpoints of a run.

A single machine writes remote checkpoints to local temporary space and uploads them, the index
last. The machines of a TPU pod write directly to the remote directory.
"""

from __future__ import annotations

import os
import tempfile

import tensorflow as tf
from absl import logging

from albert_tf.checkpoints import model_directory
from albert_tf.storage import files
from albert_tf.storage.errors import UserError


class Checkpointer:
    """Saves and restores a model and its optimizer (which counts the steps).

    `model_dir` holds the newest checkpoints. Its BEST_DIR holds the best weights, without moments
    and step count. `writes` is true on one host of a run only.
    """

    def __init__(
        self,
        model_dir: str,
        model: tf.keras.Model,
        optimizer: tf.keras.optimizers.Optimizer,
        writes: bool = True,
    ):
        self._checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
        self._directory = model_directory.checkpoints_directory(model_dir)
        self._best = tf.train.Checkpoint(model=model)
        self._best_directory = os.path.join(model_dir, model_directory.BEST_DIR)
        self._optimizer = optimizer
        self._writes = writes

    def restore(self) -> int:
        """Restores the newest readable checkpoint; returns its step, or 0 if there is none.

        Raises:
          UserError: if there are (or were) checkpoints and none is readable.
        """
        if self._writes:
            _remove_unfinished(self._directory)
            _remove_unfinished(self._best_directory)
        found = model_directory.list_checkpoints(self._directory, unfinished=True)
        for path in reversed(found):
            try:
                self._checkpoint.read(path).assert_existing_objects_matched()
            except model_directory.UNREADABLE as error:
                model_directory.reraise_store_error(error)
                reason = str(error).strip().splitlines()[0]
                logging.warning("checkpoint %s is damaged, trying the one before: %s", path, reason)
                continue
            return int(self._optimizer.iterations.numpy())
        # The list file exists once a checkpoint was finished. Without it, one unreadable checkpoint
        # is the rest of a killed first write: the run starts at step 0.
        finished = model_directory.list_checkpoints(self._directory)
        if finished or len(found) > 1 or tf.io.gfile.exists(_list_file(self._directory)):
            raise UserError(
                f"none of the {len(found)} checkpoints in {self._directory!r} can be read: restore "
                "one from a backup, or start again in another directory"
            )
        return 0

    def save(self, step: int) -> None:
        """Writes a checkpoint; keeps the newest three."""
        if self._writes:
            _write(self._checkpoint, self._directory, step, max_to_keep=3)

    def save_best(self, step: int) -> None:
        """Saves the weights of this step as the best ones."""
        if self._writes:
            _write(self._best, self._best_directory, step, max_to_keep=1)


def _write(checkpoint: tf.train.Checkpoint, directory: str, step: int, max_to_keep: int) -> None:
    """Writes a checkpoint, then removes checkpoints beyond `max_to_keep`.

    tf.train.CheckpointManager would not remove checkpoints that are missing from its list.
    """
    # TensorFlow writes the data, then renames the index into place: the index completes it.
    name = f"ckpt-{step}"
    path = os.path.join(directory, name)
    if _is_uploaded(directory):
        with tempfile.TemporaryDirectory() as space:
            checkpoint.write(os.path.join(space, name))
            files.upload_directory(space, directory, last=[f"{name}.index"])
    else:
        checkpoint.write(path)
    found = model_directory.list_checkpoints(directory, unfinished=True)
    # Remove later checkpoints, too: the run resumed before them because they were unreadable.
    kept = found[: found.index(path) + 1][-max_to_keep:]
    files.write_atomically(_list_file(directory), f'model_checkpoint_path: "{name}"\n')
    for other in set(found) - set(kept):
        # Remove the index first: an incomplete checkpoint must not look complete.
        for file in sorted(tf.io.gfile.glob(other + ".*"), reverse=True):
            files.remove(file)


def _is_uploaded(directory: str) -> bool:
    """Returns whether checkpoints are written locally and uploaded."""
    # Each worker of a TPU pod writes its own variables, directly to the final place.
    devices = tf.config.list_logical_devices()
    machines = {device.name.partition("/device:")[0] for device in devices}
    return files.is_remote(directory) and len(machines) == 1


def _remove_unfinished(directory: str) -> None:
    """Removes the temporary files of a killed write; a killed upload leaves none."""
    if _is_uploaded(directory):
        return
    for pattern in ("ckpt-*_temp", "ckpt-*.index.tempstate*"):
        for path in tf.io.gfile.glob(os.path.join(directory, pattern)):
            (tf.io.gfile.rmtree if tf.io.gfile.isdir(path) else tf.io.gfile.remove)(path)


def _list_file(directory: str) -> str:
    """Returns the file in which tf.train.latest_checkpoint finds the newest checkpoint's name."""
    return os.path.join(directory, "checkpoint")
