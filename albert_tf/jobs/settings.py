"""Settings with their flags: a name, its help, its bounds and its default stand in one place."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from absl import flags


def setting(
    define: Callable, help: str, default: Any = dataclasses.MISSING, **options
) -> dataclasses.Field:
    """Returns a field of a settings class, with its flag.

    Args:
      define: `flags.DEFINE_integer` or another of its kind.
      help: the flag's help.
      default: of the field and its flag. Without one, define_settings_flags must get it.
      options: further arguments of `define`, such as `lower_bound`.
    """
    metadata = {"define": define, "help": help, **options}
    return dataclasses.field(default=default, metadata=metadata)


def define_settings_flags(settings: type, **defaults) -> None:
    """Defines a flag for each field of a settings class that `setting` makes.

    Args:
      settings: a dataclass.
      defaults: defaults of flags, by name, in place of the fields' own.
    """
    flags.disclaim_key_flags()  # they are the caller's
    for field in dataclasses.fields(settings):
        if field.name not in flag_names(settings):
            continue
        options = dict(field.metadata)
        define = options.pop("define")
        define(field.name, default=defaults.get(field.name, field.default), **options)


def settings_from_flags(settings: type, **others) -> Any:
    """Returns the settings that the flags of define_settings_flags hold.

    Args:
      settings: the dataclass.
      others: fields that have no flag, and those whose flag is not their value.
    """
    values = {name: flags.FLAGS[name].value for name in flag_names(settings)}
    return settings(**{**values, **others})


def flag_names(settings: type) -> list[str]:
    """Returns the names of the fields that `setting` makes, and of their flags."""
    return [field.name for field in dataclasses.fields(settings) if "define" in field.metadata]
