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
from albert_tf.checkpoints import google, huggingface, model_directory, name_map
from albert_tf.errors import UserError
from albert_tf.models import AlbertForPreTraining
from albert_tf.tokenization import TOKENIZER_CONFIG_FILE, VOCABULARY_FILE, AlbertTokenizer

FORMATS = ("albert_tf", "huggingface", "google")
WORDPIECE_FILE = "vocab.txt"

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
    output_dir = output_dir.rstrip("/")
    if tf.io.gfile.exists(output_dir):
        raise UserError(f"--output_dir={output_dir!r} exists already: name a new directory")
    model, directory = _read(input_path.rstrip("/"), allow_missing, allow_unused)
    tokenizer = _read_tokenizer(directory, spm_model_file, do_lower_case)
    _check_vocabulary(tokenizer, model, directory)

    partial = files.partial_name(output_dir)
    try:
        _write(partial, output_format, model)
        _write_vocabulary(partial, output_format, tokenizer, directory)
        tf.io.gfile.rename(partial, output_dir)
    except BaseException:
        if tf.io.gfile.exists(partial):
            tf.io.gfile.rmtree(partial)
        raise
    print(f"wrote        {output_dir} ({output_format})")


def _read(path: str, allow_missing, allow_unused) -> tuple[AlbertForPreTraining, str]:
    """Returns the model and the directory where its vocabulary lies, whatever `path` holds."""
    if _is_model_directory(path):
        return model_directory.load_for_pretraining(path)
    if huggingface.find_weights(path):
        imported = huggingface.read(path, allow_missing, allow_unused)
    elif google.find(path):
        imported = google.read(path, allow_missing, allow_unused)
    else:
        raise UserError(
            f"--input={path!r} is no model: expected a checkpoint of Google's code, a TF-Hub "
            "module, a Hugging Face model or a model directory (see --help)"
        )
    model, fresh = name_map.build(imported, path)
    for note in imported.notes:
        print(f"note         {note}")
    if fresh:
        print(f"note         missing, freshly initialised: {', '.join(fresh)}")
    return model, imported.directory


def _is_model_directory(path: str) -> bool:
    """Returns whether it is one, its best weights or a checkpoint in it."""
    if tf.io.gfile.isdir(model_directory.checkpoints_directory(path)):
        return True
    try:
        model_dir, _ = model_directory.find_checkpoint(path)
    except ValueError:
        return False
    return tf.io.gfile.exists(os.path.join(model_dir, model_directory.CONFIG_FILE))


def _read_tokenizer(directory, spm_model_file, do_lower_case) -> AlbertTokenizer | None:
    """Returns the SentencePiece tokenizer; None for a model with a WordPiece vocabulary."""
    if spm_model_file is None:
        found = tf.io.gfile.glob(os.path.join(directory, "*.model"))
        if not found and _wordpiece_file(directory):
            return None
        if len(found) != 1:
            raise UserError(
                f"{directory!r} holds {len(found)} SentencePiece models (*.model): name the "
                "vocabulary with --spm_model_file"
            )
        spm_model_file = found[0]
        if os.path.basename(spm_model_file) == VOCABULARY_FILE and do_lower_case is None:
            return AlbertTokenizer.load(directory)
    return AlbertTokenizer(spm_model_file, True if do_lower_case is None else do_lower_case)


def _wordpiece_file(directory: str) -> str | None:
    found = tf.io.gfile.glob(os.path.join(directory, "vocab*.txt"))
    return found[0] if found else None


def _check_vocabulary(tokenizer, model: AlbertForPreTraining, directory: str) -> None:
    rows = model.config.vocab_size
    if tokenizer is None:
        print(
            f"note         {_wordpiece_file(directory)} is a WordPiece vocabulary, this project's "
            "tokenizer is SentencePiece: config and weights are converted and the file is copied; "
            "records for this model must come from a WordPiece job of your own"
        )
    elif tokenizer.vocab_size > rows:
        raise UserError(
            f"the vocabulary has {tokenizer.vocab_size} pieces, but the model embeds {rows}: it "
            "belongs to another model"
        )
    elif tokenizer.vocab_size < rows:
        print(f"note         {rows} embedded pieces, {tokenizer.vocab_size} in the vocabulary")


def _write(directory: str, output_format: str, model: AlbertForPreTraining) -> None:
    if output_format == "albert_tf":
        model_directory.save_for_pretraining(model, directory)
        return
    weights = {name: v.numpy() for name, v in name_map.model_variables(model).items()}
    writer = huggingface if output_format == "huggingface" else google
    writer.write(directory, model.config, weights)


def _write_vocabulary(directory: str, output_format: str, tokenizer, source: str) -> None:
    if tokenizer is not None:
        tokenizer.save(directory)
    else:
        tf.io.gfile.copy(_wordpiece_file(source), os.path.join(directory, WORDPIECE_FILE))
    if output_format == "huggingface":
        settings = huggingface.tokenizer_settings(tokenizer)
        files.write_atomically(os.path.join(directory, TOKENIZER_CONFIG_FILE), settings)


if __name__ == "__main__":
    define_flags()
    program.run(main)
