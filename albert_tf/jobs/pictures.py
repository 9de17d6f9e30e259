"""Draws pictures with matplotlib and writes them as PNG files."""

from __future__ import annotations

import io
import warnings

from albert_tf.storage import files


def new_figure(width: float, height: float):
    """Returns an empty matplotlib figure, which needs no display; sizes in inches."""
    # Imported here, because most programs draw nothing.
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def write(figure, path: str) -> str:
    """Writes a figure as a PNG; returns its path."""
    image = io.BytesIO()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        figure.savefig(image, format="png", dpi=110)
    if any("missing from font" in str(warning.message) for warning in caught):
        print(f"note         {path}: its font lacks characters of the names and draws boxes")
    files.write_atomically(path, image.getvalue())
    return path
