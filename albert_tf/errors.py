"""The error that a program prints as one line, and how it shows a value."""

_LONGEST = 100  # characters of a value


class UserError(ValueError):
    """Input, flags or arguments are wrong; the message says what, where and what to do.

    Programs print the message and exit with code 2: see program.run. A plain ValueError is a fault
    of the code and keeps its traceback.
    """


def shown(value: object) -> str:
    """Returns a value of a file as a message shows it: its repr, of a long one the beginning."""
    text = repr(value)
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST]}... ({len(text):,} characters)"
