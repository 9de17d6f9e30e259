"""A model directory: what training writes, and what evaluation, fine-tuning and export read.

albert_config.json      the shape of the encoder
spiece.model            the vocabulary, and
tokenizer_config.json   how text is prepared for it
checkpoints/            tf.train checkpoints; weights under the key "model"
best/                   a checkpoint of the weights with the best evaluation, if the run evaluates
run.json                the settings of the run that wrote it
origin.json             of a converted model: its name and commit in the Hugging Face Hub, and the
                        variables that it lacked
task.json               of a fine-tuned model: its kind, labels, lengths
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence

import tensorflow as tf
from google.protobuf.message import DecodeError

from albert_tf.checkpoints import name_map
from albert_tf.config import AlbertConfig
from albert_tf.models import AlbertForPreTraining
from albert_tf.storage import files
from albert_tf.storage.errors import UserError, store_error

CONFIG_FILE = "albert_config.json"
BEST_DIR = "best"
RUN_FILE = "run.json"
ORIGIN_FILE = "origin.json"
TASK_FILE = "task.json"

# What TensorFlow raises for a checkpoint that is cut short, altered or of another model.
UNREADABLE = (
    *(tf.errors.OpError, DecodeError),
    *(AssertionError, ValueError, LookupError, RuntimeError),
)


def reraise_store_error(error: Exception) -> None:
    """Re-raises an error of UNREADABLE if the store caused it: the file may be intact."""
    if isinstance(error, tf.errors.PermissionDeniedError) or store_error(str(error)):
        raise error


@contextlib.contextmanager
def refuse_unreadable(message: str, *further: type[Exception]) -> Iterator[None]:
    """Turns errors of UNREADABLE, and further ones, into a UserError: `message`, and the reason.

    Errors of the store pass.
    """
    try:
        yield
    except (*UNREADABLE, *further) as error:
        reraise_store_error(error)
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        if missing := re.findall(r"<tf.Variable '([^']+):0'", str(error)):
            reason = f"it lacks {missing[0]}" + f" and {len(missing) - 1} more" * (len(missing) > 1)
        raise UserError(f"{message}: {reason}") from error


def checkpoints_directory(model_dir: str) -> str:
    """Returns where a model directory keeps its checkpoints."""
    return os.path.join(model_dir, "checkpoints")


def list_checkpoints(directory: str, unfinished: bool = False) -> list[str]:
    """Returns the prefixes of the checkpoints in a directory by their numbers, the oldest first.

    They are found by their files: TensorFlow's own list, the file `checkpoint`, may be lost,
    damaged or behind. `unfinished` includes checkpoints with data but no .index, which is written
    last. The directory need not exist.
    """
    ends = r"index|data-\d+-of-\d+" if unfinished else "index"
    matches = [re.fullmatch(rf"ckpt-(\d+)\.(?:{ends})", name) for name in files.names_in(directory)]
    numbers = {int(match[1]) for match in matches if match}
    return [os.path.join(directory, f"ckpt-{number}") for number in sorted(numbers)]


def find_checkpoint(path: str) -> tuple[str, str]:
    """Returns the model directory and the checkpoint's prefix that `path` means.

    It may be a model directory (its newest checkpoint is meant), MODEL_DIR/best (the best one), or
    one checkpoint (`MODEL_DIR/checkpoints/ckpt-1000`).
    """
    path = path.rstrip("/")
    if tf.io.gfile.exists(path + ".index"):
        model_dir = _parent(_parent(path))
        files.check_finished(model_dir)
        return model_dir, path
    if not tf.io.gfile.isdir(path):
        raise UserError(
            f"no model directory or checkpoint at {path!r}: pipelines.pretrain, finetune and "
            "convert_checkpoint write one, and `make demo` writes demo/model"
        )
    for model_dir, directory in ((path, checkpoints_directory(path)), (_parent(path), path)):
        checkpoints = list_checkpoints(directory)
        if checkpoints:
            files.check_finished(model_dir)
            return model_dir, checkpoints[-1]
    refuse_seeds(path)
    if tf.io.gfile.exists(os.path.join(path, "config.json")):
        raise UserError(
            f"{path!r} is a model of Hugging Face's form: convert it by "
            "pipelines.convert_checkpoint, and give its --output_dir"
        )
    raise UserError(f"{path!r} holds no finished checkpoint: has its training begun?")


def find_best_checkpoint(path: str) -> tuple[str, str]:
    """As find_checkpoint, but the directory of a fine-tuned model means its best checkpoint.

    Fine-tuning reported the metrics of this one. Without a dev set the newest is meant.
    """
    best = os.path.join(path, BEST_DIR)
    is_fine_tuned = tf.io.gfile.exists(os.path.join(path, TASK_FILE))
    return find_checkpoint(best if is_fine_tuned and list_checkpoints(best) else path)


def check_pretrained(model_dir: str) -> None:
    """Raises a UserError if a model directory is of fine-tuning, finished or not."""
    if tf.io.gfile.exists(os.path.join(model_dir, TASK_FILE)):
        raise UserError(
            f"{model_dir!r} is a fine-tuned model: expected a pre-trained one (a fine-tuned one "
            "can be exported, see export.export_saved_model)"
        )
    # A run of fine-tuning has run.json above its seeds; task.json is written at a seed's end.
    runs = [os.path.join(path, RUN_FILE) for path in (model_dir, _parent(model_dir))]
    if os.path.basename(model_dir.rstrip("/")).startswith("seed_") and (
        [tf.io.gfile.exists(run) for run in runs] == [False, True]
    ):
        raise UserError(
            f"the fine-tuning of {model_dir!r} is not finished: run its command again to resume"
        )


def refuse_seeds(path: str) -> None:
    """Raises a UserError if the directory is one of fine-tuning, with a model of each seed."""
    if seeds := sorted(tf.io.gfile.glob(os.path.join(path, "seed_*"))):
        raise UserError(f"{path!r} has a model of each seed: name one, such as {seeds[0]!r}")


def _parent(path: str) -> str:
    return os.path.dirname(files.absolute(path))


def read_config(model_dir: str, checkpoint: str) -> AlbertConfig:
    """Reads the shape of a checkpoint's model, with the layers that it was trained with.

    With --depth_schedule an early checkpoint has fewer layers than albert_config.json.
    """
    config = AlbertConfig.read(os.path.join(model_dir, CONFIG_FILE))
    schedule = _read_if_exists(model_dir, RUN_FILE).get("depth_schedule", [])
    try:
        depths = [[int(number) for number in part.split(":")] for part in schedule]
        steps = [sum(first_step) for _, *first_step in depths]
    except (AttributeError, TypeError, ValueError):
        raise UserError(
            f"{os.path.join(model_dir, RUN_FILE)}: depth_schedule is {schedule!r}, expected layers "
            'and their first steps, such as ["3", "6:2000"]'
        ) from None
    for (layers, *_), first_step in zip(depths, steps):
        if first_step < max(int(checkpoint.rpartition("-")[2]), 1):
            config = dataclasses.replace(config, num_hidden_layers=layers)
    with refuse_unreadable(f"{checkpoint!r} does not hold this model's weights"):
        name_map.check_size(config, length_of_data(checkpoint), "ours", name_map.OUR_HEADS)
    return config


def trained_length(model_dir: str, config: AlbertConfig) -> int:
    """Returns the maximum length, in pieces, that a model directory's model was trained with.

    Fine-tuning records it in task.json, pre-training in run.json. A converted checkpoint has
    neither file: the length is then the number of rows of the config's position table.
    """
    for name in (TASK_FILE, RUN_FILE):
        if length := _read_if_exists(model_dir, name).get("max_seq_length"):
            if not isinstance(length, int):
                path = os.path.join(model_dir, name)
                raise UserError(
                    f"{path}: max_seq_length is {length!r}, expected a number of pieces"
                )
            return length
    return config.max_position_embeddings


def read_origin(model_dir: str) -> str | None:
    """Returns the name of the published model that a model was made from, if known."""
    for name in (ORIGIN_FILE, RUN_FILE):
        if origin := _read_if_exists(model_dir, name).get("origin"):
            return origin
    return None


def read_fresh(model_dir: str) -> str:
    """Returns the names of the variables that a converted model lacked, with commas between."""
    return _read_if_exists(model_dir, ORIGIN_FILE).get("freshly_initialised", "")


def _read_if_exists(model_dir: str, name: str) -> dict:
    path = os.path.join(model_dir, name)
    return files.read_json(path) if tf.io.gfile.exists(path) else {}


def length_of_data(checkpoint: str) -> int:
    """Returns how many bytes of values a checkpoint has; its index may declare more."""
    return sum(tf.io.gfile.stat(path).length for path in tf.io.gfile.glob(checkpoint + ".data-*"))


def check_index(shapes: Mapping[str, Sequence[int]], num_bytes: int) -> None:
    """Raises a UserError, before memory is taken, if the data have no byte for each value."""
    if sum(map(math.prod, shapes.values())) > num_bytes:
        raise UserError("its index declares more than its data hold")


def restore_weights(model: tf.keras.Model, checkpoint: str) -> None:
    """Reads the weights of a model, whose variables exist; the checkpoint must have every one."""
    _read(tf.train.Checkpoint(model=model), checkpoint)


def restore_encoder(encoder: tf.keras.layers.Layer, checkpoint: str) -> None:
    """Reads the weights of an AlbertEncoder from a checkpoint of any model that holds one."""
    _read(tf.train.Checkpoint(model=tf.train.Checkpoint(encoder=encoder)), checkpoint)


def _read(target: tf.train.Checkpoint, checkpoint: str) -> None:
    with refuse_unreadable(f"{checkpoint!r} does not hold this model's weights"):
        shapes = tf.train.load_checkpoint(checkpoint).get_variable_to_shape_map()
        check_index(shapes, length_of_data(checkpoint))
        # Without expect_partial TensorFlow prints a line for each value that is not read.
        target.read(checkpoint).expect_partial().assert_existing_objects_matched()


def load_for_pretraining(path: str) -> tuple[AlbertForPreTraining, str]:
    """Returns the pre-training model of a model directory or checkpoint, and its directory."""
    model_dir, checkpoint = find_checkpoint(path)
    check_pretrained(model_dir)
    model = AlbertForPreTraining(read_config(model_dir, checkpoint))
    model.create_variables()
    restore_weights(model, checkpoint)
    # SentenceScorer refuses it.
    model.masked_lm.is_drawn_afresh = "masked_lm/" in read_fresh(model_dir)
    return model, model_dir


def save_for_pretraining(model: AlbertForPreTraining, model_dir: str) -> None:
    """Writes config and weights as a model directory; AlbertTokenizer.save adds the vocabulary."""
    model.config.write(os.path.join(model_dir, CONFIG_FILE))
    prefix = os.path.join(checkpoints_directory(model_dir), "ckpt")
    tf.train.Checkpoint(model=model).save(prefix)
