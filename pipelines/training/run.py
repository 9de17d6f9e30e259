"""A training run: its devices, its directory, its settings and its initial weights."""

import contextlib
import dataclasses
import os
from typing import Any, NamedTuple

import tensorflow as tf

from albert_tf.checkpoints import hub, model_directory, saved_model
from albert_tf.checkpoints.conversion import published_model
from albert_tf.checkpoints.opening import ALBERT_TF, EXPORT, open_model
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
      checkpoint: model directory, checkpoint prefix or SavedModel directory. None for random
        weights.
      trained_length: sequence length at which the checkpoint was trained. If it was not recorded,
        the length of the position table. None for random weights.
    """

    config: AlbertConfig
    tokenizer: AlbertTokenizer
    checkpoint: str | None = None
    trained_length: int | None = None


def initial_path(init_checkpoint: str, run_directory: str, strategy: str) -> str:
    """Returns the path of the initial weights. A published model is converted first.

    `init_checkpoint` is a path or the name of a published model (see hub.local_path). The converted
    model is written to RUN_DIRECTORY/.initial_model. Published models are refused with strategies
    for several hosts, because each host would convert the model.
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
    """Reads a model directory, a checkpoint, or the newest version of an export."""
    opened = open_model(init_checkpoint, [ALBERT_TF, EXPORT], parts=True)
    if opened.format == EXPORT:
        config, tokenizer = saved_model.read_config_and_tokenizer(opened.path)
        return InitialModel(config, tokenizer, opened.path, config.max_position_embeddings)
    # A run starts from the newest checkpoint, even if the model is fine-tuned and has a better one.
    model_dir, newest = model_directory.find_checkpoint(opened.path)
    config = model_directory.read_config(model_dir, newest)
    tokenizer = model_directory.load_tokenizer(model_dir, config)
    length = model_directory.trained_length(model_dir, config)
    return InitialModel(config, tokenizer, newest, length)


def hash_of_weights(checkpoint: str) -> str:
    """Returns a hash of the weights of a checkpoint or SavedModel, independent of its path."""
    if saved_model.is_saved_model(checkpoint):
        checkpoint = saved_model.variables_prefix(checkpoint)
    # The index file contains a checksum of each variable.
    return files.sha256(checkpoint + ".index")[:16]


def origin_of(run_directory: str, checkpoint: str | None) -> dict[str, str]:
    """Returns {"origin": ...} if a run started from a published model's weights, else {}."""
    # A resumed run reads its own directory, because `checkpoint` may have been deleted.
    if tf.io.gfile.exists(os.path.join(run_directory, model_directory.RUN_FILE)):
        directory = run_directory
    elif not checkpoint or saved_model.is_saved_model(checkpoint):
        return {}
    else:
        directory, _ = model_directory.find_checkpoint(checkpoint)
    origin = model_directory.read_origin(directory)
    return {"origin": origin} if origin else {}
