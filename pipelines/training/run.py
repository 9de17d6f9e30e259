"""A training run: its devices, its directory, its settings and its initial weights."""

import contextlib
import dataclasses
import os
from typing import Any, NamedTuple

import tensorflow as tf

from albert_tf.checkpoints import hub, model_directory
from albert_tf.checkpoints.conversion import published_model
from albert_tf.checkpoints.opening import ALBERT_TF, OpenModel, open_model
from albert_tf.config import AlbertConfig
from albert_tf.jobs import job_directory
from albert_tf.storage import files
from albert_tf.storage.errors import UserError
from albert_tf.text.tokenization import AlbertTokenizer
from .strategy import is_chief


@dataclasses.dataclass(frozen=True)
class Run:
    """The devices, directory and shared settings of a run.

    Attributes:
      strategy: distribution strategy. Model and optimizer are created in its scope.
      model_dir: directory of config, vocabulary, checkpoints and logs.
      settings: JSON-serialisable settings that must be equal on all hosts.
    """

    strategy: tf.distribute.Strategy
    model_dir: str
    settings: dict[str, Any]

    @property
    def is_chief(self) -> bool:
        """Whether this host writes the files of the run."""
        return is_chief(self.strategy)

    def hold(self, identity: dict[str, Any]) -> contextlib.AbstractContextManager[None]:
        """On the chief, locks the directory and records or checks the identity of the run."""
        if not self.is_chief:
            return contextlib.nullcontext()
        return job_directory.hold(self.model_dir, identity)

    def save_model_files(self, config: AlbertConfig, tokenizer: AlbertTokenizer) -> None:
        """On the chief, writes config and vocabulary to the run's directory."""
        if self.is_chief:
            config.write(os.path.join(self.model_dir, model_directory.CONFIG_FILE))
            tokenizer.save(self.model_dir)


def has_checkpoint(model_dir: str) -> bool:
    """Returns True if a run has checkpoints. If so, it does not read initial weights."""
    checkpoints = model_directory.checkpoints_directory(model_dir)
    return bool(model_directory.list_checkpoints(checkpoints))


class InitialModel(NamedTuple):
    """Config, tokenizer and initial weights of a run.

    Attributes:
      weights: the model with the initial weights, whose `checkpoint` the run starts from. None for
        random weights, and for runs of pre-training that have checkpoints.
      trained_length: sequence length at which the weights were trained. If it is not recorded, the
        length of the position table. Pre-training does not use it.
    """

    config: AlbertConfig
    tokenizer: AlbertTokenizer
    weights: OpenModel | None = None
    trained_length: int = 0


def initial_path(init_checkpoint: str, run_directory: str, strategy: str) -> str:
    """Returns the path of the initial weights. A published model is converted first.

    `init_checkpoint` is a path or the name of a published model (see hub.local_path), which is
    converted to RUN_DIRECTORY/.initial_model. With strategies for several hosts it is refused,
    because each host would convert the model.
    """
    if not hub.is_name(init_checkpoint):
        return init_checkpoint
    if strategy in ("multi_worker", "tpu"):
        raise UserError(
            f"--init_checkpoint={init_checkpoint} with --strategy={strategy}: convert it first, by "
            f"pipelines.convert_checkpoint --input={init_checkpoint}, and give its output directory"
        )
    return published_model(init_checkpoint, os.path.join(run_directory, ".initial_model"))


def read_initial_model(init_checkpoint: str) -> InitialModel:
    """Reads a model directory or one of its checkpoints."""
    opened = open_model(init_checkpoint, [ALBERT_TF], parts=True)
    if opened.is_fine_tuned:
        # A run starts from the newest checkpoint, even if there is a better one.
        _, newest = model_directory.find_checkpoint(opened.path)
        opened = dataclasses.replace(opened, checkpoint=newest)
    tokenizer = model_directory.load_tokenizer(opened.directory, opened.config)
    length = model_directory.trained_length(opened.directory, opened.config)
    return InitialModel(opened.config, tokenizer, opened, length)


def hash_of_weights(opened: OpenModel) -> str:
    """Returns a hash of the weights of a checkpoint, independent of its path."""
    # The index file contains a checksum of each variable.
    return files.sha256(opened.checkpoint + ".index")[:16]


def origin_of(run_directory: str, opened: OpenModel | None) -> dict[str, str]:
    """Returns {"origin": ...} if a run started from a published model's weights, else {}."""
    origin = model_directory.read_origin(run_directory)
    if not origin and opened:
        origin = model_directory.read_origin(opened.directory)
    return {"origin": origin} if origin else {}
