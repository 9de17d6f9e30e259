"""No function of the source is longer, or has more parameters, than a reader takes in at once."""

import ast

from tests.test_import_rules import FILES, nodes

MAX_LINES, MAX_PARAMETERS = 60, 8


def test_sizes_of_functions():
    for path in FILES:
        for node in nodes(path):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                of = node.args
                found = [*of.posonlyargs, *of.args, *of.kwonlyargs, of.vararg, of.kwarg]
                names = {argument.arg for argument in found if argument} - {"self", "cls"}
                lines = node.end_lineno - node.lineno + 1  # with the docstring
                assert lines <= MAX_LINES and len(names) <= MAX_PARAMETERS, (path, node.name)
