"""Dataclass fields that also define command-line flags with help, bounds and default."""

import dataclasses
import math
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

from absl import flags

from albert_tf.storage.errors import UserError


def setting(define: Callable, help: str, default: Any = dataclasses.MISSING, **options) -> Any:
    """Returns a dataclass field that also specifies its flag.

    `define` is a function such as `flags.DEFINE_integer`, which gets `options`. The flag is
    required if neither `default` nor define_settings_flags provides a default value.
    """
    metadata = {"define": define, "help": help, **options}
    return dataclasses.field(default=default, metadata=metadata)


class _FloatsParser(flags.ArgumentParser):
    """Parses a comma-separated list of floats."""

    syntactic_help = "a number, or several with commas between"

    def __init__(self, **bounds):
        super().__init__()
        self._parser = flags.FloatParser(**bounds)

    def parse(self, argument) -> list[float]:
        given = argument.split(",") if isinstance(argument, str) else [argument]
        return [self._parser.parse(value) for value in given]

    def flag_type(self) -> str:
        return "comma separated list of numbers"


def _define_floats(
    name: str, default: float | None, help: str, required=False, module_name=None, **bounds
) -> None:
    flags.DEFINE(
        _FloatsParser(**bounds),
        name,
        default,
        help,
        serializer=flags.ListSerializer(","),
        required=required,
        module_name=module_name,
    )


def define_settings_flags(settings: type, several: Sequence[str] = (), **defaults) -> None:
    """Defines a flag for each field created by `setting`; `defaults` override field defaults.

    The flags named in `several` accept comma-separated floats. Their values are lists.
    """
    flags.disclaim_key_flags()  # --help lists the flags under the calling module
    for field in dataclasses.fields(settings):
        if field.name not in flag_names(settings):
            continue
        options = dict(field.metadata)
        define = options.pop("define")
        define = _define_floats if field.name in several else define
        default = defaults.get(field.name, field.default)
        if default is dataclasses.MISSING:
            default, options["required"] = None, True
        if settings.__module__ == "__main__":  # --help lists them among the program's own flags
            options["module_name"] = sys.argv[0]
        define(field.name, default=default, **options)


def settings_from_flags(settings: type, **others) -> Any:
    """Creates an instance of `settings` from the values of its flags; `others` override fields."""
    values = {name: flags.FLAGS[name].value for name in flag_names(settings)}
    return settings(**{**values, **others})


def flag_names(settings: type) -> list[str]:
    """Returns the names of all fields created by `setting`. The flags have the same names."""
    return [field.name for field in dataclasses.fields(settings) if "define" in field.metadata]


def numbers_by_label(
    flag: str, text: str, is_valid: Callable[[float], bool], expected: str
) -> dict[str, float]:
    """Parses a flag such as "neg=1,pos=2.5". Labels may contain commas and `=`.

    Raises a UserError if a number is invalid or a label occurs twice.
    """
    numbers: dict[str, float] = {}
    for part in re.findall(r".+?=[^=,]*(?:,|$)|.+", text, re.DOTALL):
        label, _, number = part.rstrip(",").rpartition("=")
        label = label.strip()
        if label in numbers:
            raise UserError(f"--{flag}={text}: {label!r} is there twice")
        try:
            numbers[label] = float(number)
        except ValueError:
            numbers[label] = math.nan
        if not label or not is_valid(numbers[label]):
            raise UserError(f"--{flag}={text}: {part!r} is no label=number; expected {expected}")
    return numbers
