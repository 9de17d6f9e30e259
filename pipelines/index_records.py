r"""Checks static examples that the reference's code wrote, and indexes them for training.

Reads TFRecord files of google-research/ALBERT's create_pretraining_data.py. For files of BERT's
code, set --sentence_objective=nsp. Checks every record, then writes OUTPUT_DIR/manifest.json, so
that OUTPUT_DIR can be used as --record_dir of pretrain and evaluate. The files are not copied, and
must not be moved. After a crash, run the same command again to resume.

Examples:
  python -m pipelines.index_records --input_file='ref/*.tfrecord' --spm_model_file=30k-clean.model \
      --output_dir=indexed
  # Index the files for evaluation separately: evaluate --record_dir=indexed_dev --split=train
  python -m pipelines.index_records --input_file='ref/dev*' --spm_model_file=30k-clean.model \
      --output_dir=indexed_dev
"""

import dataclasses
import functools

from absl import flags

import albert_tf
from albert_tf.jobs import job_directory, program, text_flags
from albert_tf.jobs.settings import define_settings_flags, setting, settings_from_flags
from albert_tf.storage import files
from albert_tf.storage.errors import UserError
from albert_tf.text.tokenization import AlbertTokenizer
from .data import beam_job, unit_job
from .data.records import Manifest, ReferenceManifest, make_splits
from .data.reference_check import FileUnit, check_file, first_lengths
from .data.sentence_pairs import SENTENCE_OBJECTIVES

FLAGS = flags.FLAGS


@dataclasses.dataclass(frozen=True)
class Settings:
    """Files to index, their vocabulary and the output directory."""

    input_file: str = setting(flags.DEFINE_string, "TFRecord files: comma-separated paths, globs.")
    output_dir: str = setting(flags.DEFINE_string, "Directory for the manifest.")
    spm_model_file: str = setting(flags.DEFINE_string, "Vocabulary of the files (.model or .txt).")
    text_flags: dict[str, bool | None] = dataclasses.field(default_factory=dict)
    sentence_objective: str = setting(
        flags.DEFINE_enum,
        "Meaning of the labels. Use nsp for records written with --random_next_sentence.",
        "sop",
        enum_values=list(SENTENCE_OBJECTIVES),
    )


def define_flags() -> None:
    """Defines the flags of this program. Other programs may use the same flag names."""
    job_directory.define_flags()
    define_settings_flags(Settings)
    text_flags.define_flags()
    define_settings_flags(beam_job.Workers)


def main(_) -> None:
    """Runs the program with the values of its flags."""
    beam_job.prepare_environment()
    settings = settings_from_flags(Settings, text_flags=text_flags.from_flags())
    index_records(settings, settings_from_flags(beam_job.Workers))


def index_records(settings: Settings, workers: beam_job.Workers) -> Manifest:
    """Checks static examples and writes their manifest for training.

    Raises:
      UserError: if a file or record is damaged or does not match the vocabulary, or if the output
        directory contains other files.
    """
    output_dir, spm_model_file = settings.output_dir, settings.spm_model_file
    tokenizer = AlbertTokenizer(spm_model_file, **settings.text_flags)
    text_settings = tokenizer.settings._asdict()
    sizes = files.sizes(files.match_files(settings.input_file, "input_file"))
    units = [
        FileUnit(f"{index:05d}-of-{len(sizes):05d}", size, path)
        for index, (path, size) in enumerate(sizes.items())
    ]
    lengths = first_lengths(list(sizes))
    identity = {
        "input_file": job_directory.describe_files(sizes, sizes),
        "spm_model_file": f"SHA-256 {tokenizer.sha256[:16]}",
        **text_settings,
        "sentence_objective": settings.sentence_objective,
        "code_version": albert_tf.__version__,
    }
    vocabulary = (spm_model_file, *tokenizer.settings)
    check = functools.partial(check_file, lengths=lengths, vocabulary=vocabulary)
    with unit_job.hold(output_dir, identity, list(sizes)):
        if manifest := Manifest.read_finished(output_dir):
            return manifest
        paths = unit_job.run_units("checking records", check, units, output_dir, workers)
        found = files.map_requests(files.read_json, paths, "reading the counts")
        splits = make_splits(of_unit["shards"] for of_unit in found)
        if not splits["train"].examples:
            raise UserError(f"--input_file={settings.input_file}: no record in the files")
        manifest = ReferenceManifest(
            max_seq_length=lengths[0],
            max_predictions_per_seq=lengths[1],
            sentence_objective=settings.sentence_objective,
            vocab_sha256=tokenizer.sha256,
            vocab_size=tokenizer.vocab_size,
            **text_settings,
            code_version=albert_tf.__version__,
            splits=splits,
        )
        manifest.write(output_dir)
    print(
        f"{manifest.summary()} of {lengths[0]} pieces and up to {lengths[1]} predictions: "
        f"--record_dir={output_dir} --max_seq_length={lengths[0]} "
        f"--max_predictions_per_seq={lengths[1]}"
    )
    return manifest


if __name__ == "__main__":
    define_flags()
    program.run(main)
