"""No function of the source is longer, or has more parameters, than a reader takes in at once."""

from __future__ import annotations

import pytest

from tests import count_source


@pytest.mark.parametrize("package", ["albert_tf", "export", "pipelines"])
def test_sizes_of_functions(package):
    found = [
        f"{path}: {name} has {lines} lines, {parameters} parameters"
        for path in sorted((count_source.PROJECT / package).rglob("*.py"))
        for name, lines, parameters in count_source.functions(path)
        if lines > count_source.MAX_FUNCTION_LINES or parameters > count_source.MAX_PARAMETERS
    ]
    assert not found
