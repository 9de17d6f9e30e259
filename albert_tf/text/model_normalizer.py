"""Puts the preparation of text into a SentencePiece model, for readers that do not prepare text.

SentencePiece replaces the longest known sequence at each place, by a table of rules without
context. So two results differ from settings.preprocess:
- A capital sigma at the end of a word becomes σ, not ς.
- Marks keep their order in the text. A letter and a mark are composed only if they are adjacent.
"""

import functools
import itertools
import sys
import unicodedata

import sentencepiece

from albert_tf.text import sentencepiece_proto
from albert_tf.text.settings import TextSettings, preprocess

# The name of the normalizer in the model file. SentencePiece itself does not read it.
NAME = "albert_tf"


def normalizer(settings: TextSettings) -> sentencepiece.SentencePieceNormalizer:
    """Returns SentencePiece's normalizer nmt_nfkc with the steps of `settings` (no quotes)."""
    sentencepiece.set_min_log_level(2)  # the size of the table
    return sentencepiece.SentencePieceNormalizer(
        norm_map=[*_rules(settings).items()],
        add_dummy_prefix=False,
        escape_whitespaces=False,
        remove_extra_whitespaces=True,
    )


def with_normalizer(model_bytes: bytes, table: sentencepiece.SentencePieceNormalizer) -> bytes:
    """Returns a model with the rules of `table` instead of its own ones."""
    compiled = sentencepiece_proto.read(table.serialized_model_proto()).normalizer_spec
    model = sentencepiece_proto.read(model_bytes)
    model.normalizer_spec.name = NAME
    model.normalizer_spec.precompiled_charsmap = compiled.precompiled_charsmap
    return model.SerializeToString()


def _rules(settings: TextSettings) -> dict[str, str]:
    """Returns what each character, and each sequence of two to four characters, becomes."""
    usual = sentencepiece.SentencePieceNormalizer(
        rule_name="nmt_nfkc",
        add_dummy_prefix=False,
        escape_whitespaces=False,
        remove_extra_whitespaces=False,
    )

    def prepared(text: str) -> str:
        return " " if text.isspace() else usual.normalize(preprocess(text, settings))

    known = [text for text, _ in usual.decompile()]
    assigned = [*filter(_is_assigned, map(chr, range(1, sys.maxunicode + 1)))]  # no rule has a NUL
    characters = [*assigned, *(text for text in known if len(text) == 1)]
    rules = {c: new for c in characters if (new := prepared(c)) != c}
    sequences: set[str] = set()
    for text in known:
        if len(text) > 1 and not any(map(str.isspace, text)):
            for cased in {text, text[0].upper() + text[1:]}:  # ǰ has no composed capital
                sequences |= _spellings(cased)
    for text in sequences:
        if (new := prepared(text)) != "".join(rules.get(c, c) for c in text):
            rules[text] = new
    return rules


def _is_assigned(character: str) -> bool:
    return unicodedata.category(character) not in ("Cn", "Co", "Cs")


def _spellings(text: str) -> set[str]:
    """Returns a sequence and its canonically equivalent spellings of two or more characters."""
    decomposed = functools.partial(unicodedata.normalize, "NFD")
    letter, marks = decomposed(text)[0], decomposed(text)[1:]
    found = {text}
    orders = itertools.permutations(marks) if unicodedata.combining(marks[0]) else [marks]
    for order in map("".join, orders):
        for place in range(len(order) + 1):
            found.add(unicodedata.normalize("NFC", letter + order[:place]) + order[place:])
    return {s for s in found if len(s) > 1 and decomposed(s) == decomposed(text)}
