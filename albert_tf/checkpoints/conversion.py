"""Converts a model to this project's format or Hugging Face's."""

import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from albert_tf.checkpoints import hub, huggingface, model_directory, name_map
from albert_tf.checkpoints.opening import ALBERT_TF, GOOGLE, HUGGINGFACE, OpenModel, open_model
from albert_tf.checkpoints.pretrained import HEADS, load, read_tokenizer
from albert_tf.config import AlbertConfig
from albert_tf.models import AlbertForPreTraining
from albert_tf.storage import files
from albert_tf.storage.errors import UserError
from albert_tf.text.tokenization import WORD_BOUNDARY, AlbertTokenizer

FORMATS = (ALBERT_TF, HUGGINGFACE, GOOGLE)  # that can be read


def convert(
    opened: OpenModel,
    output_dir: str,
    output_format: str = ALBERT_TF,
    *,
    vocabulary: Mapping[str, Any] | None = None,
    allow_missing: str | None = None,
    target_vocab: str | None = None,
    decide: Callable[[dict], dict] = dict,
) -> None:
    """Converts a model of FORMATS and writes it atomically to `output_dir`.

    `vocabulary` are arguments of read_tokenizer. `allow_missing` (see name_map.to_ours) and
    `target_vocab` are for pre-trained models. `decide` completes the content of task.json of
    fine-tuned ones with what config.json cannot state.
    """
    task = decide(opened.task)
    if task:
        _check_task(opened, output_format, task)
    if task and target_vocab:
        raise UserError("--target_vocab is for pre-trained models: omit it")
    if opened.has_pairs and not task:
        raise UserError("--has_pairs is for fine-tuned models: omit it")
    with files.new_directory(output_dir) as partial:
        tokenizer = read_tokenizer(opened.directory, **(vocabulary or {}))
        model, _, notes, fresh = load(opened, tokenizer, allow_missing)
        if target_vocab:
            new = AlbertTokenizer(target_vocab)
            model, note = _change_vocabulary(model, tokenizer, new)
            tokenizer = new
            notes.append(note)
        if opened.format == HUGGINGFACE and task.get("may_be_impossible") is False:
            notes.append(
                "config.json does not say on which data the model was trained: it always gives an "
                "answer; if that was SQuAD 2.0, pass --null_threshold=0 here or to predict"
            )
        for note in notes:
            print(f"note         {note}")
        if output_format == HUGGINGFACE:
            huggingface.write(partial, model, task or None)
            length = model_directory.trained_length(opened.directory, model.config)
            huggingface.write_tokenizer(partial, tokenizer, length)
        else:
            tokenizer.save(partial)
            where = model_directory.BEST_DIR if task else model_directory.CHECKPOINTS_DIR
            model_directory.save(model, partial, where)
            _write_record(partial, opened, model.config, fresh, task)
    print(f"wrote        {output_dir} ({output_format})")


def _check_task(opened: OpenModel, output_format: str, task: dict) -> None:
    if output_format == opened.format:
        raise UserError(
            f"{opened.path!r} has this format already: choose another one than "
            f"--output_format={output_format}"
        )
    if task.get("has_answerability_head"):
        raise UserError(
            f"{opened.path!r}: Hugging Face has no class with this head (beams for SQuAD 2.0): "
            "fine-tune with --squad_head=spans"
        )


def _write_record(
    directory: str, opened: OpenModel, config: AlbertConfig, fresh: str, task: dict
) -> None:
    """Writes task.json, or for a pre-trained model origin.json (see model_directory)."""
    if task:
        files.write_json(os.path.join(directory, model_directory.TASK_FILE), task)
        return
    length = model_directory.trained_length(opened.directory, config)
    origin = {
        "origin": hub.cached_name(opened.path),
        "freshly_initialised": fresh,
        "max_seq_length": length if length < config.max_position_embeddings else None,
    }
    if origin := {name: value for name, value in origin.items() if value}:
        files.write_json(os.path.join(directory, model_directory.ORIGIN_FILE), origin)


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
        convert(open_model(name, FORMATS, pretrained=True), directory, allow_missing=HEADS)
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
    of these pieces, or of all old pieces if there are none.
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
    special = dict(zip(new.vocabulary.special_ids, old.vocabulary.special_ids))
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
