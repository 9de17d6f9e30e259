"""Reads and writes model directories, the output of training and input of all other programs.

albert_config.json      config of the encoder
spiece.model            vocabulary
tokenizer_config.json   whether text is lower-cased
checkpoints/            tf.train checkpoints; weights under the key "model"
best/                   checkpoint with the best evaluation result, if the run evaluates
run.json                settings of the run that wrote the directory
origin.json             for converted models: name and version of the published model, and the
                        variables that it did not contain; trained length, if it is recorded
task.json               for fine-tuned models: kind, labels, lengths
"""

import os
import re

import tensorflow as tf

from albert_tf.config import AlbertConfig
from albert_tf.models import AlbertForPreTraining
from albert_tf.storage import files
from albert_tf.storage.errors import UserError
from albert_tf.storage.unreadable import refuse_unreadable
from albert_tf.text.huggingface_files import TOKENIZER_CONFIG_FILE
from albert_tf.text.tokenization import AlbertTokenizer

CONFIG_FILE = "albert_config.json"
CHECKPOINTS_DIR, BEST_DIR = "checkpoints", "best"
RUN_FILE = "run.json"
ORIGIN_FILE = "origin.json"
TASK_FILE = "task.json"


def checkpoints_directory(model_dir: str) -> str:
    """Returns the path of the checkpoints in a model directory."""
    return os.path.join(model_dir, CHECKPOINTS_DIR)


def list_checkpoints(directory: str, unfinished: bool = False) -> list[str]:
    """Returns the prefixes of the checkpoints in a directory, sorted by step.

    The files are listed, because TensorFlow's file `checkpoint` may be missing or outdated. The
    .index file of a checkpoint is written last: with `unfinished`, checkpoints without it are
    included.
    """
    ends = r"index|data-\d+-of-\d+" if unfinished else "index"
    matches = [re.fullmatch(rf"ckpt-(\d+)\.(?:{ends})", name) for name in files.names_in(directory)]
    numbers = {int(match[1]) for match in matches if match}
    return [os.path.join(directory, f"ckpt-{number}") for number in sorted(numbers)]


def locate_checkpoint(path: str) -> tuple[str, str] | None:
    """Returns a model directory and the prefix of one of its checkpoints, or None.

    `path` may be a model directory (newest checkpoint), MODEL_DIR/best, or a checkpoint's prefix.
    """
    path = path.rstrip("/")
    parent = os.path.dirname(files.absolute(path))
    if tf.io.gfile.exists(path + ".index"):
        model_dir, checkpoint = os.path.dirname(parent), path
    elif checkpoints := list_checkpoints(checkpoints_directory(path)):
        model_dir, checkpoint = path, checkpoints[-1]
    elif checkpoints := list_checkpoints(path):
        model_dir, checkpoint = parent, checkpoints[-1]
    else:
        return None
    files.check_directory_name(path)
    files.check_finished(model_dir)
    return model_dir, checkpoint


def find_checkpoint(path: str) -> tuple[str, str]:
    """Same as locate_checkpoint. Raises a UserError if there is no checkpoint."""
    found = locate_checkpoint(path)
    if not found:
        raise UserError(f"{path!r} holds no finished checkpoint: has its training begun?")
    return found


def load_tokenizer(model_dir: str, config: AlbertConfig) -> AlbertTokenizer:
    """Loads the tokenizer of a model; raises a UserError if its size is not the config's."""
    tokenizer = AlbertTokenizer.load(model_dir)
    rows, pieces = config.vocab_size, tokenizer.vocab_size
    if rows != pieces:
        raise UserError(
            f"{model_dir!r}: the vocabulary has {pieces} pieces, the config has vocab_size {rows}: "
            "they belong to different models"
        )
    return tokenizer


def trained_length(model_dir: str, config: AlbertConfig) -> int:
    """Returns the maximum sequence length that a model was trained with, in pieces.

    It is recorded by fine-tuning, pre-training, conversion or Hugging Face. Default: the number of
    position embeddings.
    """
    keys = dict.fromkeys((TASK_FILE, RUN_FILE, ORIGIN_FILE), "max_seq_length")
    for name, key in {**keys, TOKENIZER_CONFIG_FILE: "model_max_length"}.items():
        length = read_if_exists(model_dir, name).get(key)
        if isinstance(length, int):
            return min(length, config.max_position_embeddings)
    return config.max_position_embeddings


def read_origin(model_dir: str) -> str | None:
    """Returns the name of the published model that a model was converted from, or None."""
    for name in (ORIGIN_FILE, RUN_FILE):
        if origin := read_if_exists(model_dir, name).get("origin"):
            return origin
    return None


def recorded_settings(directory: str) -> dict:
    """Returns the content of run.json, or {} if the file does not exist."""
    return read_if_exists(directory, RUN_FILE)


def read_if_exists(directory: str, name: str) -> dict:
    """Reads a JSON file in a directory; returns {} if the file does not exist."""
    return files.read_json_if_exists(os.path.join(directory, name))


def restore_weights(model: tf.keras.Model, checkpoint: str) -> None:
    """Restores all existing variables of a model, which must all be in the checkpoint."""
    _read(tf.train.Checkpoint(model=model), checkpoint)


def restore_to_each_layer(model: AlbertForPreTraining, checkpoint: str) -> None:
    """Gives each layer of a model the weights of a checkpoint whose layers share all weights.

    Source: Yang et al. 2021, "Speeding up deep model training by sharing weights and then
    unsharing".
    """
    encoder = model.encoder
    parts = {"embeddings": encoder.embeddings, "pooler": encoder.pooler}
    heads = {"masked_lm": model.masked_lm, "sentence_order": model.sentence_order}
    for name, block in encoder.blocks.items():
        # A layer has inner_group_num blocks. Both indices of a block give its place in the layer.
        inner = int(name.split("_")[0]) % model.config.inner_group_num
        source = tf.train.Checkpoint(blocks={f"{inner}_{inner}": block}, **parts)
        _read(tf.train.Checkpoint(model=tf.train.Checkpoint(encoder=source, **heads)), checkpoint)


def restore_encoder(encoder: tf.keras.layers.Layer, checkpoint: str) -> None:
    """Restores an AlbertEncoder from the checkpoint of any model that contains an encoder."""
    _read(tf.train.Checkpoint(model=tf.train.Checkpoint(encoder=encoder)), checkpoint)


def _read(target: tf.train.Checkpoint, checkpoint: str) -> None:
    with refuse_unreadable(f"{checkpoint!r} does not hold this model's weights"):
        # expect_partial suppresses TensorFlow's warnings about unused values in the checkpoint.
        target.read(checkpoint).expect_partial().assert_existing_objects_matched()


def save(model: tf.keras.Model, model_dir: str, where: str = CHECKPOINTS_DIR) -> None:
    """Saves a model's config, and its weights in the directory `where` of a model directory.

    AlbertTokenizer.save adds the vocabulary.
    """
    model.config.write(os.path.join(model_dir, CONFIG_FILE))
    tf.train.Checkpoint(model=model).save(os.path.join(model_dir, where, "ckpt"))
