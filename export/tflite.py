r"""Converts a checkpoint to TFLite: a model from piece ids to outputs, for one sequence length.

The outputs are the same as in export.onnx. The application must tokenize, see README.md, "TFLite".
--quantize stores weights as int8, which is a quarter of the size (dynamic range: activations remain
float). Inputs are padded to --max_seq_length pieces, by default the length that the checkpoint was
trained with. Short texts are as expensive as long ones, so convert the checkpoint once for each
length that you need. The largest difference from the checkpoint's outputs is printed.

Examples:
  python -m export.tflite --checkpoint=runs/base --output=exports/base.tflite
  python -m export.tflite --checkpoint=runs/rte/seed_1 --output=exports/rte.tflite --quantize \
    --max_seq_length=64
"""

import contextlib
import os
import tempfile
import warnings
from collections.abc import Iterator

import numpy as np
import tensorflow as tf
from absl import flags, logging

from albert_tf.jobs import program
from albert_tf.text.packing import FEATURES
from . import fixed_graph
from .modules.serving_module import ServingModule

FLAGS = flags.FLAGS

_COMPARED_ROWS = 4


def define_flags() -> None:
    """Defines the flags. This is not done at import, because programs share flag names."""
    fixed_graph.define_flags("The .tflite file.", "Store weights as int8.")
    program.define_max_seq_length(help="Inputs are padded to it. Default: the trained length.")


def main(_) -> None:
    """Runs the program with the values of its flags."""
    tf.config.set_visible_devices([], "GPU")
    logging.set_verbosity(logging.ERROR)
    tf.get_logger().setLevel("ERROR")
    convert(FLAGS.checkpoint, FLAGS.output, FLAGS.kind, FLAGS.max_seq_length, FLAGS.quantize)


def convert(
    checkpoint: str,
    output: str,
    kind: str | None = None,
    max_seq_length: int | None = None,
    quantize: bool = False,
) -> dict[str, float]:
    """Writes a TFLite model; returns the largest difference from the checkpoint, by output."""
    module = fixed_graph.load(checkpoint, kind, max_seq_length)
    model = _convert(module, quantize)
    differences = _differences(model, module)
    form = f", length {module.max_seq_length}{' in int8' if quantize else ''}"
    fixed_graph.write(module, output, model, differences, form)
    return differences


def _convert(module: ServingModule, quantize: bool) -> bytes:
    """Converts a module to a TFLite model with int32 inputs of shape [1, max_seq_length]."""
    shape = [1, module.max_seq_length]
    specs = {name: tf.TensorSpec(shape, tf.int32, name) for name in FEATURES}
    answer = tf.function(lambda **ids: fixed_graph.answer(module, ids))
    function = answer.get_concrete_function(**specs)
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


if __name__ == "__main__":
    define_flags()
    program.run(main)
