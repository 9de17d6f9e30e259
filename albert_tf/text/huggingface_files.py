"""What the files of a Hugging Face model say about its tokenizer.

A model would answer wrongly on pieces that differ from its training, so whatever the tokenizers of
this project do not do is refused.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence

from albert_tf.storage import files
from albert_tf.storage.errors import UserError, shown

TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
# Files with added tokens. Each repeats some of the others, by the version that wrote them.
FILES = (TOKENIZER_CONFIG_FILE, "special_tokens_map.json", "added_tokens.json", "tokenizer.json")

# Tokenizers that split text as those of this project. Others split words first, or are defined by
# code or by a tokenizer.json of any content.
_CLASSES = ("AlbertTokenizer", "BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer")
# What we save has the first name, and the second one if transformers 5 saves it again.
_CLASSES_OF_OURS = ("PreTrainedTokenizerFast", "TokenizersBackend")
# Keys of the special pieces, in the order of Vocabulary.special.
SPECIAL = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
# Keys of added tokens in these files.
_LISTS = "added_tokens_decoder added_tokens additional_special_tokens extra_special_tokens".split()


def check_class(path: str, values: Mapping[str, object]) -> None:
    """Raises a UserError if a model's tokenizer is none of ours.

    `values` has the keys of config.json and tokenizer_config.json, `path` is for the message.
    """
    name = values.get("tokenizer_class")
    automatic = values.get("auto_map") or {}
    if isinstance(automatic, dict) and "AutoTokenizer" in automatic:
        name = f"code of its own ({automatic['AutoTokenizer']})"
    # What this project saves is loaded from its tokenizer.json, and records our own settings.
    is_ours = name in _CLASSES_OF_OURS and "latex_quotes" in values
    if is_ours or str(name or _CLASSES[0]).removesuffix("Fast") in _CLASSES:
        return
    raise UserError(
        f"{path}: tokenizer_class is {shown(name)}, expected one of {', '.join(_CLASSES)}: "
        "other tokenizers give other pieces than the model was trained on. If this one splits "
        "text as one of those, change the value in the file"
    )


def check_setting(path: str, values: Mapping[str, object], name: str, ours: bool | None) -> None:
    """Raises a UserError if a setting has another value than the one that we can do."""
    if values.get(name) not in (None, ours):
        raise UserError(
            f"{path}: {name} is {json.dumps(values[name])}, but the tokenizers of this project do "
            f"as with {json.dumps(ours)}, so the model would get pieces that it was not trained "
            "on. To accept this, change the value in the file"
        )


def check_tokens(directory: str, special: Sequence[str]) -> None:
    """Raises a UserError if a model has added tokens, or special tokens of other names.

    transformers finds these in a text before it tokenizes the rest. Here they would be text.
    `special` has our names, in the order of Vocabulary.special.
    """
    for name in FILES:
        path = os.path.join(directory, name)
        found = files.read_json_if_exists(path)
        for role, ours in zip(SPECIAL, special):
            theirs = _content(found.get(role) or ours)
            if theirs != ours:
                raise UserError(
                    f"{path}: {role} is {shown(theirs)}, expected {ours!r}: convert the model to a "
                    "vocabulary with our names of the special pieces"
                )
        # These models read [CLS] and [SEP] instead of a text's begin and end of other names.
        known = [*special, *(_content(found.get(role)) for role in ("bos_token", "eos_token"))]
        added = [token for token in _added(name, found) if token not in known]
        if added := list(dict.fromkeys(added)):
            names = ", ".join(added[:5]) + ", ..." * (len(added) > 5)
            raise UserError(
                f"{path}: the model has added tokens ({names}), "
                "which are not supported: here they would be split as text, unlike in its "
                "training. If your texts do not contain them, remove them from the file"
            )


def _added(name: str, found: dict) -> Iterator[str]:
    """Yields the tokens that a file adds to the vocabulary, special tokens among them."""
    if name == "added_tokens.json":
        yield from found
    for key in _LISTS:
        tokens = found.get(key) or []
        yield from map(_content, tokens.values() if isinstance(tokens, dict) else list(tokens))


def _content(token: object) -> str:
    """Returns the text of a token, which is a string or an object with its properties."""
    return str(token.get("content") if isinstance(token, dict) else token)
