"""Loads fine-tuned models of this project and of Hugging Face, and the settings of their tasks."""

import os

import tensorflow as tf

from albert_tf.checkpoints import huggingface, model_directory, name_map
from albert_tf.config import AlbertConfig
from albert_tf.kinds import KINDS, Kind
from albert_tf.storage import files
from albert_tf.storage.errors import UserError, shown


def find(path: str) -> bool:
    """Returns whether `path` is a fine-tuned model of this project or of Hugging Face."""
    if tf.io.gfile.exists(os.path.join(path, model_directory.TASK_FILE)):
        return True
    if not huggingface.find_weights(path):
        return False
    values = files.read_config(os.path.join(path, huggingface.CONFIG_FILE))
    names = {kind.architecture for kind in KINDS.values()}
    return bool(names & {*(values.get("architectures") or ())})


def load(path: str, has_pairs: bool = False) -> tuple[tf.keras.Model, dict, list[str]]:
    """Loads a model with its best weights; returns it, its task.json, and notes for the user.

    `has_pairs` is used only for a Hugging Face model without task.json: if True, the model's inputs
    are pairs of texts. Raises a UserError if the task has pairs, but the model one segment type.
    """
    is_theirs = huggingface.find_weights(path)
    model, task, notes = _load_huggingface(path, has_pairs) if is_theirs else _load_ours(path)
    check_pairs(path, task, model.config)
    return model, task, notes


def check_pairs(path: str, task: dict, config: AlbertConfig) -> None:
    """Raises a UserError if inputs of a task are pairs of texts, but the model has no second type.

    `task` is the content of task.json.
    """
    kinds_of_pairs = ("multiple_choice", "question_answering")
    if config.type_vocab_size == 1 and task.get("has_pairs", task.get("kind") in kinds_of_pairs):
        raise UserError(
            f"{path!r}: the task has pairs of texts, but the model has one segment type "
            "(type_vocab_size 1): expected a model with two, or a task of single texts"
        )


def _load_ours(path: str) -> tuple[tf.keras.Model, dict, list[str]]:
    task = _read_ours(path)
    _, checkpoint = model_directory.find_best_checkpoint(path)
    config = model_directory.read_config(path, checkpoint)
    model = KINDS[task["kind"]].create_model(config, task)
    model.create_variables()
    model_directory.restore_weights(model, checkpoint)
    return model, task, []


def _load_huggingface(path: str, has_pairs: bool) -> tuple[tf.keras.Model, dict, list[str]]:
    task = _read_task(path, has_pairs)
    kind = KINDS[task["kind"]]
    table = name_map.fine_tuned_table(kind, task)
    unused = None if kind.has_pooler else r"^albert[./]pooler"
    imported = huggingface.read(path, allow_unused=unused, table=table)
    model = kind.create_model(imported.config, task)
    fresh = name_map.assign(model, imported, path)
    if fresh:
        imported.notes.append(f"without effect, freshly initialised: {', '.join(fresh)}")
    return model, task, imported.notes


def _read_ours(path: str) -> dict:
    file = os.path.join(path, model_directory.TASK_FILE)
    task = files.read_json(file)
    if task.get("kind") not in KINDS:
        raise UserError(
            f"{file}: kind is {shown(task.get('kind'))}, expected one of {', '.join(KINDS)}"
        )
    return task


def _read_task(path: str, has_pairs: bool) -> dict:
    """Returns the content of task.json, or derives it from config.json if there is no such file."""
    if tf.io.gfile.exists(os.path.join(path, model_directory.TASK_FILE)):
        return _read_ours(path)
    config_file = os.path.join(path, huggingface.CONFIG_FILE)
    values = files.read_config(config_file)
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
