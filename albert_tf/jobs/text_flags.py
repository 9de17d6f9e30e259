"""Flags that state how the text of a vocabulary was prepared."""

import dataclasses

from absl import flags

from albert_tf.jobs.settings import define_settings_flags, setting, settings_from_flags

_DEFAULT = "Default: as PREFIX.json or tokenizer_config.json beside the vocabulary says, else"


@dataclasses.dataclass(frozen=True)
class TextFlags:
    """Settings of a vocabulary that flags may state. None: as recorded beside it."""

    do_lower_case: bool | None = setting(
        flags.DEFINE_bool, f"Whether text is lower-cased. {_DEFAULT} true.", None
    )
    keep_accents: bool | None = setting(
        flags.DEFINE_bool, f"Whether text keeps accents and other marks. {_DEFAULT} false.", None
    )


def define_flags() -> None:
    """Defines the flags."""
    define_settings_flags(TextFlags)


def from_flags() -> dict[str, bool | None]:
    """Returns the values of the flags, by the names of TextSettings."""
    return dataclasses.asdict(settings_from_flags(TextFlags))
