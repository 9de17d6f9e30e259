"""The error that a program prints as one line."""


class UserError(ValueError):
    """Input, flags or arguments are wrong; the message says what, where and what to do.

    Programs print the message and exit with code 2: see program.run. A plain ValueError is a fault
    of the code and keeps its traceback.
    """
