"""Loads pre-trained models and their tokenizers from all supported formats."""

import os
import warnings
from collections.abc import Mapping

import tensorflow as tf

from albert_tf.checkpoints import (
    fine_tuned,
    google,
    hub,
    huggingface,
    model_directory,
    name_map,
    saved_model,
)
from albert_tf.models import AlbertForPreTraining
from albert_tf.storage import files, versions
from albert_tf.storage.errors import UserError
from albert_tf.text.huggingface_files import check_tokens
from albert_tf.text.settings import read_tokenizer_config, unreachable
from albert_tf.text.tokenization import AlbertTokenizer

# Embeddings are padded by fewer rows, at most to a multiple of this number.
_MOST_PADDING = 1024

# Matches Google's and Hugging Face's names of the variables in the heads.
HEADS = r"predictions|seq_relationship|sop_classifier"


def from_pretrained(path: str | os.PathLike) -> tuple[tf.keras.Model, AlbertTokenizer]:
    """Loads a local or published model and its tokenizer.

    Missing heads are randomly initialised. A warning lists these heads, and any known difference
    from the model's original code.

    The class of a fine-tuned model (`runs/rte/seed_1`, or a Hugging Face model) depends on its
    task, such as AlbertForSequenceClassification. The labels are in task.json, or in `id2label` of
    Hugging Face's config.json, in the order of the logits.

    Args:
      path: a model directory of this project or one of its checkpoints; a checkpoint of Google's
        code or a TF-Hub module; an encoder of Model Garden or TF2-Hub with albert_config.json; a
        local Hugging Face model; an export, from which only the encoder is loaded
        (`exports/base/1`, or `exports/base` for the newest version); or a published model, see
        hub.local_path.

    Returns:
      The model (an AlbertForPreTraining or the class of the task) and its tokenizer.

    Raises a UserError if `path` is none of these, or if it has no vocabulary.
    """
    path = hub.local_path(files.as_path(path).rstrip("/"))
    files.check_finished(path)
    path = versions.newest_saved_model(path) or path
    if saved_model.is_export(path):
        config, tokenizer = saved_model.read_config_and_tokenizer(path)
        model = AlbertForPreTraining(config)
        model.create_variables()
        saved_model.restore_encoder(model.encoder, path)
        warnings.warn(f"{path}: an export, so the heads are freshly initialised", stacklevel=2)
        model.mark_missing("masked_lm/")
        return model, tokenizer
    _refuse_part(path)
    if fine_tuned.find(path):
        directory = path
        model, _, notes = fine_tuned.load(path)
    else:
        model, directory, notes, _ = read(path, allow_missing=HEADS)
    tokenizer = read_tokenizer(directory)
    model, further_notes = fit_to_vocabulary(model, tokenizer)
    model.trained_length = model_directory.trained_length(directory, model.config)
    for note in [*notes, *further_notes]:
        warnings.warn(f"{path}: {note}", stacklevel=2)
    return model, tokenizer


def _refuse_part(path: str) -> None:
    """Raises a UserError if `path` is best/ or a checkpoint of a fine-tuned model."""
    for owner in (os.path.dirname(path), os.path.dirname(os.path.dirname(path))):
        if owner and tf.io.gfile.exists(os.path.join(owner, model_directory.TASK_FILE)):
            raise UserError(f"{path!r} is a part of the fine-tuned model {owner!r}: name {owner!r}")


def save_pretrained(
    model: AlbertForPreTraining, tokenizer: AlbertTokenizer, directory: str | os.PathLike
) -> None:
    """Saves a model in the format of Hugging Face's transformers.

    Args:
      model: a model whose variables have been created.
      tokenizer: the model's tokenizer, which is saved with its vocabulary.
      directory: a new directory. It is written atomically.

    Raises a UserError if `model` is not an AlbertForPreTraining.
    """
    if not isinstance(model, AlbertForPreTraining):
        raise UserError(
            f"save_pretrained: expected an AlbertForPreTraining, got {type(model).__name__}; "
            "pipelines.convert_checkpoint --output_format=huggingface writes the directory of a "
            "fine-tuned model"
        )
    with files.new_directory(files.as_path(directory)) as partial:
        huggingface.write_model(partial, model, tokenizer)


def read(
    path: str, allow_missing: str | None = None, allow_unused: str | None = None
) -> tuple[tf.keras.Model, str, list[str], str]:
    """Reads a pre-training model. For the optional arguments see `name_map.to_ours`.

    Returns the model, the directory of its vocabulary, notes for the user, and the comma-separated
    names of missing variables, which are randomly initialised.
    """
    model_directory.check_pretrained(path)
    if is_model_directory(path):
        model, directory = model_directory.load_for_pretraining(path)
        notes, fresh = [], model_directory.read_fresh(directory)
    else:
        if huggingface.find_weights(path):
            imported = huggingface.read(path, allow_missing, allow_unused)
        elif google.find(path):
            imported = google.read(path, allow_missing, allow_unused)
        else:
            model_directory.refuse_seeds(path)
            versions.refuse_parent(path)
            raise UserError(
                f"{path!r} is no model: expected a checkpoint of Google's code, a module of "
                "TF-Hub, a Hugging Face model, a model directory or an export"
            )
        model, missing = name_map.build(imported, path)
        directory, notes, fresh = imported.directory, imported.notes, ", ".join(missing)
        model.mark_missing(fresh)
    if fresh:
        notes.append(f"missing, freshly initialised: {fresh}")
    return model, directory, notes, fresh


def is_pretrained(path: str) -> bool:
    """Returns whether `path` is a pre-trained model in any format that `read` supports."""
    _refuse_part(path.rstrip("/"))
    if tf.io.gfile.isdir(model_directory.checkpoints_directory(path)) and not fine_tuned.find(path):
        model_directory.check_pretrained(path)  # rejects unfinished fine-tuning runs
    if saved_model.is_saved_model(path) or fine_tuned.find(path):
        return False
    return bool(is_model_directory(path) or huggingface.find_weights(path) or google.find(path))


def fit_to_vocabulary(
    model: tf.keras.Model, tokenizer: AlbertTokenizer
) -> tuple[tf.keras.Model, list[str]]:
    """Returns the model without embedded rows beyond the vocabulary, and notes for the user.

    Some authors pad the embeddings to a multiple of 8 or 64. No text contains these rows. Raises a
    UserError if the vocabulary has more pieces than the model embeds, or far fewer.
    """
    rows, pieces = model.config.vocab_size, tokenizer.vocab_size
    if not 0 <= rows - pieces < _MOST_PADDING:
        raise UserError(
            f"the vocabulary has {pieces} pieces, but the model embeds {rows}: it belongs to "
            "another model"
        )
    notes = []
    if pieces < rows:
        model = name_map.with_rows(model, pieces, lambda array: array[:pieces])
        notes = [
            f"{rows - pieces:,} embedded rows beyond the vocabulary's {pieces:,} pieces are dropped"
        ]
    for name, lost in unreachable(tokenizer.pieces, tokenizer.settings).items():
        what, remedy = {
            "do_lower_case": ("text loses its capitals, but", "--nodo_lower_case"),
            "keep_accents": ("text loses its accents and marks, but", "--keep_accents"),
        }[name]
        notes.append(
            f"{what} {len(lost):,} pieces of the vocabulary have them, such as {lost[-1]!r}: if "
            f"the model was trained otherwise, convert it with {remedy}"
        )
    return model, notes


def is_model_directory(path: str) -> bool:
    """Returns whether `path` is a model directory, its best/, or one of its checkpoints."""
    if tf.io.gfile.isdir(model_directory.checkpoints_directory(path)):
        return True
    try:
        model_dir, _ = model_directory.find_checkpoint(path)
    except ValueError:
        return False
    return tf.io.gfile.exists(os.path.join(model_dir, model_directory.CONFIG_FILE))


def read_tokenizer(
    directory: str,
    spm_model_file: str | None = None,
    text_settings: Mapping[str, bool | None] | None = None,
) -> AlbertTokenizer:
    """Loads the tokenizer from the directory of a model.

    `spm_model_file` defaults to the directory's SentencePiece model (*.model) or, if there is none,
    its WordPiece vocabulary (vocab*.txt). `text_settings` override what is recorded beside it. The
    directory of a Hugging Face model must name a tokenizer that is supported in any case.
    """
    if spm_model_file is None:
        found = files.find(os.path.join(directory, ""), "*.model")
        found = found or files.find(os.path.join(directory, ""), "vocab*.txt")
        if len(found) != 1:
            raise UserError(
                f"{directory!r} holds {len(found)} vocabularies (*.model, else vocab*.txt; "
                "tokenizer.json is not read): name the right one with --spm_model_file"
            )
        [spm_model_file] = found
    tokenizer = AlbertTokenizer(spm_model_file, **(text_settings or {}))
    read_tokenizer_config(directory)
    check_tokens(directory, tokenizer.vocabulary.special)
    return tokenizer
