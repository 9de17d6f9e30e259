"""Replaces the vocabulary of a pre-trained model; shared pieces keep their embeddings."""

from __future__ import annotations

import dataclasses

import numpy as np

from albert_tf.checkpoints import name_map
from albert_tf.models import AlbertForPreTraining
from albert_tf.text.tokenization import WORD_BOUNDARY, AlbertTokenizer

# Variables with one row per piece.
_TABLES = ("encoder/embeddings/word_embeddings", "masked_lm/output_bias")


def change_vocabulary(
    model: AlbertForPreTraining, old: AlbertTokenizer, new: AlbertTokenizer
) -> tuple[AlbertForPreTraining, str]:
    """Returns the model with embeddings and output biases for another vocabulary, and a note.

    A piece in both vocabularies keeps its embedding and its bias, even if its id differs. A new
    piece is initialised with the mean of the old pieces that spell it, or of all pieces if the old
    vocabulary cannot spell it. All other weights are the same.
    """
    sources, num_shared = _sources(old, new)
    config = dataclasses.replace(model.config, vocab_size=new.vocab_size)
    weights = name_map.arrays(model)
    for name in _TABLES:
        rows = weights[name]
        weights[name] = np.stack([rows[ids].mean(axis=0, dtype=np.float32) for ids in sources])
    changed, _ = name_map.build(name_map.Imported(config, weights, "", []), "the model")
    return changed, (
        f"{num_shared:,} of {new.vocab_size:,} pieces keep their embeddings, the others begin with "
        "the mean of the pieces that spell them: pre-train further before use"
    )


def _sources(old: AlbertTokenizer, new: AlbertTokenizer) -> tuple[list[list[int]], int]:
    """Returns for each new piece the old pieces to average, and the number of shared pieces."""
    numbers = {old.id_to_piece(i): i for i in range(old.vocab_size)}
    # Match special pieces by role: <pad> in one kind of vocabulary is [PAD] in the other.
    special = {
        getattr(new, name): getattr(old, name)
        for name in ("pad_id", "unk_id", "cls_id", "sep_id", "mask_id")
    }
    sources, num_shared = [], 0
    for i in range(new.vocab_size):
        piece = new.id_to_piece(i)
        found = special.get(i, numbers.get(piece))
        if found is not None:
            num_shared += 1
            sources.append([found])
            continue
        spelling = old.encode(piece.replace(WORD_BOUNDARY, " ").removeprefix("##"))
        spelling = [j for j in spelling if j != old.unk_id]
        sources.append(spelling or list(range(old.vocab_size)))
    return sources, num_shared
