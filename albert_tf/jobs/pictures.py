"""Creates matplotlib figures and saves them as PNG files."""

import io

from albert_tf.storage import files


def new_figure(width: float, height: float):
    """Returns an empty matplotlib figure of the given size in inches; needs no display."""
    # Imported here, because most programs do not plot.
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def write(figure, path: str) -> str:
    """Saves a figure as a PNG file and returns the path."""
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=110)
    files.write_atomically(path, image.getvalue())
    return path
