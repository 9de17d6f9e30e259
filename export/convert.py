r"""Converts a checkpoint to TFLite, ONNX or OpenVINO.

TFLite and ONNX files map piece ids to the outputs in README.md, "ONNX". The application must
tokenize. A pre-trained model becomes an encoder, unless you give --kind=pretraining.

--format=tflite: a model for one sequence, padded to --max_seq_length pieces. Short texts are as
expensive as long ones, so convert the checkpoint once for each length that you need. --quantize
stores weights as int8, a quarter of the size (dynamic range: activations remain float). The largest
difference from the checkpoint's outputs is printed.

--format=onnx (extra `onnx`): a model for any batch and length, with each shared weight stored once.
A model whose outputs in onnxruntime differ by more than 1e-4 is not written. --quantize uses 8 bits
for embeddings and weights of matmuls, and quantizes activations at run time ("dynamic").

--format=openvino (extra `openvino`): a model from texts to the outputs of the SavedModel's
`serving_default`, without `unknown_share`. Writes the versions OUTPUT/1, OUTPUT/2 and so on, which
OpenVINO Model Server loads: model.xml and model.bin, with the tokenizer inside. Kinds: encoder,
embedder, classifier, regressor and multilabel. Long texts are tokenized as a whole, and then
truncated. Answers to fixed texts in many languages must be within 1e-5 of the model's. With
--calibration_file, matmuls become int8 (NNCF). With --dev_file, the task's metrics are printed
before and after, and a model that loses more than --max_accuracy_loss is not written.

Examples:
  python -m export.convert --format=tflite --checkpoint=runs/rte/seed_1 \
    --output=exports/rte.tflite --quantize --max_seq_length=64
  python -m export.convert --format=onnx --checkpoint=runs/base --output=exports/base.onnx
  python -m export.convert --format=openvino --checkpoint=runs/tickets/seed_1 \
    --output=models/tickets --calibration_file=train.csv --dev_file=dev.csv
"""

import tensorflow as tf
from absl import flags, logging

from albert_tf.jobs import program
from albert_tf.storage.errors import UserError
from . import fixed_graph, to_onnx, to_openvino, to_tflite
from .kinds import MODULES

FLAGS = flags.FLAGS

# Maps a flag to the formats that use it. It is refused for other formats.
_ONLY_FOR: dict[str, tuple[str, ...]] = {
    "max_seq_length": ("tflite",),
    "quantize": ("tflite", "onnx"),
    **dict.fromkeys(("calibration_file", "dev_file", "max_accuracy_loss"), ("openvino",)),
}


def define_flags() -> None:
    """Defines the flags. This is not done at import, because programs share flag names."""
    formats = ["tflite", "onnx", "openvino"]
    flags.DEFINE_enum("format", None, formats, "Format to write.", required=True)
    flags.DEFINE_string(
        "checkpoint", None, "A model directory or one of its checkpoints.", required=True
    )
    output = "The .tflite or .onnx file, which is replaced; for openvino, the versions' directory."
    flags.DEFINE_string("output", None, output, required=True)
    flags.DEFINE_enum("kind", None, MODULES, "Default: the kind in task.json, else encoder.")
    program.define_max_seq_length(help="tflite: inputs are padded to it. Default: trained length.")
    flags.DEFINE_bool("quantize", False, "tflite, onnx: store weights in 8 bits.")
    flags.DEFINE_string(
        "calibration_file",
        None,
        "openvino: tables (paths or globs) whose first 300 texts give the ranges of activations "
        "for int8. Read as in pipelines.predict. Default: no int8.",
    )
    flags.DEFINE_string(
        "dev_file", None, "openvino: labelled tables (paths or globs) to score the model on."
    )
    flags.DEFINE_float(
        "max_accuracy_loss",
        0.01,
        "openvino: highest loss by quantization of the task's first metric on --dev_file.",
    )


def main(_) -> None:
    """Runs the program with the values of its flags."""
    for flag, formats in _ONLY_FOR.items():
        if FLAGS[flag].present and FLAGS.format not in formats:
            raise UserError(
                f"--{flag} does not apply to --format={FLAGS.format}, only to "
                f"{', '.join(formats)}: remove it"
            )
    suffix = f".{FLAGS.format}"
    is_file_name = FLAGS.output.endswith(suffix) and not tf.io.gfile.isdir(FLAGS.output)
    if FLAGS.format != "openvino" and not is_file_name:
        raise UserError(f"--output={FLAGS.output}: expected the name of a file, ending in {suffix}")
    tf.config.set_visible_devices([], "GPU")
    logging.set_verbosity(logging.ERROR)
    tf.get_logger().setLevel("ERROR")
    module = fixed_graph.load(FLAGS.checkpoint, FLAGS.kind, FLAGS.max_seq_length)
    if FLAGS.format == "tflite":
        to_tflite.convert(module, FLAGS.output, FLAGS.quantize)
    elif FLAGS.format == "onnx":
        to_onnx.convert(module, FLAGS.output, FLAGS.quantize)
    else:
        tables = FLAGS.calibration_file, FLAGS.dev_file
        to_openvino.convert(module, FLAGS.output, *tables, FLAGS.max_accuracy_loss)


if __name__ == "__main__":
    define_flags()
    program.run(main)
