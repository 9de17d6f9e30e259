"""Converts a model to this project's format, Hugging Face's format or Google's format."""

import dataclasses
import json
import os
from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf

from albert_tf.checkpoints import google, hub, huggingface, model_directory, name_map
from albert_tf.checkpoints.opening import ALBERT_TF, GOOGLE, HUGGINGFACE, open_model
from albert_tf.checkpoints.pretrained import HEADS, load, read_tokenizer
from albert_tf.models import AlbertForPreTraining
from albert_tf.storage import files
from albert_tf.storage.errors import UserError
from albert_tf.text.tokenization import WORD_BOUNDARY, AlbertTokenizer

FORMATS = (ALBERT_TF, HUGGINGFACE, GOOGLE)


def convert(
    *,
    input_path: str,
    output_dir: str,
    output_format: str = "albert_tf",
    spm_model_file: str | None = None,
    text_settings: Mapping[str, bool | None] | None = None,
    allow_missing: str | None = None,
    allow_unused: str | None = None,
    target_vocab: str | None = None,
) -> None:
    """Converts a pre-trained model and writes it atomically to `output_dir`."""
    with files.new_directory(output_dir) as partial:
        opened = open_model(input_path, FORMATS, pretrained=True)
        tokenizer = read_tokenizer(opened.directory, spm_model_file, text_settings)
        model, _, notes, fresh = load(opened, tokenizer, allow_missing, allow_unused)
        if target_vocab:
            new = AlbertTokenizer(target_vocab)
            model, note = _change_vocabulary(model, tokenizer, new)
            tokenizer = new
            notes.append(note)
        for note in notes:
            print(f"note         {note}")
        if output_format == "huggingface":
            huggingface.write_model(partial, model, tokenizer, opened.directory)
        elif output_format == "google":
            google.write(partial, model.config, name_map.arrays(model))
        else:
            model_directory.save_for_pretraining(model, partial)
        if output_format != "huggingface":
            tokenizer.save(partial)
        length = model_directory.trained_length(opened.directory, model.config)
        origin = {
            "origin": hub.cached_name(opened.path),
            "freshly_initialised": fresh,
            "max_seq_length": length if length < model.config.max_position_embeddings else None,
        }
        origin = {name: value for name, value in origin.items() if value}
        if output_format == "albert_tf" and origin:
            record = json.dumps(origin) + "\n"
            files.write_atomically(os.path.join(partial, model_directory.ORIGIN_FILE), record)
    print(f"wrote        {output_dir} ({output_format})")


def convert_fine_tuned(
    *,
    input_path: str,
    output_dir: str,
    output_format: str = "albert_tf",
    spm_model_file: str | None = None,
    text_settings: Mapping[str, bool | None] | None = None,
    has_pairs: bool = False,
    decide: Callable[[dict], dict] = dict,
) -> None:
    """Converts a fine-tuned model and writes it atomically to `output_dir`.

    `decide` completes the content of task.json with what config.json cannot state.
    """
    opened = dataclasses.replace(open_model(input_path, FORMATS), has_pairs=has_pairs)
    is_theirs = opened.format == HUGGINGFACE
    if output_format == "google":
        raise UserError("--output_format=google: Google's code has no format of fine-tuned models")
    if output_format == "huggingface" and is_theirs:
        raise UserError(f"{input_path!r} is a model of Hugging Face already")
    if output_format == "albert_tf" and not is_theirs:
        raise UserError(
            f"{input_path!r} is a fine-tuned model of this project: --output_format=huggingface"
        )
    tokenizer = read_tokenizer(opened.directory, spm_model_file, text_settings)
    with files.new_directory(output_dir) as partial:
        task = decide(opened.task)
        if task.get("has_answerability_head"):
            raise UserError(
                f"{input_path!r}: Hugging Face has no class with this head (beams for SQuAD 2.0): "
                "fine-tune with --squad_head=spans"
            )
        model, _, notes, _ = load(opened, tokenizer)
        if is_theirs and task.get("may_be_impossible") is False:
            notes.append(
                "config.json does not say on which data the model was trained: it always gives an "
                "answer; if that was SQuAD 2.0, pass --null_threshold=0 here or to predict"
            )
        for note in notes:
            print(f"note         {note}")
        if output_format == "huggingface":
            huggingface.write_model(partial, model, tokenizer, opened.directory, task)
        else:
            model.config.write(os.path.join(partial, model_directory.CONFIG_FILE))
            prefix = os.path.join(partial, model_directory.BEST_DIR, "ckpt")
            tf.train.Checkpoint(model=model).save(prefix)
            files.write_json(os.path.join(partial, model_directory.TASK_FILE), task)
            tokenizer.save(partial)
    print(f"wrote        {output_dir} ({output_format})")


def published_model(name: str, directory: str) -> str:
    """Converts a published model to `directory`, unless it exists there; returns `directory`.

    Missing heads are initialised with a fixed seed. Later calls need no network. `name` is
    hf://OWNER/NAME, hf://OWNER/NAME@COMMIT, or a TF-Hub or Kaggle URL with a version. Branches,
    tags and URLs without a version are rejected, because their content may change.
    """
    if not hub.is_pinned(name) and ("@" in name or not name.startswith("hf://")):
        raise UserError(
            f"{name}: expected hf://OWNER/NAME, with a commit of 40 hexadecimal digits after @ or "
            "no @, or a URL that ends in a version: https://tfhub.dev/google/albert_base/3"
        )
    if not files.is_whole(directory):
        tf.keras.utils.set_random_seed(0)
        convert(input_path=name, output_dir=directory, allow_missing=HEADS)
    origin = model_directory.read_origin(directory) or ""
    if name not in (origin, origin.partition("@")[0]):
        raise UserError(
            f"{directory!r} holds {origin}, not {name}: give {origin} to resume, or another "
            "directory for the run"
        )
    return directory


def _change_vocabulary(
    model: AlbertForPreTraining, old: AlbertTokenizer, new: AlbertTokenizer
) -> tuple[AlbertForPreTraining, str]:
    """Adapts a copy of the model to another vocabulary. Also returns a note for the user.

    Pieces in both vocabularies keep their embeddings and output biases, even if their ids differ. A
    new piece is tokenized with the old vocabulary and initialised with the mean embedding and bias
    of these pieces, or of all old pieces if there are none. All other weights are unchanged.
    """
    sources, num_shared = _old_pieces(old, new)

    def rows_of(rows):
        return np.stack([rows[ids].mean(axis=0, dtype=np.float32) for ids in sources])

    return name_map.with_rows(model, new.vocab_size, rows_of), (
        f"{num_shared:,} of {new.vocab_size:,} pieces keep their embeddings, the others begin with "
        "the mean of the pieces that spell them: pre-train further before use"
    )


def _old_pieces(old: AlbertTokenizer, new: AlbertTokenizer) -> tuple[list[list[int]], int]:
    """Returns the old ids to average for each new piece, and the number of shared pieces."""
    # SentencePiece marks pieces that begin a word, WordPiece those that continue it.
    is_mixed = old.is_wordpiece != new.is_wordpiece
    spelled = _in_words if is_mixed else lambda tokenizer: tokenizer.pieces
    numbers = {spelling: i for i, spelling in reversed([*enumerate(spelled(old))])}
    # Match special pieces by role: <pad> of a SentencePiece model is [PAD] in WordPiece.
    special = {
        getattr(new, name): getattr(old, name)
        for name in ("pad_id", "unk_id", "cls_id", "sep_id", "mask_id")
    }
    sources, num_shared = [], 0
    for i, (piece, spelling) in enumerate(zip(new.pieces, spelled(new))):
        found = special.get(i, numbers.get(spelling))
        if found is not None:
            num_shared += 1
            sources.append([found])
            continue
        ids = old.encode(piece.replace(WORD_BOUNDARY, " ").removeprefix("##"))
        ids = [j for j in ids if j != old.unk_id]
        sources.append(ids or list(range(old.vocab_size)))
    return sources, num_shared


def _in_words(tokenizer: AlbertTokenizer) -> list[tuple[bool, str]]:
    """Returns whether each piece begins a word, and its text without marks."""
    bare = (p.removeprefix(WORD_BOUNDARY).removeprefix("##") for p in tokenizer.pieces)
    return [*zip(tokenizer.word_starts().tolist(), bare)]
