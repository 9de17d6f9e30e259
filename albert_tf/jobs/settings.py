"""Settings with their flags: a name, its help, its bounds and its default stand in one place."""

from __future__ import annotations

import dataclasses
import sys
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
      default: of the field and its flag. Without one here and in define_settings_flags the flag is
        required.
      options: further arguments of `define`, such as `lower_bound`.
    """
    metadata = {"define": define, "help": help, **options}
    return dataclasses.field(default=default, metadata=metadata)


def define_settings_flags(settings: type, **defaults) -> None:
    """Defines a flag for each field that `setting` makes; `defaults` replace the fields' own."""
    flags.disclaim_key_flags()  # they are the caller's
    for field in dataclasses.fields(settings):
        if field.name not in flag_names(settings):
            continue
        options = dict(field.metadata)
        define = options.pop("define")
        default = defaults.get(field.name, field.default)
        if default is dataclasses.MISSING:
            default, options["required"] = None, True
        if settings.__module__ == "__main__":  # --help lists them among the program's own flags
            options["module_name"] = sys.argv[0]
        define(field.name, default=default, **options)


def settings_from_flags(settings: type, **others) -> Any:
    """Returns the settings that the flags hold; `others` are the fields of another value."""
    values = {name: flags.FLAGS[name].value for name in flag_names(settings)}
    return settings(**{**values, **others})


def flag_names(settings: type) -> list[str]:
    """Returns the names of the fields that `setting` makes, and of their flags."""
    return [field.name for field in dataclasses.fields(settings) if "define" in field.metadata]
