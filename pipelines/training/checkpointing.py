"""Saves, restores and deletes the checkpoints of a run.

On a single machine, checkpoints of a remote directory are written to a local temporary directory
and then uploaded, the index file last. The machines of a TPU pod write them directly.
"""

import os
import tempfile

import tensorflow as tf
from absl import logging

from albert_tf.checkpoints import model_directory
from albert_tf.storage import files, unreadable
from albert_tf.storage.errors import UserError


class Checkpointer:
    """Saves and restores a model and its optimizer, including the step count.

    The best weights are saved without optimizer state. `writes` must be True on exactly one host of
    a run.
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
        """Restores the newest readable checkpoint. Returns its step, or 0 if none exists.

        Raises:
          UserError: if checkpoints exist (or existed), but none is readable.
        """
        if self._writes:
            _remove_unfinished(self._directory)
            _remove_unfinished(self._best_directory)
        found = model_directory.list_checkpoints(self._directory, unfinished=True)
        for path in reversed(found):
            try:
                self._checkpoint.read(path).assert_existing_objects_matched()
            except unreadable.UNREADABLE as error:
                unreadable.reraise_if_intact(error)
                reason = str(error).strip().splitlines()[0]
                logging.warning("checkpoint %s is damaged, trying the one before: %s", path, reason)
                continue
            return int(self._optimizer.iterations.numpy())
        # The list file is written after the first checkpoint. Without it, a single unreadable
        # checkpoint was left by a killed first write.
        finished = model_directory.list_checkpoints(self._directory)
        if finished or len(found) > 1 or tf.io.gfile.exists(_list_file(self._directory)):
            raise UserError(
                f"none of the {len(found)} checkpoints in {self._directory!r} can be read: restore "
                "one from a backup, or start again in another directory"
            )
        return 0

    def save(self, step: int) -> None:
        """Saves a checkpoint and deletes all but the newest three."""
        if self._writes:
            _write(self._checkpoint, self._directory, step, max_to_keep=3)

    def save_best(self, step: int) -> None:
        """Saves the current weights as the best weights so far."""
        if self._writes:
            _write(self._best, self._best_directory, step, max_to_keep=1)


def _write(checkpoint: tf.train.Checkpoint, directory: str, step: int, max_to_keep: int) -> None:
    """Writes a checkpoint, then deletes old checkpoints beyond `max_to_keep`.

    tf.train.CheckpointManager never deletes checkpoints that are missing from its list.
    """
    name = f"ckpt-{step}"
    path = os.path.join(directory, name)
    if _is_uploaded(directory):
        with tempfile.TemporaryDirectory() as space:
            checkpoint.write(os.path.join(space, name))
            files.upload_directory(space, directory, last=[f"{name}.index"])
    else:
        checkpoint.write(path)
    found = model_directory.list_checkpoints(directory, unfinished=True)
    # Also delete checkpoints of later steps. They were unreadable, so the run did not use them.
    kept = found[: found.index(path) + 1][-max_to_keep:]
    files.write_atomically(_list_file(directory), f'model_checkpoint_path: "{name}"\n')
    for other in set(found) - set(kept):
        # Delete the index first, so that a partly deleted checkpoint does not look complete.
        for file in reversed(files.find(other, ".*")):
            files.remove(file)


def _is_uploaded(directory: str) -> bool:
    """Returns True if checkpoints are written locally and then uploaded."""
    # Each worker of a TPU pod writes its own variables directly to the final directory.
    devices = tf.config.list_logical_devices()
    machines = {device.name.partition("/device:")[0] for device in devices}
    return files.is_remote(directory) and len(machines) == 1


def _remove_unfinished(directory: str) -> None:
    """Deletes the temporary files of a killed write. A killed upload leaves no such files."""
    if _is_uploaded(directory):
        return
    for pattern in ("ckpt-*_temp", "ckpt-*.index.tempstate*"):
        for path in files.find(os.path.join(directory, ""), pattern):
            (tf.io.gfile.rmtree if tf.io.gfile.isdir(path) else tf.io.gfile.remove)(path)


def _list_file(directory: str) -> str:
    """Returns the path of the file that tf.train.latest_checkpoint reads."""
    return os.path.join(directory, "checkpoint")
