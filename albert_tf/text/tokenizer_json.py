"""Writes a tokenizer as the content of tokenizer.json, the file of Hugging Face's tokenizers.

Source: the source code of https://github.com/huggingface/tokenizers (0.22 and 0.23), and of
https://github.com/google/sentencepiece (normalizer.cc, unigram_model.cc, bpe_model.cc).
Deviation: a file of that library cannot express the following.
- A special piece that is written in a text (`[SEP]`) becomes that piece; here it is text.
- Pieces that end in a digit and a comma are split here after segmentation. In the file they never
  match, so numbers around a comma may be split at other places.
- SentencePiece adds scores in float32, the library in float64: nearly equal ones may differ.
- The library has its own Unicode tables, so rare characters differ between versions.
- If a text begins with a mark that is removed, its first word has no boundary mark.
- If both texts of a pair are truncated to an odd number of pieces, the library gives the second
  text the additional piece. The reference and this project give it to the first one.
"""

import base64
import itertools
import os
import re
import sys
import unicodedata
from typing import Any

import sentencepiece

from albert_tf.storage import files
from albert_tf.storage.errors import UserError
from albert_tf.text import sentencepiece_proto, wordpiece
from albert_tf.text.characters import character_class
from albert_tf.text.in_graph import WORD_BOUNDARY
from albert_tf.text.sentence_pieces import SentencePieceVocabulary
from albert_tf.text.settings import TextSettings
from albert_tf.text.vocabulary import Vocabulary

FILE_NAME = "tokenizer.json"

# The library's Unigram subtracts 10 from the lowest score for a character that no piece matches. In
# a SentencePiece model such a character is in no piece at all, so a lower score changes nothing.
_NEVER_MATCHES = -1e6
# Ends a grapheme, blocks canonical reordering, and is in no text, because it is not assigned.
_SEPARATOR = "\ufff0"
_PRIVATE = 0x10F000  # the first of the private characters that stand for user-defined pieces


def write(path: str, vocabulary: Vocabulary) -> None:
    """Writes the tokenizer.json of a vocabulary. Prints one line if it may differ in numbers.

    Raises a UserError: see `content`.
    """
    files.write_json(path, content(vocabulary))
    splits = getattr(vocabulary, "digit_comma_splits", {})  # of SentencePiece only
    if splits:
        print(
            f"{os.path.basename(path)}: {len(splits):,} pieces end in a digit and a comma, and are "
            "split after segmentation. This file cannot express that: its readers split some "
            "numbers before a comma differently"
        )


def content(vocabulary: Vocabulary) -> dict[str, Any]:
    """Returns the content of tokenizer.json for a vocabulary.

    Raises a UserError if the vocabulary is a SentencePiece model of words.
    """
    if isinstance(vocabulary, SentencePieceVocabulary):
        parts = _sentencepiece(vocabulary)
    else:
        parts = _wordpiece(vocabulary)
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": i, "content": vocabulary.pieces[i], **flags, "special": True}
            for i in sorted(vocabulary.special_ids)
        ],
        **parts,
        "post_processor": _template(vocabulary),
    }


def _template(vocabulary: Vocabulary) -> dict:
    """Returns the post-processor for [CLS] A [SEP] and [CLS] A [SEP] B [SEP]."""
    _, _, cls, sep, _ = vocabulary.special

    def special(piece: str, type_id: int) -> dict:
        return {"SpecialToken": {"id": piece, "type_id": type_id}}

    first, second = ({"Sequence": {"id": name, "type_id": i}} for i, name in enumerate("AB"))
    single = [special(cls, 0), first, special(sep, 0)]
    ids = {piece: vocabulary.pieces.index(piece) for piece in (cls, sep)}
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, second, special(sep, 1)],
        "special_tokens": {
            piece: {"id": piece, "ids": [i], "tokens": [piece]} for piece, i in ids.items()
        },
    }


def _wordpiece(vocabulary: Vocabulary) -> dict:
    settings = vocabulary.settings
    return {
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": not settings.keep_accents,
            "lowercase": settings.do_lower_case,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": wordpiece.CONTINUATION, "cleanup": False},
        "model": {
            "type": "WordPiece",
            "unk_token": vocabulary.special[1],
            "continuing_subword_prefix": wordpiece.CONTINUATION,
            "max_input_chars_per_word": wordpiece.LONGEST_WORD,
            "vocab": {piece: i for i, piece in enumerate(vocabulary.pieces)},
        },
    }


def _sentencepiece(vocabulary: SentencePieceVocabulary) -> dict:
    model = sentencepiece_proto.read(vocabulary.model_bytes)
    if model.trainer_spec.model_type == sentencepiece_proto.WORD:
        raise UserError("a SentencePiece model of words cannot be written as tokenizer.json")
    is_unigram = model.trainer_spec.model_type == sentencepiece_proto.UNIGRAM
    return {
        "normalizer": {
            "type": "Sequence",
            "normalizers": _normalizers(vocabulary.prepares, model, vocabulary.composes),
        },
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": _pre_tokenizers(model)},
        "decoder": _decoder(model),
        "model": _unigram(vocabulary, model) if is_unigram else _bpe(vocabulary, model),
    }


def _replace(pattern: str, text: str, is_regex: bool = True) -> dict:
    kind = "Regex" if is_regex else "String"
    return {"type": "Replace", "pattern": {kind: pattern}, "content": text}


def _normalizers(settings: TextSettings, model, composes: bool) -> list[dict]:
    """Returns the steps of `preprocess` and of SentencePiece's normalizer."""
    spec = model.normalizer_spec
    # A space before the text becomes the boundary mark, which _pre_tokenizers adds otherwise.
    strip = {"type": "Strip", "strip_left": not spec.add_dummy_prefix, "strip_right": True}
    steps = [_replace(character_class(str.isspace) + "+", " "), strip]
    if settings.latex_quotes:
        steps += [_replace(quote, '"', is_regex=False) for quote in ("``", "''")]
    if not settings.keep_accents:
        steps += [{"type": "NFKD"}, _replace(character_class(unicodedata.combining), "")]
    elif composes:
        steps.append({"type": "NFD"})
    if settings.do_lower_case:
        # The library lower-cases each character separately. Python lower-cases a sigma at the end
        # of a word differently.
        word = r"\p{Cased}\p{Case_Ignorable}*\K\u03a3(?!\p{Case_Ignorable}*\p{Cased})"
        steps += [_replace(word, "\u03c2"), {"type": "Lowercase"}]
    if spec.precompiled_charsmap:
        steps += _character_map(model, settings.keep_accents)
    if spec.remove_extra_whitespaces:
        steps += [_replace(" +", " "), strip]
    if spec.add_dummy_prefix:  # Metaspace adds none before a boundary mark that the text has itself
        steps.append(_replace(rf"\A{WORD_BOUNDARY}", 2 * WORD_BOUNDARY))
    return steps


def _character_map(model, keep_accents: bool) -> list[dict]:
    """Returns the steps that replace characters as the model's precompiled_charsmap does.

    The map of the usual rule, nmt_nfkc, replaces single characters (ﬁ becomes fi) and composes
    sequences (e and an accent become é). The library applies the map to single characters only, but
    mistakes some sequences of up to five bytes for one character, unless separators divide them.
    NFC composes the sequences. NFC also reorders and skips marks, which the map does not, so
    separators divide marks that do not follow each other in any composed character. SentencePiece
    does not apply the map to user-defined pieces. Private characters stand for those that the map
    would change.
    """
    charsmap = base64.b64encode(model.normalizer_spec.precompiled_charsmap).decode()
    steps = [{"type": "Precompiled", "precompiled_charsmap": charsmap}]
    join = _replace(_SEPARATOR, "", is_regex=False)
    if keep_accents:  # otherwise, NFKD and the removal of marks leave nothing to separate
        around = r"(?<=.)(?=[^\x00-\x7f])|(?<=[^\x00-\x7f])(?=.)"
        steps = [_replace(around, _SEPARATOR), *steps, join]
    # The map as such: user-defined pieces are not exempt from it if they are normal pieces.
    plain = sentencepiece_proto.read(model.SerializeToString())
    for piece in plain.pieces:
        if piece.type == sentencepiece_proto.USER_DEFINED:
            piece.type = sentencepiece_proto.NORMAL
    processor = sentencepiece.SentencePieceProcessor(model_proto=plain.SerializeToString())
    if processor.normalize("\u1100\u1161").endswith("\uac00"):  # marks may be removed
        apart = [_replace(_between_marks(), _SEPARATOR)] if keep_accents else []
        steps += [*apart, {"type": "NFC"}, *([join] if apart else [])]
    kept = [s for s in _symbols(model) if processor.normalize(s).lstrip(WORD_BOUNDARY) != s]
    for symbol, code in zip(kept, range(_PRIVATE, sys.maxunicode)):
        hide = _replace(symbol, chr(code), is_regex=False)
        steps = [hide, *steps, _replace(chr(code), symbol, is_regex=False)]
    return steps


def _between_marks() -> str:
    """Returns a regular expression for the places before marks that NFC must not compose.

    A mark can be composed if it follows the mark before it in some composed character. The mark
    before it may be part of a composed character, too.
    """
    endings: dict[str, str] = {}  # for each mark, the characters that end in it
    following: dict[str, set[str]] = {}  # for each mark, the marks that may come after it
    for character in map(chr, range(sys.maxunicode + 1)):
        decomposed = unicodedata.normalize("NFD", character)
        if unicodedata.combining(decomposed[-1]):
            endings[decomposed[-1]] = endings.get(decomposed[-1], "") + character
            marks = [*filter(unicodedata.combining, decomposed)]
            for mark, next_mark in itertools.pairwise(marks):
                following.setdefault(mark, set()).add(next_mark)
    composed = "|".join(
        f"(?<=[{endings[mark]}])[{''.join(sorted(marks))}]" for mark, marks in following.items()
    )
    mark = character_class(unicodedata.combining)
    return f"(?<=[{''.join(endings.values())}])(?!{composed})(?={mark})"


def _pre_tokenizers(model) -> list[dict]:
    def split(pattern: str, behavior: str) -> dict:
        regex = {"Regex": pattern}
        return {"type": "Split", "pattern": regex, "behavior": behavior, "invert": False}

    spec = model.normalizer_spec
    metaspace = {
        "type": "Metaspace",
        "replacement": WORD_BOUNDARY if spec.escape_whitespaces else " ",
        # Not behind a special piece: `the [MASK].` ends with the piece `.`, as in training.
        "prepend_scheme": "first" if spec.add_dummy_prefix else "never",
        "split": False,
    }
    steps = [metaspace]
    if not any(WORD_BOUNDARY in piece.piece[1:] for piece in model.pieces):
        # Not needed for the ids; words are used by word_ids() and by the library's cache.
        steps.append(split(WORD_BOUNDARY, "MergedWithNext"))
    symbols = "|".join(map(re.escape, _symbols(model)))
    if symbols and model.trainer_spec.model_type != sentencepiece_proto.UNIGRAM:
        steps.append(split(symbols, "Isolated"))
    return steps


def _symbols(model) -> list[str]:
    """Returns the user-defined pieces, the longest first: they match before all other pieces."""
    symbols = [p.piece for p in model.pieces if p.type == sentencepiece_proto.USER_DEFINED]
    return sorted(symbols, key=len, reverse=True)


def _decoder(model) -> dict:
    has_prefix = model.normalizer_spec.add_dummy_prefix
    if not model.trainer_spec.byte_fallback:
        scheme = "always" if has_prefix else "never"
        metaspace = {"type": "Metaspace", "replacement": WORD_BOUNDARY, "prepend_scheme": scheme}
        return {**metaspace, "split": True}
    space = _replace(WORD_BOUNDARY, " ", is_regex=False)
    steps = [space, {"type": "ByteFallback"}, {"type": "Fuse"}]
    if has_prefix:
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {"type": "Sequence", "decoders": steps}


def _matches(vocabulary: SentencePieceVocabulary, model) -> list[bool]:
    """Returns whether text can produce each piece."""
    kinds = (sentencepiece_proto.NORMAL, sentencepiece_proto.USER_DEFINED)
    splits = vocabulary.digit_comma_splits
    return [p.type in kinds and i not in splits for i, p in enumerate(model.pieces)]


def _unigram(vocabulary: SentencePieceVocabulary, model) -> dict:
    normal = [p.score for p in model.pieces if p.type == sentencepiece_proto.NORMAL]
    # SentencePiece's initial maximum is FLT_MIN, the smallest positive number.
    highest = max([*normal, 1.1754943508222875e-38])

    def score(piece, matches: bool) -> float:
        if not matches:
            return _NEVER_MATCHES
        if piece.type == sentencepiece_proto.USER_DEFINED:
            return len(piece.piece.encode()) * highest - 0.1
        return piece.score

    return {
        "type": "Unigram",
        "unk_id": vocabulary.special_ids[1],
        "vocab": [
            [piece.piece, score(piece, matches)]
            for piece, matches in zip(model.pieces, _matches(vocabulary, model))
        ],
        "byte_fallback": model.trainer_spec.byte_fallback,
    }


def _bpe(vocabulary: SentencePieceVocabulary, model) -> dict:
    """Returns a BPE model, or a model of characters, which has no merges.

    SentencePiece joins the two adjacent parts whose concatenation has the highest score, whatever
    the parts are. So each way to divide a piece into two pieces is a merge.
    """
    parts = {p.piece for p in model.pieces if p.type == sentencepiece_proto.NORMAL}
    merges = []
    if model.trainer_spec.model_type == sentencepiece_proto.BPE:
        pieces = zip(model.pieces, _matches(vocabulary, model))
        joined = [p for p, matches in pieces if matches and p.piece in parts]
        for piece in sorted(joined, key=lambda piece: -piece.score):
            halves = ((piece.piece[:i], piece.piece[i:]) for i in range(1, len(piece.piece)))
            merges += [[*pair] for pair in halves if parts.issuperset(pair)]
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": vocabulary.special[1],
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": True,
        "byte_fallback": model.trainer_spec.byte_fallback,
        # User-defined pieces are words of their own for the model and have no merges.
        "ignore_merges": any(len(symbol) > 1 for symbol in _symbols(model)),
        "vocab": {piece: i for i, piece in enumerate(vocabulary.pieces)},
        "merges": merges,
    }
