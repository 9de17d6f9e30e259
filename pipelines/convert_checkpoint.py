"""Converts a published ALBERT to a model directory, and a trained one for publishing.

--input is recognised by its files:
  a checkpoint of Google's code   prefix or directory: model.ckpt-best.index, albert_config.json
  a TF-Hub module                 directory: saved_model.pb, variables/, assets/
  a Hugging Face model            local directory: config.json and model.safetensors,
                                  pytorch_model.bin (needs torch) or tf_model.h5
  a model directory of this project, or one checkpoint of it
The vocabulary is the SentencePiece model that lies there (or --spm_model_file). Every variable must
find its place: one that is missing or left over is an error that names it, unless a flag allows it.

Examples:
  python -m pipelines.convert_checkpoint --input=albert_base_v2 --output_dir=models/base
  python -m pipelines.convert_checkpoint --input=runs/base --output_dir=to_publish \\
      --output_format=huggingface
  python -m pipelines.convert_checkpoint --input=hf/albert-base-v2 --output_dir=models/base \\
      --allow_missing=sop_classifier
"""

from __future__ import annotations

import os

import tensorflow as tf
from absl import flags

from albert_tf import files, program
from albert_tf.checkpoints import google, model_directory, name_map, pretrained

FORMATS = ("albert_tf", "huggingface", "google")

FLAGS = flags.FLAGS


def define_flags() -> None:
    """Defines the flags; not at import, as programs share the names of flags."""
    flags.DEFINE_string("input", None, "The model to convert.", required=True)
    flags.DEFINE_string("output_dir", None, "Where it goes; must not exist.", required=True)
    flags.DEFINE_enum("output_format", "albert_tf", FORMATS, "What to write.")
    flags.DEFINE_string("spm_model_file", None, "SentencePiece model, if none lies with the input.")
    flags.DEFINE_bool(
        "do_lower_case", None, "Is text lower-cased; default: what the input says, else yes."
    )
    flags.DEFINE_string(
        "allow_missing", None, "Regular expression of variables that may be missing: start afresh."
    )
    flags.DEFINE_string("allow_unused", None, "Regular expression of variables to leave out.")


def main(_) -> None:
    """Reads the flags."""
    convert(
        input_path=FLAGS.input,
        output_dir=FLAGS.output_dir,
        output_format=FLAGS.output_format,
        spm_model_file=FLAGS.spm_model_file,
        do_lower_case=FLAGS.do_lower_case,
        allow_missing=FLAGS.allow_missing,
        allow_unused=FLAGS.allow_unused,
    )


def convert(
    *,
    input_path: str,
    output_dir: str,
    output_format: str = "albert_tf",
    spm_model_file: str | None = None,
    do_lower_case: bool | None = None,
    allow_missing: str | None = None,
    allow_unused: str | None = None,
) -> None:
    """Converts one model; `output_dir` appears whole or not at all.

    Raises:
      ValueError: if the input is none of the known kinds, damaged or not of its config, has no
        vocabulary, or `output_dir` exists.
    """
    with files.new_directory(output_dir) as partial:
        model, directory, notes = pretrained.read(
            input_path.rstrip("/"), allow_missing, allow_unused
        )
        tokenizer = pretrained.read_tokenizer(directory, spm_model_file, do_lower_case)
        if tokenizer is None:
            notes.append(
                f"{pretrained.wordpiece_file(directory)} is a WordPiece vocabulary, but the "
                "tokenizer here is SentencePiece: config and weights are converted and the file is "
                "copied; records for this model must come from a WordPiece job of your own"
            )
        else:
            notes.extend(pretrained.check_vocabulary(tokenizer, model))
        for note in notes:
            print(f"note         {note}")
        if output_format == "huggingface":
            pretrained.write_huggingface(partial, model, tokenizer)
        elif output_format == "google":
            google.write(partial, model.config, name_map.arrays(model))
        else:
            model_directory.save_for_pretraining(model, partial)
        if tokenizer is None:
            vocabulary = pretrained.wordpiece_file(directory)
            tf.io.gfile.copy(vocabulary, os.path.join(partial, pretrained.WORDPIECE_FILE))
        elif output_format != "huggingface":
            tokenizer.save(partial)
    print(f"wrote        {output_dir} ({output_format})")


if __name__ == "__main__":
    define_flags()
    program.run(main)
