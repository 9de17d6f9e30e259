"""Loads pre-trained models and their tokenizers from all supported formats."""

import os
import warnings

import tensorflow as tf

from albert_tf.checkpoints import google, huggingface, model_directory, name_map
from albert_tf.checkpoints.opening import ALBERT_TF, GOOGLE, HUGGINGFACE, OpenModel, open_model
from albert_tf.config import AlbertConfig
from albert_tf.kinds import KINDS
from albert_tf.models import AlbertForPreTraining
from albert_tf.storage import files
from albert_tf.storage.errors import UserError
from albert_tf.text.huggingface_files import check_tokens
from albert_tf.text.settings import read_tokenizer_config
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
      path: see open_model.

    Returns the model (an AlbertForPreTraining or the class of the task) and its tokenizer. Raises a
    UserError if `path` is no model, or if it has no vocabulary.
    """
    opened = open_model(path, [ALBERT_TF, HUGGINGFACE, GOOGLE])
    model, tokenizer, notes, _ = load(opened, allow_missing=HEADS)
    model.trained_length = model_directory.trained_length(opened.directory, model.config)
    for note in notes:
        warnings.warn(f"{opened.path}: {note}", stacklevel=2)
    return model, tokenizer


def load(
    opened: OpenModel, tokenizer: AlbertTokenizer | None = None, allow_missing: str | None = None
) -> tuple[tf.keras.Model, AlbertTokenizer, list[str], str]:
    """Loads a model without embedded rows beyond the vocabulary.

    `tokenizer` replaces the model's own. For `allow_missing`, which applies to pre-trained models
    of other formats, see `name_map.to_ours`.

    Returns the model, its tokenizer, notes for the user, and the comma-separated names of missing
    variables, which are randomly initialised.
    """
    notes: list[str] = []
    if opened.format == ALBERT_TF:
        model = create_model(opened.config, opened.task)
        model.create_variables()
        model_directory.restore_weights(model, opened.checkpoint)
        origin = model_directory.read_if_exists(opened.directory, model_directory.ORIGIN_FILE)
        fresh = origin.get("freshly_initialised", "")
    else:
        if opened.format == GOOGLE:
            imported = google.read(opened.checkpoint, opened.directory, allow_missing)
        else:
            imported = huggingface.read(opened.path, allow_missing, opened.task)
        model, notes = create_model(imported.config, opened.task), imported.notes
        fresh = ", ".join(name_map.assign(model, imported.weights, opened.path))
    if opened.is_fine_tuned:
        opened.check_pairs(model.config)
    else:
        model.mark_missing(fresh)
    if fresh:
        state = "without effect" if opened.is_fine_tuned else "missing"
        notes.append(f"{state}, freshly initialised: {fresh}")
    tokenizer = tokenizer or read_tokenizer(opened.directory)
    model, further_notes = _fit_to_vocabulary(model, tokenizer)
    return model, tokenizer, [*notes, *further_notes], fresh


def create_model(config: AlbertConfig, task: dict) -> tf.keras.Model:
    """Creates a model without variables. `task` is the content of task.json; {} if pre-trained."""
    return KINDS[task["kind"]].create_model(config, task) if task else AlbertForPreTraining(config)


def save_pretrained(
    model: AlbertForPreTraining, tokenizer: AlbertTokenizer, directory: str | os.PathLike
) -> None:
    """Saves an AlbertForPreTraining, whose variables exist, in the format of Hugging Face's
    transformers.

    The vocabulary of its `tokenizer` is saved, too. `directory` must not exist, and is written
    atomically. Raises a UserError if `model` is of another class.
    """
    if not isinstance(model, AlbertForPreTraining):
        raise UserError(
            f"save_pretrained: expected an AlbertForPreTraining, got {type(model).__name__}; "
            "pipelines.convert_checkpoint --output_format=huggingface writes the directory of a "
            "fine-tuned model"
        )
    if not model.built:
        raise UserError("save_pretrained: the model has no weights yet: call create_variables()")
    with files.new_directory(files.as_path(directory)) as partial:
        huggingface.write(partial, model)
        length = model.trained_length or model.config.max_position_embeddings
        huggingface.write_tokenizer(partial, tokenizer, length)


def _fit_to_vocabulary(
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
    if pieces == rows:
        return model, []
    model = name_map.with_rows(model, pieces, lambda array: array[:pieces])
    return model, [
        f"{rows - pieces:,} embedded rows beyond the vocabulary's {pieces:,} pieces are dropped"
    ]


def read_tokenizer(
    directory: str, spm_model_file: str | None = None, **text_settings: bool | None
) -> AlbertTokenizer:
    """Loads the tokenizer from the directory of a model.

    `spm_model_file` defaults to the directory's SentencePiece model (*.model) or, if there is none,
    its WordPiece vocabulary (vocab*.txt). `text_settings` override what is recorded beside it. The
    tokenizer that the directory of a Hugging Face model names must be supported in any case.
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
    tokenizer = AlbertTokenizer(spm_model_file, **text_settings)
    read_tokenizer_config(directory)
    check_tokens(directory, tokenizer.vocabulary.special)
    return tokenizer
