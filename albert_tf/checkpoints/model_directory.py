"""A model directory: training writes it; evaluation, fine-tuning and export read it.

albert_config.json      the shape of the encoder
spiece.model            the vocabulary
tokenizer_config.json   whether text is lower-cased
checkpoints/            tf.train checkpoints; weights under the key "model"
best/                   a checkpoint of the weights with the best evaluation, if the run evaluates
run.json                the settings of the run that wrote the directory
origin.json             in a converted model: the published model's name and version, and the
                        variables that the original lacked
task.json               in a fine-tuned model: its kind, labels, lengths
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

# TensorFlow's errors for a checkpoint that is truncated, altered or of another model.
UNREADABLE = (
    *(tf.errors.OpError, DecodeError),
    *(AssertionError, ValueError, LookupError, RuntimeError),
)


def reraise_store_error(error: Exception) -> None:
    """Re-raises an error of UNREADABLE that the object store caused: the file may be intact."""
    if isinstance(error, tf.errors.PermissionDeniedError) or store_error(str(error)):
        raise error


@contextlib.contextmanager
def refuse_unreadable(message: str, *further: type[Exception]) -> Iterator[None]:
    """Turns errors of UNREADABLE and `further` into a UserError with `message` and the reason.

    Errors of the object store are re-raised unchanged.
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
    """Returns the path of a model directory's checkpoints."""
    return os.path.join(model_dir, "checkpoints")


def list_checkpoints(directory: str, unfinished: bool = False) -> list[str]:
    """Returns the prefixes of the checkpoints in a directory, sorted by step.

    Looks for the checkpoints' files, because TensorFlow's own list (the file `checkpoint`) may be
    lost, damaged or outdated. `unfinished` includes checkpoints without the .index file, which is
    written last. The directory need not exist.
    """
    ends = r"index|data-\d+-of-\d+" if unfinished else "index"
    matches = [re.fullmatch(rf"ckpt-(\d+)\.(?:{ends})", name) for name in files.names_in(directory)]
    numbers = {int(match[1]) for match in matches if match}
    return [os.path.join(directory, f"ckpt-{number}") for number in sorted(numbers)]


def find_checkpoint(path: str) -> tuple[str, str]:
    """Returns a model directory and the prefix of one of its checkpoints.

    `path` may be a model directory (newest checkpoint), MODEL_DIR/best (best checkpoint), or a
    checkpoint's prefix (`MODEL_DIR/checkpoints/ckpt-1000`).
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
    """Does what find_checkpoint does, but prefers best/ in the directory of a fine-tuned model.

    Fine-tuning reports the metrics of best/, which it writes only if there is a dev set.
    """
    best = os.path.join(path, BEST_DIR)
    is_fine_tuned = tf.io.gfile.exists(os.path.join(path, TASK_FILE))
    return find_checkpoint(best if is_fine_tuned and list_checkpoints(best) else path)


def check_pretrained(model_dir: str) -> None:
    """Raises a UserError for a fine-tuned model and for an unfinished fine-tuning run."""
    if tf.io.gfile.exists(os.path.join(model_dir, TASK_FILE)):
        raise UserError(
            f"{model_dir!r} is a fine-tuned model: expected a pre-trained one (a fine-tuned one "
            "can be exported, see export.export_saved_model)"
        )
    # Fine-tuning writes run.json above the seeds' directories, and task.json when a seed ends.
    runs = [os.path.join(path, RUN_FILE) for path in (model_dir, _parent(model_dir))]
    if os.path.basename(model_dir.rstrip("/")).startswith("seed_") and (
        [tf.io.gfile.exists(run) for run in runs] == [False, True]
    ):
        raise UserError(
            f"the fine-tuning of {model_dir!r} is not finished: run its command again to resume"
        )


def refuse_seeds(path: str) -> None:
    """Raises a UserError if the directory is a fine-tuning run with one model per seed."""
    if seeds := sorted(tf.io.gfile.glob(os.path.join(path, "seed_*"))):
        raise UserError(f"{path!r} has a model of each seed: name one, such as {seeds[0]!r}")


def _parent(path: str) -> str:
    return os.path.dirname(files.absolute(path))


def read_config(model_dir: str, checkpoint: str) -> AlbertConfig:
    """Reads the config of a checkpoint's model, with the checkpoint's number of layers.

    With --depth_schedule an early checkpoint has fewer layers than albert_config.json specifies.
    """
    config = AlbertConfig.read(os.path.join(model_dir, CONFIG_FILE))
    schedule = recorded_settings(model_dir).get("depth_schedule", [])
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
    """Returns the maximum sequence length, in pieces, used to train a model directory's model.

    Fine-tuning records the length in task.json, pre-training in run.json. A converted checkpoint
    has neither file: the length is then the number of rows of the position table.
    """
    for name in (TASK_FILE, RUN_FILE):
        if length := read_if_exists(model_dir, name).get("max_seq_length"):
            if not isinstance(length, int):
                path = os.path.join(model_dir, name)
                raise UserError(
                    f"{path}: max_seq_length is {length!r}, expected a number of pieces"
                )
            return length
    return config.max_position_embeddings


def read_origin(model_dir: str) -> str | None:
    """Returns the name of the published model from which a model was converted, if known."""
    for name in (ORIGIN_FILE, RUN_FILE):
        if origin := read_if_exists(model_dir, name).get("origin"):
            return origin
    return None


def read_fresh(model_dir: str) -> str:
    """Returns the names, separated by commas, of the variables that a converted model lacked."""
    return read_if_exists(model_dir, ORIGIN_FILE).get("freshly_initialised", "")


def recorded_settings(directory: str) -> dict:
    """Returns what a run recorded in run.json; {} if it is missing."""
    return read_if_exists(directory, RUN_FILE)


def read_if_exists(directory: str, name: str) -> dict:
    """Reads a JSON object from a directory; returns {} if there is no such file."""
    return files.read_json_if_exists(os.path.join(directory, name))


def length_of_data(checkpoint: str) -> int:
    """Returns the size of a checkpoint's data files in bytes; a damaged index may declare more."""
    return sum(tf.io.gfile.stat(path).length for path in tf.io.gfile.glob(checkpoint + ".data-*"))


def check_index(shapes: Mapping[str, Sequence[int]], num_bytes: int) -> None:
    """Raises a UserError if an index declares more values than `num_bytes`; call before reading."""
    if sum(map(math.prod, shapes.values())) > num_bytes:
        raise UserError("its index declares more than its data hold")


def restore_weights(model: tf.keras.Model, checkpoint: str) -> None:
    """Reads all weights of a model whose variables exist; the checkpoint must contain them all."""
    _read(tf.train.Checkpoint(model=model), checkpoint)


def restore_encoder(encoder: tf.keras.layers.Layer, checkpoint: str) -> None:
    """Reads an AlbertEncoder's weights from a checkpoint of any model that contains an encoder."""
    _read(tf.train.Checkpoint(model=tf.train.Checkpoint(encoder=encoder)), checkpoint)


def _read(target: tf.train.Checkpoint, checkpoint: str) -> None:
    with refuse_unreadable(f"{checkpoint!r} does not hold this model's weights"):
        shapes = tf.train.load_checkpoint(checkpoint).get_variable_to_shape_map()
        check_index(shapes, length_of_data(checkpoint))
        # Without expect_partial TensorFlow prints a line for each value that the model lacks.
        target.read(checkpoint).expect_partial().assert_existing_objects_matched()


def load_for_pretraining(path: str) -> tuple[AlbertForPreTraining, str]:
    """Returns the pre-training model of a model directory or checkpoint, and its directory."""
    model_dir, checkpoint = find_checkpoint(path)
    check_pretrained(model_dir)
    model = AlbertForPreTraining(read_config(model_dir, checkpoint))
    model.create_variables()
    restore_weights(model, checkpoint)
    # SentenceScorer refuses a model with a random masked LM.
    model.masked_lm.is_drawn_afresh = "masked_lm/" in read_fresh(model_dir)
    return model, model_dir


def save_for_pretraining(model: AlbertForPreTraining, model_dir: str) -> None:
    """Writes config and weights as a model directory; AlbertTokenizer.save adds the vocabulary."""
    model.config.write(os.path.join(model_dir, CONFIG_FILE))
    prefix = os.path.join(checkpoints_directory(model_dir), "ckpt")
    tf.train.Checkpoint(model=model).save(prefix)
