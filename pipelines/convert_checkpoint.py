"""Converts ALBERT and BERT models from published formats to this project's or Hugging Face's.

The format of --input is detected from its files:
  a checkpoint of Google's code   prefix or directory: model.ckpt-best.index, albert_config.json
                                  (BERT: bert_model.ckpt.index, bert_config.json)
  a TF-Hub module                 directory or URL: saved_model.pb, variables/, assets/
  a Hugging Face model            directory or hf://OWNER/NAME@REVISION: config.json and
                                  model.safetensors
  a model of this project         a model directory, a checkpoint, or OUTPUT_DIR/seed_N
A variable that is missing from --input is an error, unless --allow_missing matches its name.

Examples:
  python -m pipelines.convert_checkpoint --input=albert_base_v2 --output_dir=models/base
  python -m pipelines.convert_checkpoint --input=runs/base --output_dir=to_publish \\
      --output_format=huggingface
"""

import dataclasses
import re

from absl import flags

from albert_tf.checkpoints.conversion import FORMATS, convert
from albert_tf.checkpoints.opening import ALBERT_TF, HUGGINGFACE, open_model
from albert_tf.jobs import program, text_flags
from albert_tf.jobs.decision import Decision
from albert_tf.storage.errors import UserError

FLAGS = flags.FLAGS


def define_flags() -> None:
    """Defines the flags of this program. Other programs may use the same flag names."""
    flags.DEFINE_string("input", None, "Model to convert.", required=True)
    flags.DEFINE_string("output_dir", None, "Output directory. Must not exist.", required=True)
    formats = (ALBERT_TF, HUGGINGFACE)
    flags.DEFINE_enum("output_format", ALBERT_TF, formats, "Format of the output.")
    flags.DEFINE_string(
        "spm_model_file", None, "Vocabulary (.model or .txt). Default: the one in --input."
    )
    text_flags.define_flags()
    flags.DEFINE_string(
        "allow_missing", None, "Initialise missing variables whose names match this regex."
    )
    flags.DEFINE_string(
        "target_vocab",
        None,
        "New vocabulary for a pre-trained model. Pieces that are in both keep their embeddings. "
        "Its text is prepared as its own settings say.",
    )
    flags.DEFINE_bool(
        "has_pairs", False, "Whether a Hugging Face classifier was trained on pairs of texts."
    )
    flags.DEFINE_float(
        "null_threshold",
        None,
        "For a Hugging Face model that was trained on SQuAD 2.0: predict no answer if the null "
        "odds exceed this value, usually 0.",
    )


def main(_) -> None:
    """Runs the program with the values of its flags."""
    try:
        re.compile(FLAGS.allow_missing or "")
    except re.error as error:
        raise UserError(
            f"--allow_missing={FLAGS.allow_missing!r} is not a regular expression: {error}"
        ) from None
    convert(
        dataclasses.replace(open_model(FLAGS.input, FORMATS), has_pairs=FLAGS.has_pairs),
        FLAGS.output_dir,
        FLAGS.output_format,
        vocabulary={"spm_model_file": FLAGS.spm_model_file, **text_flags.from_flags()},
        allow_missing=FLAGS.allow_missing,
        target_vocab=FLAGS.target_vocab,
        decide=Decision(null_threshold=FLAGS.null_threshold).apply,
    )


if __name__ == "__main__":
    define_flags()
    program.run(main)
