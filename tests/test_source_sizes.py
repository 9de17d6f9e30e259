"""No function of the source is longer, or has more parameters, than a reader takes in at once."""

import ast

from tests.test_import_rules import FILES, nodes

MAX_LINES, MAX_PARAMETERS = 60, 8


def sizes(function):
    """Returns lines, with the docstring, and parameters, without self and cls."""
    arguments = function.args
    names = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    names += filter(None, [arguments.vararg, arguments.kwarg])
    lines = function.end_lineno - function.lineno + 1
    return lines, sum(argument.arg not in ("self", "cls") for argument in names)


def test_sizes_of_functions():
    for path in FILES:
        for node in nodes(path):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                lines, parameters = sizes(node)
                assert lines <= MAX_LINES and parameters <= MAX_PARAMETERS, (path, node.name)
