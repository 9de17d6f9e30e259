r"""Tokenizes a text corpus and writes it as segment records for pre-training.

The input is UTF-8 text. --input_format sets its layout. Records contain no masks and no order
labels, because training draws both anew in every epoch. A fraction of the documents is held out for
evaluation. The records do not depend on the number of workers. After a crash, run the same command
again to resume. manifest.json, which is written last, lists the shards and their counts.

Examples:
  python -m pipelines.create_pretraining_data --input_file='corpus/*.txt' \
      --spm_model_file=vocab/spiece.model --output_dir=records
  python -m pipelines.create_pretraining_data --input_file='gs://bucket/corpus/*.txt' \
      --spm_model_file=gs://bucket/spiece.model --output_dir=gs://bucket/records \
      --runner=DataflowRunner --beam_options='--project=me --temp_location=gs://bucket/tmp'
"""

import dataclasses
import functools
import hashlib
import itertools
import json
from collections.abc import Sequence

from absl import flags

import albert_tf
from albert_tf.jobs import job_directory, program, text_flags
from albert_tf.jobs.settings import define_settings_flags, settings_from_flags
from albert_tf.storage import files
from albert_tf.storage.errors import UserError
from albert_tf.text.packing import NUM_SPECIAL_PIECES
from albert_tf.text.tokenization import AlbertTokenizer
from .data import beam_job, corpus, unit_job
from .data.duplicates import find_duplicates, hash_ranges
from .data.examples import DRAWS
from .data.records import Manifest, SegmentManifest, make_splits
from .data.shard_writer import COUNTS, Range, Settings, TextUnit, hash_unit, write_unit
from .data.text_files import is_compressed

FLAGS = flags.FLAGS

# A text is divided into about _NUM_UNITS units, which is enough for 64 cores. This number must not
# depend on the machine, because the records depend on the units.
_NUM_UNITS = 128
_MIN_UNIT_BYTES = 500_000


def define_flags() -> None:
    """Defines the flags of this program. Other programs may use the same flag names."""
    job_directory.define_flags()
    corpus.define_flags()
    define_settings_flags(Settings, max_seq_length=512)
    text_flags.define_flags()
    define_settings_flags(beam_job.Workers)


def main(_) -> None:
    """Runs the program with the values of its flags."""
    if FLAGS.run_pieces and FLAGS.run_pieces > FLAGS.max_seq_length - NUM_SPECIAL_PIECES:
        raise UserError(
            f"--run_pieces={FLAGS.run_pieces}: a run does not fit into "
            f"--max_seq_length={FLAGS.max_seq_length} with {NUM_SPECIAL_PIECES} special pieces"
        )
    beam_job.prepare_environment()
    settings = settings_from_flags(
        Settings,
        input_file=FLAGS.input_file,
        text_settings=AlbertTokenizer(FLAGS.spm_model_file, **text_flags.from_flags()).settings,
        text_format=settings_from_flags(corpus.TextFormat),
    )
    create_pretraining_data(settings, settings_from_flags(beam_job.Workers))


def create_pretraining_data(settings: Settings, workers: beam_job.Workers) -> Manifest:
    """Writes shards and a manifest to the output directory. Skips units that are finished.

    Raises:
      UserError: if the text is empty or unreadable, or if the output directory contains records of
        other text or with other settings.
    """
    output_dir = settings.output_dir
    tokenizer = AlbertTokenizer(settings.spm_model_file, *settings.text_settings)
    sizes = files.sizes(files.match_files(settings.input_file, "input_file"))
    units = plan_units(sizes, settings.shard_bytes)
    with unit_job.hold(output_dir, _identity(settings, tokenizer, sizes, units), list(sizes)):
        if manifest := Manifest.read_finished(output_dir):
            return manifest
        print(
            f"records of segments of up to {settings.max_seq_length} pieces",
            f"  text     {len(sizes):,} files, {sum(sizes.values()):,} bytes; {len(units):,} units",
            f"  heldout  {100 * settings.heldout_fraction:g} % of the documents",
            f"  workers  {workers.describe(len(units))}",
            sep="\n",
            flush=True,
        )
        write = functools.partial(write_unit, settings=settings)
        if settings.remove_duplicates and units:
            found = _find_duplicates(units, settings, workers)
            write = functools.partial(write, duplicates_files=found)
        paths = unit_job.run_units("writing records", write, units, output_dir, workers)
        manifest = _collect(paths, settings, tokenizer)
        manifest.write(output_dir)
    print(f"{manifest.summary()} in {output_dir}")
    if manifest.documents == 1:
        print(
            "hint: the whole text is one document with --input_format="
            f"{settings.text_format.input_format}; are blank lines missing, or is the format wrong?"
        )
    return manifest


def plan_units(sizes: dict[str, int], shard_bytes: int) -> list[TextUnit]:
    """Splits large files into ranges of equal size and groups small files into units.

    Compressed files are never split, so their units may be larger than `shard_bytes`.
    """
    enough = min(shard_bytes, max(sum(sizes.values()) // _NUM_UNITS, _MIN_UNIT_BYTES))
    units: list[list[Range]] = []
    room = 0
    for path, size in sizes.items():
        count = 1 if is_compressed(path) else -(-size // enough)
        bounds = [size * i // count for i in range(count + 1)] if size else []
        for begin, end in itertools.pairwise(bounds):
            if end - begin > room:
                units.append([])
                room = enough
            units[-1].append(Range(path, begin, end))
            room -= end - begin
    return [
        TextUnit(
            f"{index:05d}-of-{len(units):05d}",
            sum(end - begin for _, begin, end in ranges),
            tuple(ranges),
            index,
            len(units),
        )
        for index, ranges in enumerate(units)
    ]


def _find_duplicates(
    units: Sequence[TextUnit], settings: Settings, workers: beam_job.Workers
) -> list[str]:
    """Writes lists of the duplicate documents; returns their paths."""
    job = settings.output_dir, workers
    work = functools.partial(hash_unit, settings=settings)
    hash_files = unit_job.run_units("looking for duplicates", work, units, *job, "hashes")
    work = functools.partial(find_duplicates, hash_files=hash_files)
    ranges = hash_ranges(hash_files)
    return unit_job.run_units("comparing hashes", work, ranges, *job, "duplicates")


def _identity(
    settings: Settings,
    tokenizer: AlbertTokenizer,
    sizes: dict[str, int],
    units: Sequence[TextUnit],
) -> dict:
    """Returns the values that must not change if a job is resumed in its output directory."""
    identity = {**dataclasses.asdict(settings), **settings.text_format.identity()}
    del identity["text_format"], identity["text_settings"], identity["output_dir"]
    ranges = json.dumps([unit.ranges for unit in units])
    return {
        **identity,
        **settings.text_settings._asdict(),
        "spm_model_file": f"SHA-256 {tokenizer.sha256[:16]}",
        "input_file": job_directory.describe_files(sizes, sizes),
        # Other versions may divide the text into other units. Their shards must not be mixed.
        "units": f"{len(units)}, ranges {hashlib.sha256(ranges.encode()).hexdigest()[:8]}",
        # All records of a directory must be written by the same version of the code.
        "code_version": albert_tf.__version__,
        "draws": DRAWS,
    }


def _collect(
    paths: Sequence[str], settings: Settings, tokenizer: AlbertTokenizer
) -> SegmentManifest:
    """Merges the files of all units into a manifest. Raises a UserError if there is no text."""
    found = files.map_requests(files.read_json, paths, "reading the counts")
    totals = {name: sum(of_unit[name] for of_unit in found) for name in COUNTS}
    if not totals["pieces"]:
        raise UserError(
            f"--input_file: no text in it (bad lines skipped: {totals['skipped_lines']}); "
            f"see --help for --input_format={settings.text_format.input_format}"
        )
    return SegmentManifest(
        max_seq_length=settings.max_seq_length,
        short_seq_prob=settings.short_seq_prob,
        heldout_fraction=settings.heldout_fraction,
        seed=settings.random_seed,
        vocab_sha256=tokenizer.sha256,
        vocab_size=tokenizer.vocab_size,
        **settings.text_settings._asdict(),
        code_version=albert_tf.__version__,
        **totals,
        splits=make_splits(of_unit["shards"] for of_unit in found),
    )


if __name__ == "__main__":
    define_flags()
    program.run(main)
