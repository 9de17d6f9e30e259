r"""Tokenizes a corpus once, into the segment records that pre-training reads.

Input is UTF-8 text, --input_format says how documents lie in it; by default one sentence per line,
a blank line between documents. .gz, .bz2, .xz and .zst files are decompressed. Every piece of text
is kept: a sentence that does not fit into a segment goes on in the next one. Masks and sentence
order are drawn later, anew at every epoch. A share of the documents is held out.
--remove_duplicates leaves out documents whose letters and digits are those of an earlier one.

The work is cut into byte ranges, and small files are taken together; each part becomes a pair of
shards, or more if it is a big compressed file. The records depend on text and settings alone, not
on the number of workers. After a crash, the same command resumes and repeats no finished range.
manifest.json, written last, says what there is.

--format=reference draws masked examples from the segments, in the format of the reference's own
create_pretraining_data.py, for other code that reads those; the segments lie beside, in segments/.

Examples:
  python -m pipelines.create_pretraining_data --input_file='corpus/*.txt' \
      --spm_model_file=vocab/spiece.model --output_dir=records
  python -m pipelines.create_pretraining_data --input_file='gs://bucket/corpus/*.txt' \
      --spm_model_file=gs://bucket/spiece.model --output_dir=gs://bucket/records \
      --runner=DataflowRunner --beam_options='--project=me --temp_location=gs://bucket/tmp'
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import shlex
from collections.abc import Sequence

import tensorflow as tf
from absl import flags

import albert_tf
from albert_tf import files, job_directory, program
from albert_tf.errors import UserError
from albert_tf.tokenization import AlbertTokenizer
from pipelines.data import beam_job, corpus, duplicates, reference_job
from pipelines.data.examples import ExampleOptions, define_example_flags, options_from
from pipelines.data.records import (
    MANIFEST_FILE,
    SPLITS,
    Manifest,
    ReferenceManifest,
    SegmentManifest,
    Shard,
    Split,
)
from pipelines.data.segments import NUM_SPECIAL_PIECES
from pipelines.data.shard_writer import (
    COUNTS,
    UNITS_DIR,
    Range,
    Settings,
    Unit,
    hash_unit,
    write_unit,
)
from pipelines.data.text_files import is_compressed
from pipelines.data.unit_job import (
    remove_leftovers,
    remove_partial_files,
    run_units,
    unit_progress,
)
from pipelines.data.vocabulary_settings import resolve_lower_case

FLAGS = flags.FLAGS

# Measured on English novels: bytes of a record per piece; how much gzip makes of text.
_BYTES_PER_PIECE = 1.8
_GZIP_RATIO = 2.7
_SAMPLE_SENTENCES = 1000
# Small files are taken together up to so many bytes at least.
_MIN_UNIT_BYTES = 4_000_000


def define_flags() -> None:
    """Defines the flags; not at import, as programs share the names of flags."""
    corpus.define_flags()
    flags.DEFINE_string("output_dir", None, "Where the records go.", required=True)
    flags.DEFINE_string("spm_model_file", None, "The SentencePiece model.", required=True)
    flags.DEFINE_bool(
        "do_lower_case", None, "Lower-case the text. Default: as the vocabulary was trained."
    )
    flags.DEFINE_integer("max_seq_length", 512, "Longest example, in pieces.", lower_bound=8)
    flags.DEFINE_enum(
        "format",
        "segments",
        ["segments", "reference"],
        "segments: masks are drawn in training; reference: masked examples as the reference's.",
    )
    flags.DEFINE_integer(
        "dupe_factor",
        10,
        "With --format=reference: masked copies of each training segment. The reference's 40 take "
        "four times the room; its users found 10 to do.",
        lower_bound=1,
    )
    define_example_flags()
    flags.DEFINE_float(
        "short_seq_prob",
        0.1,
        "Share of segments that are made shorter.",
        lower_bound=0,
        upper_bound=1,
    )
    flags.DEFINE_float(
        "heldout_fraction",
        0.05,
        "Share of documents kept for evaluation.",
        lower_bound=0,
        upper_bound=0.9,
    )
    flags.DEFINE_integer(
        "random_seed", 12345, "Draws the short segments and the held-out documents."
    )
    flags.DEFINE_integer(
        "shard_bytes",
        64_000_000,
        "Bytes of text that one worker does at a time; a compressed file is done as a whole.",
        lower_bound=1,
    )
    flags.DEFINE_bool(
        "remove_duplicates",
        False,
        "Leave out documents that differ from an earlier one in case, spacing, punctuation only.",
    )
    flags.DEFINE_string("runner", "DirectRunner", "The Beam runner; DirectRunner is this machine.")
    flags.DEFINE_integer(
        "num_workers", None, "Processes of DirectRunner. Default: one per core.", lower_bound=1
    )
    flags.DEFINE_string(
        "beam_options", "", "Options handed to Beam as they are, for other runners."
    )


def main(_) -> None:
    """Reads the flags."""
    beam_job.prepare_environment()
    settings = {
        f.name: FLAGS[f.name].value for f in dataclasses.fields(Settings) if f.name in FLAGS
    }
    settings["do_lower_case"] = resolve_lower_case(FLAGS.spm_model_file, FLAGS.do_lower_case)
    settings["text_format"] = corpus.text_format_of(FLAGS)
    with job_directory.lock(FLAGS.output_dir):
        arguments = {
            "input_file": FLAGS.input_file,
            "output_dir": FLAGS.output_dir,
            "settings": Settings(**settings),
            "shard_bytes": FLAGS.shard_bytes,
            "runner": FLAGS.runner,
            "num_workers": FLAGS.num_workers or os.cpu_count() or 1,
            "beam_options": shlex.split(FLAGS.beam_options),
        }
        if FLAGS.format == "segments":
            create_pretraining_data(**arguments)
            return
        create_reference_examples(
            options=options_from(FLAGS), dupe_factor=FLAGS.dupe_factor, **arguments
        )


def create_pretraining_data(
    *,
    input_file: str,
    output_dir: str,
    settings: Settings,
    shard_bytes: int = 64_000_000,
    runner: str = "DirectRunner",
    num_workers: int = 1,
    beam_options: Sequence[str] = (),
) -> Manifest:
    """Writes the records of a corpus, or the part of them that is not there yet.

    Raises:
      ValueError: if there is no text or it cannot be read, or `output_dir` holds records of other
        settings or other text.
    """
    tokenizer = AlbertTokenizer(settings.spm_model_file, settings.do_lower_case)
    sizes = files.sizes(files.match_files(input_file, "input_file"))
    _forget_if_nothing_is_done(output_dir)
    job_directory.claim(output_dir, _identity(settings, tokenizer, sizes, shard_bytes))
    if tf.io.gfile.exists(os.path.join(output_dir, MANIFEST_FILE)):
        manifest = Manifest.read(output_dir)
        print(f"finished before: {_summary(manifest)} in {output_dir}")
        return manifest
    units = plan_units(sizes, shard_bytes)
    remove_leftovers(output_dir)
    _print_plan(sizes, units, settings, tokenizer)
    arguments = {"settings": settings, "output_dir": output_dir}

    run = functools.partial(
        run_units,
        output_dir=output_dir,
        runner=runner,
        num_workers=num_workers,
        beam_options=beam_options,
    )
    if settings.remove_duplicates and units:
        with unit_progress("looking for duplicates", units, "hashes", output_dir) as pending:
            run(functools.partial(hash_unit, **arguments), pending)
        hash_files = [os.path.join(output_dir, unit.file("hashes")) for unit in units]
        ranges = duplicates.hash_ranges(hash_files, os.path.join(output_dir, UNITS_DIR))
        run(
            functools.partial(duplicates.find_duplicates, hash_files=hash_files),
            [hashes for hashes in ranges if not tf.io.gfile.exists(hashes.path)],
        )
        arguments["duplicates_files"] = [hashes.path for hashes in ranges]
    with unit_progress("writing records", units, "json", output_dir) as pending:
        run(functools.partial(write_unit, **arguments), pending)
    manifest = _collect(units, settings, tokenizer, output_dir)
    manifest.write(output_dir)
    print(f"{_summary(manifest)} in {output_dir}")
    if manifest.documents == 1:
        print(
            f"hint: all of it is one document by --input_format={settings.text_format.input_format}"
            "; are blank lines missing, or is it another format?"
        )
    return manifest


def create_reference_examples(
    *, output_dir: str, options: ExampleOptions, dupe_factor: int, settings: Settings, **arguments
) -> ReferenceManifest:
    """Writes segment records into OUTPUT_DIR/segments and, drawn from these, static examples.

    Args:
      dupe_factor: passes over the training segments, each with draws of its own.
      settings, arguments: as of `create_pretraining_data`, for the segments.

    Raises:
      ValueError: as `create_pretraining_data` does.
    """
    job_directory.claim(output_dir, {**dataclasses.asdict(options), "dupe_factor": dupe_factor})
    segments = create_pretraining_data(
        output_dir=os.path.join(output_dir, reference_job.SEGMENTS_DIR),
        settings=settings,
        **arguments,
    )
    return reference_job.draw_examples(
        segments,
        options,
        dupe_factor,
        settings.spm_model_file,
        output_dir,
        **{name: arguments[name] for name in ("runner", "num_workers", "beam_options")},
    )


def plan_units(sizes: dict[str, int], shard_bytes: int) -> list[Unit]:
    """Cuts files of the given sizes into ranges, and takes small ones together.

    A file becomes ranges of about equal, at most `shard_bytes`, bytes. Neighbours share a unit up
    to a 64th of the text, but not less than 4 MB, so that there is work for many workers.
    """
    enough = min(shard_bytes, max(sum(sizes.values()) // 64, _MIN_UNIT_BYTES))
    units: list[list[Range]] = []
    room = 0
    for path, size in sizes.items():
        count = -(-size // shard_bytes)
        if is_compressed(path):
            count = min(count, 1)
        bounds = [size * i // count for i in range(count + 1)] if count else []
        for begin, end in zip(bounds, bounds[1:]):
            if end - begin > room:
                units.append([])
                room = enough
            units[-1].append(Range(path, begin, end))
            room -= end - begin
    return [Unit(tuple(ranges), i, len(units)) for i, ranges in enumerate(units)]


def _identity(
    settings: Settings, tokenizer: AlbertTokenizer, sizes: dict[str, int], shard_bytes: int
) -> dict:
    """Returns what a directory of records must have in common with the job that goes on with it."""
    identity = dataclasses.asdict(settings)
    identity.update(settings.text_format.identity())
    del identity["text_format"]
    identity["spm_model_file"] = f"SHA-256 {tokenizer.sha256[:16]}"
    listing = hashlib.sha256(json.dumps(sizes).encode()).hexdigest()
    identity["input_file"] = (
        f"{len(sizes)} files of {sum(sizes.values())} bytes, names and sizes {listing[:8]}"
    )
    return {**identity, "shard_bytes": shard_bytes, "code_version": albert_tf.__version__}


def _forget_if_nothing_is_done(output_dir: str) -> None:
    """Lets a job whose input was mended after an error begin anew in the same directory."""
    if not tf.io.gfile.isdir(output_dir):
        return
    names = {name.rstrip("/") for name in tf.io.gfile.listdir(output_dir)}
    names = {name for name in names if ".partial-" not in name}
    # Nothing else may lie there: what is not surely ours is not removed.
    if names == {job_directory.RUN_FILE, UNITS_DIR}:
        units_dir = os.path.join(output_dir, UNITS_DIR)
        done = ("*.json", "*.hashes", "*.duplicates")
        if not tf.io.gfile.glob([os.path.join(units_dir, pattern) for pattern in done]):
            tf.io.gfile.rmtree(units_dir)
            tf.io.gfile.remove(os.path.join(output_dir, job_directory.RUN_FILE))
            remove_partial_files(output_dir)


def _collect(
    units: Sequence[Unit], settings: Settings, tokenizer: AlbertTokenizer, output_dir: str
) -> Manifest:
    """Makes the manifest of all units from their markers.

    Raises:
      ValueError: if they hold no text.
    """
    markers = []
    for unit in units:
        markers.append(files.read_json(os.path.join(output_dir, unit.file("json"))))
    totals = {name: sum(marker[name] for marker in markers) for name in COUNTS}
    if not totals["pieces"]:
        raise UserError(
            f"--input_file: no text in it (bad lines left out: {totals['skipped_lines']}); "
            f"expected what --help says of --input_format={settings.text_format.input_format}"
        )
    shards = {
        split: [Shard(**shard) for marker in markers for shard in marker["shards"][split]]
        for split in SPLITS
    }
    return SegmentManifest(
        max_seq_length=settings.max_seq_length,
        short_seq_prob=settings.short_seq_prob,
        heldout_fraction=settings.heldout_fraction,
        seed=settings.random_seed,
        vocab_sha256=tokenizer.sha256,
        vocab_size=tokenizer.vocab_size,
        do_lower_case=settings.do_lower_case,
        code_version=albert_tf.__version__,
        **totals,
        splits={split: Split(tuple(shards[split])) for split in SPLITS},
    )


def _print_plan(
    sizes: dict[str, int], units: Sequence[Unit], settings: Settings, tokenizer: AlbertTokenizer
) -> None:
    """Says in words what is about to be done, with an estimate from the first sentences."""
    pieces = examples = 0
    if units:
        first = corpus.read_documents(units[0].ranges[0].source, settings.text_format)
        sample = [text for _, (_, text) in zip(range(_SAMPLE_SENTENCES), first)]
        sample_bytes = sum(len(text.encode()) + 1 for text in sample)
        text_bytes = sum(
            size * (_GZIP_RATIO if is_compressed(path) else 1) for path, size in sizes.items()
        )
        pieces = sum(map(len, tokenizer.encode_batch(sample))) * text_bytes / max(sample_bytes, 1)
        longest = settings.max_seq_length - NUM_SPECIAL_PIECES
        mean = longest + settings.short_seq_prob * ((longest + 2) / 2 - longest)
        examples = pieces / mean
    print(
        f"""records of segments of up to {settings.max_seq_length} pieces
  text     {len(sizes):,} files, {sum(sizes.values()):,} bytes, in {len(units):,} ranges
  records  about {examples:,.0f} or more, {pieces:,.0f} pieces, \
{pieces * _BYTES_PER_PIECE / 1e6:,.1f} MB; {100 * settings.heldout_fraction:g} % of the \
documents are held out""",
        flush=True,
    )


def _summary(manifest: SegmentManifest) -> str:
    splits = [f"{manifest.splits[name].examples:,} {name}" for name in SPLITS]
    skipped, repeated = manifest.skipped_lines, manifest.duplicate_documents
    return (
        f"{' and '.join(splits)} segments of {manifest.documents:,} documents, "
        f"{manifest.pieces:,} pieces; {100 * manifest.share_with_order:.0f} % of the segments have "
        "two parts whose order can be asked"
        + (f" ({repeated:,} duplicates left out)" if repeated else "")
        + (f" ({skipped:,} bad lines left out)" if skipped else "")
    )


if __name__ == "__main__":
    define_flags()
    program.run(main)
