"""Decides what the path of a model refers to: its format, its kind and its files.

All programs call `open_model` and state what they accept. `pretrained.load` reads the weights.
"""

import dataclasses
import functools
import os
from collections.abc import Collection
from typing import NoReturn

import tensorflow as tf

from albert_tf.checkpoints import google, hub, huggingface, model_directory
from albert_tf.checkpoints.sentence_transformers import MODULES_FILE, read_task
from albert_tf.config import AlbertConfig
from albert_tf.kinds import KINDS, Kind
from albert_tf.storage import files, versions
from albert_tf.storage.errors import UserError, shown

PRETRAINING = "pretraining"  # the kind of a model that is not fine-tuned

ALBERT_TF, HUGGINGFACE, GOOGLE, EXPORT = "albert_tf", "huggingface", "google", "export"
_CONVERT = "convert it by pipelines.convert_checkpoint, and give its --output_dir"
# Maps formats to their names in messages, and to the remedy if a program does not accept them.
FORMATS = {
    ALBERT_TF: ("a model directory, such as demo/model or a seed_N, or a checkpoint in it", ""),
    HUGGINGFACE: ("a model of Hugging Face's form", _CONVERT),
    GOOGLE: ("a checkpoint of Google's code or a module of TF-Hub", _CONVERT),
    EXPORT: ("an export", "give the model directory that it was made from"),
}


@dataclasses.dataclass(frozen=True)
class OpenModel:
    """A model whose files were found. They are read when a property needs them.

    Attributes:
      path: the local path of the model. For a directory of versions, the newest version.
      format: one of FORMATS.
      directory: contains the vocabulary and the settings.
      checkpoint: prefix of the checkpoint (of a fine-tuned model of this project the best one), or
        path of Hugging Face's weights.
      is_fine_tuned: whether the model has a task.
      has_pairs: whether inputs of a Hugging Face model without task.json are pairs of texts.
    """

    path: str
    format: str
    directory: str
    checkpoint: str
    is_fine_tuned: bool = False
    has_pairs: bool = False

    @functools.cached_property
    def task(self) -> dict:
        """The content of task.json, or its equivalent from config.json; {} for a pre-trained model.

        Raises a UserError if these are wrong, or if the fine-tuning is not finished.
        """
        if not self.is_fine_tuned:
            _check_finished(self.directory)
            return {}
        file = os.path.join(self.directory, model_directory.TASK_FILE)
        if not tf.io.gfile.exists(file):
            return _derive_task(self.directory, self.has_pairs)
        task = files.read_json(file)
        if task.get("kind") not in KINDS:
            raise UserError(
                f"{file}: kind is {shown(task.get('kind'))}, expected one of {', '.join(KINDS)}: "
                "was it written by pipelines.finetune?"
            )
        return task

    @property
    def kind(self) -> str:
        """A key of KINDS, or PRETRAINING. Raises the errors of `task`."""
        return self.task.get("kind", PRETRAINING)

    @functools.cached_property
    def config(self) -> AlbertConfig:
        """The config of a model of this project."""
        return AlbertConfig.read(os.path.join(self.directory, model_directory.CONFIG_FILE))

    def check_pairs(self, config: AlbertConfig) -> None:
        """Raises a UserError if texts are pairs, but a model of this config has no second type."""
        of_pairs = ("multiple_choice", "question_answering")
        has_pairs = self.task.get("has_pairs", self.kind in of_pairs)
        if config.type_vocab_size == 1 and has_pairs:
            raise UserError(
                f"{self.directory!r}: the task has pairs of texts, but the model has one segment "
                "type (type_vocab_size 1): expected a model with two, or a task of single texts"
            )

    def require(self, *formats: str) -> None:
        """Raises a UserError if the model has another format."""
        if self.format not in formats:
            name, remedy = FORMATS[self.format]
            raise UserError(f"{self.path!r} is {name}: {remedy}")


def open_model(
    path: str | os.PathLike,
    formats: Collection[str] = tuple(FORMATS),
    *,
    pretrained: bool = False,
    parts: bool = False,
) -> OpenModel:
    """Finds the files of a model without reading its weights.

    Args:
      path: a model directory of this project, its best/ or one of its checkpoints; a checkpoint of
        Google's code or a TF-Hub module; a local Hugging Face model; an export, or a directory of
        its versions; or a published model (see hub.local_path).
      formats: the FORMATS that the caller accepts.
      pretrained: whether fine-tuned models are refused.
      parts: whether best/ and the checkpoints of fine-tuned models are accepted.

    Raises a UserError if there is no model of these formats.
    """
    path = files.as_path(path).rstrip("/")
    if HUGGINGFACE in formats:
        path = hub.local_path(path)
    files.check_finished(path)
    found = _find(path) or _refuse(path, formats)
    found.require(*formats)
    whole = found.directory
    if found.is_fine_tuned and pretrained:
        raise UserError(
            f"{whole!r} is a fine-tuned model: expected a pre-trained one (a fine-tuned one can be "
            "exported, see export.export_saved_model)"
        )
    if found.is_fine_tuned and not parts and found.path != whole:
        raise UserError(f"{path!r} is a part of the fine-tuned model {whole!r}: name {whole!r}")
    return found


def _find(path: str) -> OpenModel | None:
    """Returns the model at a local or remote path, or None."""
    names = files.names_in(path)
    is_saved_model = "saved_model.pb" in names or any(map(str.isdigit, names))
    if is_saved_model and (export := versions.newest_saved_model(path)):
        prefix = os.path.join(export, "variables", "variables")
        assets = os.path.join(export, "assets")
        is_ours = tf.io.gfile.exists(os.path.join(export, files.PROVENANCE_FILE))
        return OpenModel(export, EXPORT if is_ours else GOOGLE, assets, prefix)
    has_task = model_directory.TASK_FILE in names
    has_their_config = huggingface.CONFIG_FILE in names
    if has_their_config and huggingface.SAFETENSORS_FILE in names:
        weights = os.path.join(path, huggingface.SAFETENSORS_FILE)
        has_task |= MODULES_FILE in names
        return OpenModel(path, HUGGINGFACE, path, weights, has_task or _has_class(path))
    if not has_their_config and (has_task or model_directory.CHECKPOINTS_DIR in names):
        best = os.path.join(path, model_directory.BEST_DIR)
        has_best = has_task and model_directory.list_checkpoints(best)
        _, checkpoint = model_directory.find_checkpoint(best if has_best else path)
        return OpenModel(path, ALBERT_TF, path, checkpoint, has_task)
    if found := model_directory.locate_checkpoint(path):
        directory, checkpoint = found
        if tf.io.gfile.exists(os.path.join(directory, model_directory.CONFIG_FILE)):
            has_task = tf.io.gfile.exists(os.path.join(directory, model_directory.TASK_FILE))
            return OpenModel(path, ALBERT_TF, directory, checkpoint, has_task)
    if found := google.find(path):
        checkpoint, directory = found
        return OpenModel(path, GOOGLE, directory, checkpoint)
    return None


def _refuse(path: str, formats: Collection[str]) -> NoReturn:
    """Raises a UserError that names what is at `path`, and what was expected."""
    for directory in (path, *files.find(os.path.join(path, ""), "*")):
        if seeds := files.find(os.path.join(directory, ""), "seed_*"):
            raise UserError(f"{path!r} has a model of each seed: name one, such as {seeds[0]!r}")
    versions.refuse_parent(path)
    owner = os.path.dirname(path)
    if owner and tf.io.gfile.exists(os.path.join(owner, model_directory.TASK_FILE)):
        raise UserError(f"{path!r} is a part of the fine-tuned model {owner!r}: name {owner!r}")
    if tf.io.gfile.exists(os.path.join(path, huggingface.CONFIG_FILE)):
        raise UserError(
            f"{path!r} has {huggingface.CONFIG_FILE}, but no {huggingface.SAFETENSORS_FILE}: load "
            "it once by its class of transformers and save it, by "
            "from_pretrained(DIRECTORY).save_pretrained(OTHER), with from_tf=True for tf_model.h5"
        )
    expected = "; ".join(FORMATS[name][0] for name in formats)
    raise UserError(f"{path!r} is no model: expected {expected}")


def _has_class(directory: str) -> bool:
    """Returns whether Hugging Face's config.json names the class of a fine-tuned model."""
    values = files.read_json(os.path.join(directory, huggingface.CONFIG_FILE))
    names = {kind.architecture for kind in KINDS.values() if kind.our_head}
    return bool(names & {*(values.get("architectures") or ())})


def _check_finished(directory: str) -> None:
    # Fine-tuning writes run.json to the parent of all seeds, and task.json when a seed has ended.
    parent, name = os.path.split(files.absolute(directory))
    runs = [os.path.join(path, model_directory.RUN_FILE) for path in (directory, parent)]
    if name.startswith("seed_") and [tf.io.gfile.exists(run) for run in runs] == [False, True]:
        raise UserError(
            f"the fine-tuning of {directory!r} is not finished: run its command again to resume"
        )


def _derive_task(path: str, has_pairs: bool) -> dict:
    """Returns what task.json would contain for a model of Hugging Face."""
    config_file = os.path.join(path, huggingface.CONFIG_FILE)
    if tf.io.gfile.exists(os.path.join(path, MODULES_FILE)):
        return read_task(path, model_directory.trained_length(path, AlbertConfig.read(config_file)))
    values = files.read_json(config_file)
    by_place = values.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}
    labels = [by_place[key] for key in sorted(by_place, key=int)]
    kind = _kind_of(values, len(labels))
    if kind.defaults is None:
        raise UserError(
            f"{path!r} does not state its number of options: put a task.json beside it, "
            f'such as {{"task": "{kind.task}", "kind": "{kind.name}", "num_choices": 4, '
            '"max_qa_length": 128, "max_seq_length": 512}'
        )
    task = {"task": kind.task, "kind": kind.name, **kind.defaults(labels)}
    if kind.problem_type:
        task["has_pairs"] = has_pairs
    if kind.has_labels:
        if len(labels) < 2:
            raise UserError(
                f"{config_file}: id2label has {len(labels)} label, expected two or more"
            )
        task["labels"] = labels
    length = model_directory.trained_length(path, AlbertConfig.read(config_file))
    return {**task, "max_seq_length": length}


def _kind_of(values: dict, num_labels: int) -> Kind:
    """Returns the entry of KINDS that matches the content of a config.json."""
    names = values.get("architectures") or ()
    kinds = [kind for kind in KINDS.values() if kind.architecture in names]
    by_problem = {kind.problem_type: kind for kind in kinds}
    kind = by_problem.get(values.get("problem_type") or "", kinds[0])
    # transformers treats a classifier with one label as a regression model.
    is_regression = kind is kinds[0] and kind.problem_type and num_labels == 1
    return by_problem["regression"] if is_regression else kind
