"""Converts a module to a TFLite model, for `python -m export.convert --format=tflite`."""

import contextlib
import os
import tempfile
import warnings
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from . import fixed_graph
from .modules.serving_module import ServingModule

_COMPARED_ROWS = 4


def convert(module: ServingModule, output: str, quantize: bool = False) -> dict[str, float]:
    """Writes a TFLite model; returns the largest difference from the checkpoint, by output."""
    model = _convert(module, quantize)
    differences = _differences(model, module)
    form = f", length {module.max_seq_length}{' in int8' if quantize else ''}"
    fixed_graph.write(module, output, model, differences, form)
    return differences


def _convert(module: ServingModule, quantize: bool) -> bytes:
    """Converts a module to a TFLite model with int32 inputs of shape [1, max_seq_length]."""
    function = fixed_graph.traced(module, [1, module.max_seq_length])
    # Convert from a SavedModel, because otherwise the signature and its names would be missing.
    with tempfile.TemporaryDirectory() as directory:
        holder = tf.Module()
        holder.captured = list(function.variables)
        tf.saved_model.save(holder, directory, signatures=function)
        converter = tf.lite.TFLiteConverter.from_saved_model(directory)
        if quantize:
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        with _without_stderr():
            return converter.convert()


@contextlib.contextmanager
def _without_stderr() -> Iterator[None]:
    """Suppresses statistics that the converter's C++ code prints to stderr; errors still raise."""
    saved = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


def _differences(model: bytes, module: ServingModule) -> dict[str, float]:
    """Returns the largest difference between the TFLite model and the module, by output."""
    with warnings.catch_warnings():  # about a replacement that 2.21 does not contain yet
        warnings.filterwarnings("ignore", message="(?s).*Interpreter is deprecated")
        runner = tf.lite.Interpreter(model_content=model).get_signature_runner()
    position = np.arange(module.max_seq_length)
    lengths = np.linspace(2, module.max_seq_length, _COMPARED_ROWS).astype(int)
    masks = [(position < length).astype(np.int32)[np.newaxis] for length in lengths]
    return fixed_graph.differences(module, lambda inputs: runner(**inputs), masks)
