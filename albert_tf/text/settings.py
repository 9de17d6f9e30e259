"""How text is prepared for a vocabulary, and the files that record it.

PREFIX.json of pipelines.train_vocab records the settings of PREFIX.model. tokenizer_config.json
records the settings of the vocabulary in a model directory, here and in Hugging Face's models.
"""

import json
import os
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from albert_tf.storage import files
from albert_tf.storage.errors import UserError
from albert_tf.text import huggingface_files
from albert_tf.text.huggingface_files import TOKENIZER_CONFIG_FILE

# If more than this share of the pieces can never occur, the settings are probably wrong.
_MOST_UNREACHABLE = 0.01


class TextSettings(NamedTuple):
    """How text is prepared for a vocabulary.

    Attributes:
      do_lower_case: whether text is lower-cased.
      keep_accents: whether accents, tones and other marks are kept. By default they are removed, as
        for the published English models, so か and が become the same text. WordPiece removes
        marks only from lower-cased text, as BERT does.
      latex_quotes: whether `` and '' become ", as in transformers' AlbertTokenizer. It is set for
        the vocabularies of Hugging Face's models. WordPiece ignores it.
    """

    do_lower_case: bool = True
    keep_accents: bool = False
    latex_quotes: bool = False

    def describe(self) -> str:
        """Returns the settings in words, for plans."""
        marks = ", accents kept" if self.keep_accents else ""
        return ("lower-cased" if self.do_lower_case else "cased") + marks


def settings_path(spm_model_file: str) -> str:
    """Returns the path of the settings file that pipelines.train_vocab writes."""
    return f"{os.path.splitext(spm_model_file)[0]}.json"


def resolve(vocabulary_file: str, given: Mapping[str, bool | None]) -> dict[str, bool]:
    """Returns the settings that are known for a vocabulary: given, or recorded beside it.

    `given` has the names of TextSettings. None means as recorded.

    Raises a UserError if a given setting differs from the vocabulary's training, or if the recorded
    settings are not supported.
    """
    stated = {name: value for name, value in given.items() if value is not None}
    record = settings_path(vocabulary_file)
    found = files.read_json_if_exists(record).get("settings")
    found = found if isinstance(found, dict) else {}
    trained = {name: found[name] for name in TextSettings._fields if name in found}
    for name in stated.keys() & trained.keys():
        if stated[name] != trained[name]:
            raise UserError(
                f"--{name}={str(stated[name]).lower()}, but {vocabulary_file!r} was trained "
                f"with --{name}={str(trained[name]).lower()} (see {record}): omit the flag, or "
                "train another vocabulary"
            )
    return {**read_tokenizer_config(os.path.dirname(vocabulary_file)), **trained, **stated}


def read_tokenizer_config(directory: str) -> dict[str, bool]:
    """Returns the settings that a directory's tokenizer_config.json records or implies.

    Other settings are missing, except for the defaults of Hugging Face's AlbertTokenizer in the
    directory of one of its models. Raises a UserError if the file names another tokenizer, or
    settings that would give other pieces than the tokenizers of this project.
    """
    path = os.path.join(directory, TOKENIZER_CONFIG_FILE)
    found = files.read_json_if_exists(path)
    known = {}
    model_config = files.read_json_if_exists(os.path.join(directory, "config.json"))
    if "model_type" in model_config:  # of Hugging Face
        known = {"keep_accents": False, "latex_quotes": True}
        huggingface_files.check_class(path, {**model_config, **found})
    for name in TextSettings._fields:
        if found.get(name) is not None:
            if not isinstance(found[name], bool):
                raise UserError(f"{path}: {name} is {found[name]!r}, expected true or false")
            known[name] = found[name]
    if (strips := found.get("strip_accents")) is not None:  # of WordPiece
        known["keep_accents"] = not strips
        if known.get("do_lower_case") is False:
            huggingface_files.check_setting(path, found, "strip_accents", False)
    huggingface_files.check_setting(path, found, "never_split", None)
    for name in ("remove_space", "tokenize_chinese_chars", "do_basic_tokenize"):
        huggingface_files.check_setting(path, found, name, True)
    return known


def preprocess(text: str, settings: TextSettings, composes: bool = True) -> str:
    """Prepares text for SentencePiece: spaces, quotes, accents and case, in this order.

    SentencePiece composes a letter and its marks only if all marks are separate. So kept accents
    are decomposed if the model's normalizer composes them (`composes`). Vietnamese text of Windows
    has ơ with a separate tone.

    Source: the reference's tokenization.preprocess_text; transformers' AlbertTokenizer for quotes.
    Deviation: transformers does not decompose kept accents.
    """
    text = " ".join(text.split())
    if settings.latex_quotes:
        text = text.replace("``", '"').replace("''", '"')
    if not settings.keep_accents:
        text = remove_marks(text)
    elif composes and not text.isascii():
        text = unicodedata.normalize("NFD", text)
    return text.lower() if settings.do_lower_case else text


def remove_marks(text: str) -> str:
    """Removes accents, tones and other combining marks. The result is in NFKD."""
    if text.isascii():
        return text
    text = unicodedata.normalize("NFKD", text)
    return "".join(c for c in text if not unicodedata.combining(c))


def loses_marks(text: str) -> bool:
    """Returns whether removing the marks of a text changes its pieces."""
    normalize = unicodedata.normalize  # SentencePiece composes characters (NFKC)
    return normalize("NFKC", remove_marks(text)) != normalize("NFKC", text)


def unreachable(pieces: Sequence[str], settings: TextSettings) -> dict[str, list[str]]:
    """Returns the pieces that text cannot contain, by the setting that excludes them.

    Special pieces and bytes are not counted, nor is a setting that excludes few pieces.
    """
    found = {}
    for name, is_lost, loses in (
        ("do_lower_case", settings.do_lower_case, lambda piece: piece != piece.lower()),
        ("keep_accents", not settings.keep_accents, loses_marks),
    ):
        lost = [p for p in pieces if is_lost and not p.startswith(("[", "<")) and loses(p)]
        if len(lost) > max(2, _MOST_UNREACHABLE * len(pieces)):
            found[name] = lost
    return found


def check_reachable(
    path: str, pieces: Sequence[str], settings: TextSettings, known: Collection[str]
) -> None:
    """Raises a UserError if a setting that is not in `known` (given, recorded) excludes many
    pieces.
    """
    for name, lost in unreachable(pieces, settings).items():
        if name not in known:
            what = {"do_lower_case": "capitals", "keep_accents": "accents or other marks"}[name]
            record = json.dumps({"settings": {name: name == "keep_accents"}})
            raise UserError(
                f"{path}: {len(lost):,} of {len(pieces):,} pieces have {what}, such as "
                f"{lost[-1]!r}, and nothing records whether text keeps them: write {record}, or "
                f"the opposite, to {settings_path(path)} (programs that read foreign vocabularies "
                f"also accept --{name})"
            )
