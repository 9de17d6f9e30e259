"""Converts ALBERT and BERT models from published formats to this project's format, and back.

The format of --input is detected from its files:
  a checkpoint of Google's code   prefix or directory: model.ckpt-best.index, albert_config.json
                                  (BERT: bert_model.ckpt.index, bert_config.json)
  a TF-Hub module                 directory: saved_model.pb, variables/, assets/; or by its URL,
                                  https://tfhub.dev/google/albert_base/3
  an encoder of Model Garden or TF2-Hub   as a TF-Hub module, plus albert_config.json
  a Hugging Face model            directory: config.json and model.safetensors (or its shards)
                                  or pytorch_model.bin (needs torch); or by its name,
                                  hf://OWNER/NAME@REVISION (needs huggingface_hub)
  a model directory of this project, or one of its checkpoints
  a fine-tuned model              OUTPUT_DIR/seed_N of pipelines.finetune, or a classifier, token
                                  classifier, QA or multiple-choice model of transformers
The default vocabulary is the SentencePiece model or WordPiece vocabulary in --input (vocab*.txt, as
in Google's Chinese models). A variable that is missing from --input is an error, unless
--allow_missing matches its name. A variable that the model does not use is an error, unless
--allow_unused matches its name. Hugging Face's AlbertForMaskedLM has neither a pooler nor a
sentence-order head. Both are initialised, and a note is printed.

Examples:
  python -m pipelines.convert_checkpoint --input=albert_base_v2 --output_dir=models/base
  python -m pipelines.convert_checkpoint --input=runs/base --output_dir=to_publish \\
      --output_format=huggingface
  python -m pipelines.convert_checkpoint --input=hf://albert/albert-base-v2 \\
      --output_dir=models/base --allow_missing=sop_classifier
  python -m pipelines.convert_checkpoint --input=tfhub/albert_en_base --output_dir=models/base \\
      --allow_missing=cls/
  python -m pipelines.convert_checkpoint --input=hf/MiniLM-L6-H384 --output_dir=models/mini \\
      --allow_missing=^cls
"""

import re

from absl import flags

from albert_tf.checkpoints.conversion import FORMATS, convert, convert_fine_tuned
from albert_tf.checkpoints.opening import open_model
from albert_tf.jobs import program, text_flags
from albert_tf.jobs.decision import Decision
from albert_tf.storage.errors import UserError

FLAGS = flags.FLAGS


def define_flags() -> None:
    """Defines the flags of this program. Other programs may use the same flag names."""
    flags.DEFINE_string("input", None, "Model to convert.", required=True)
    flags.DEFINE_string("output_dir", None, "Output directory. Must not exist.", required=True)
    flags.DEFINE_enum("output_format", "albert_tf", FORMATS, "Format of the output.")
    flags.DEFINE_string(
        "spm_model_file", None, "Vocabulary (.model or .txt). Default: the one in --input."
    )
    text_flags.define_flags()
    flags.DEFINE_string(
        "allow_missing", None, "Initialise missing variables whose names match this regex."
    )
    flags.DEFINE_string(
        "allow_unused", None, "Ignore unused variables whose names match this regex."
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
    for name in ("allow_missing", "allow_unused"):
        try:
            re.compile(FLAGS[name].value or "")
        except re.error as error:
            raise UserError(
                f"--{name}={FLAGS[name].value!r} is not a regular expression: {error}"
            ) from None
    opened = open_model(FLAGS.input, FORMATS)
    both = {
        "input_path": opened.path,
        "output_dir": FLAGS.output_dir,
        "output_format": FLAGS.output_format,
        "spm_model_file": FLAGS.spm_model_file,
        "text_settings": text_flags.from_flags(),
    }
    if opened.is_fine_tuned:
        if FLAGS.target_vocab:
            raise UserError("--target_vocab is for pre-trained models")
        decide = Decision(null_threshold=FLAGS.null_threshold).apply
        convert_fine_tuned(**both, has_pairs=FLAGS.has_pairs, decide=decide)
    else:
        if FLAGS.has_pairs or FLAGS.null_threshold is not None:
            raise UserError("--has_pairs and --null_threshold are for fine-tuned models: omit them")
        convert(
            **both,
            allow_missing=FLAGS.allow_missing,
            allow_unused=FLAGS.allow_unused,
            target_vocab=FLAGS.target_vocab,
        )


if __name__ == "__main__":
    define_flags()
    program.run(main)
