"""Flags that state how the text of a vocabulary was prepared."""

from absl import flags

_MEANINGS = {
    "do_lower_case": ("Whether text is lower-cased.", "true"),
    "keep_accents": ("Whether text keeps accents and other marks.", "false"),
}


def define_flags() -> None:
    """Defines the flags."""
    for name, (meaning, default) in _MEANINGS.items():
        recorded = "as PREFIX.json or tokenizer_config.json beside the vocabulary says"
        flags.DEFINE_bool(name, None, f"{meaning} Default: {recorded}, else {default}.")


def from_flags() -> dict[str, bool | None]:
    """Returns the values of the flags, by the names of TextSettings. None: as recorded."""
    return {name: flags.FLAGS[name].value for name in _MEANINGS}
