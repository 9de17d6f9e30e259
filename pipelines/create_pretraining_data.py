r"""Tokenizes a corpus once, into the segment records that pre-training reads.

Input is UTF-8 text. --input_format sets how it holds documents; by default one sentence per line, a
blank line between documents. .gz, .bz2, .xz and .zst files are decompressed. No text is lost: a
sentence that does not fit into a segment opens the next one; only one longer than any segment is
cut. Masks and sentence order are drawn anew at every epoch. A share of the documents is held out.
--remove_duplicates skips documents whose letters and digits are those of an earlier one.

The work is cut into byte ranges, and small files share a unit of work. Each unit becomes a pair of
shards, or more if it is a big compressed file. The records depend on text and settings only, not on
the number of workers. After a crash, the same command resumes and repeats no finished unit.
manifest.json, written last, lists the shards and their counts.

--format=reference draws masked examples from the segments, in the format of the reference's own
create_pretraining_data.py, for other code that reads it. The segments are in OUTPUT_DIR/segments.

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
import os
from collections.abc import Sequence

from absl import flags

import albert_tf
from albert_tf import files, job_directory, program
from albert_tf.errors import UserError
from albert_tf.packing import NUM_SPECIAL_PIECES
from albert_tf.tokenization import AlbertTokenizer
from pipelines.data import beam_job, corpus, reference_job, unit_job
from pipelines.data.duplicates import find_duplicates, hash_ranges
from pipelines.data.examples import DRAWS, ExampleOptions, define_example_flags, options_from
from pipelines.data.records import Manifest, ReferenceManifest, SegmentManifest, make_splits
from pipelines.data.shard_writer import COUNTS, Range, Settings, TextUnit, hash_unit, write_unit
from pipelines.data.text_files import is_compressed
from pipelines.data.vocabulary_settings import resolve_lower_case

FLAGS = flags.FLAGS

# Measured on English novels: bytes of a record per piece; how much gzip makes of text.
_BYTES_PER_PIECE = 1.8
_GZIP_RATIO = 2.7
_SAMPLE_SENTENCES = 1000
# Small files share a unit of up to so many bytes, or more.
_MIN_UNIT_BYTES = 4_000_000


def define_flags() -> None:
    """Defines the flags; not at import, as programs share the names of flags."""
    corpus.define_flags()
    flags.DEFINE_string("output_dir", None, "Where the records go.", required=True)
    flags.DEFINE_string(
        "spm_model_file",
        None,
        "Vocabulary: a SentencePiece model, or WordPiece's vocab.txt.",
        required=True,
    )
    flags.DEFINE_bool(
        "do_lower_case", None, "Lower-case the text. Default: as the vocabulary was trained."
    )
    program.define_max_seq_length(default=512)
    flags.DEFINE_enum(
        "format",
        "segments",
        ["segments", "reference"],
        "segments: masks are drawn in training; reference: the reference's masked examples.",
    )
    flags.DEFINE_integer(
        "dupe_factor",
        10,
        "With --format=reference: masked copies of each training segment. The reference's 40 need "
        "four times the disk space; its users found 10 sufficient.",
        lower_bound=1,
    )
    define_example_flags()
    _define_segment_flags()
    flags.DEFINE_integer(
        "shard_bytes",
        64_000_000,
        "Bytes of text in a unit of work; a compressed file is never split.",
        lower_bound=1,
    )
    flags.DEFINE_bool(
        "remove_duplicates",
        False,
        "Leave out documents that differ from an earlier one in case, spacing, punctuation only.",
    )
    beam_job.define_flags()


def _define_segment_flags() -> None:
    """Defines the flags of what segments a document becomes, and which documents are held out."""
    flags.DEFINE_float(
        "short_seq_prob",
        0.1,
        "Share of segments that are made shorter.",
        lower_bound=0,
        upper_bound=1,
    )
    flags.DEFINE_integer(
        "max_sentences",
        None,
        "Most sentences in a segment. 2: segments are pairs of sentences, and most have an order "
        "label if --max_seq_length has room for two. Default: as many as fit.",
        lower_bound=2,
    )
    flags.DEFINE_bool(
        "shuffle_sentences",
        False,
        "Shuffle the sentences of each document: the control for figures of sentence order, which "
        "must then be at chance. The same documents are held out. Each document must fit into "
        "memory.",
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


def main(_) -> None:
    """Reads the flags."""
    beam_job.prepare_environment()
    settings = {
        f.name: FLAGS[f.name].value for f in dataclasses.fields(Settings) if f.name in FLAGS
    }
    settings["do_lower_case"] = resolve_lower_case(FLAGS.spm_model_file, FLAGS.do_lower_case)
    settings["text_format"] = corpus.text_format_of(FLAGS)
    with job_directory.lock(FLAGS.output_dir):
        create = create_pretraining_data
        if FLAGS.format == "reference":
            drawn_with = {"options": options_from(FLAGS), "dupe_factor": FLAGS.dupe_factor}
            create = functools.partial(create_reference_examples, **drawn_with)
        create(
            input_file=FLAGS.input_file,
            output_dir=FLAGS.output_dir,
            settings=Settings(**settings),
            shard_bytes=FLAGS.shard_bytes,
            **beam_job.workers_from(FLAGS),
        )


def create_pretraining_data(
    *,
    input_file: str,
    output_dir: str,
    settings: Settings,
    shard_bytes: int = 64_000_000,
    **workers,
) -> Manifest:
    """Writes the records of a corpus, or those that an earlier run did not write.

    Args:
      workers: `runner`, `num_workers` and `beam_options` of beam_job.run.

    Raises:
      ValueError: if there is no text or it cannot be read, or `output_dir` holds records of other
        settings or other text.
    """
    tokenizer = AlbertTokenizer(settings.spm_model_file, settings.do_lower_case)
    sizes = files.sizes(files.match_files(input_file, "input_file"))
    unit_job.claim(output_dir, _identity(settings, tokenizer, sizes, shard_bytes))
    if manifest := Manifest.read_finished(output_dir):
        return manifest
    units = plan_units(sizes, shard_bytes)
    _print_plan(sizes, units, settings, tokenizer)
    write = functools.partial(write_unit, settings=settings, output_dir=output_dir)
    if settings.remove_duplicates and units:
        found = _find_duplicates(units, settings, output_dir, workers)
        write = functools.partial(write, duplicates_files=found)
    unit_job.run_units("writing records", write, units, output_dir, **workers)
    manifest = _collect(units, settings, tokenizer, output_dir)
    manifest.write(output_dir)
    print(f"{manifest.summary()} in {output_dir}")
    if settings.heldout_fraction and not manifest.splits["heldout"].examples:
        print(
            "hint: none of the few documents is held out; evaluation needs some: write the records "
            "again with a larger --heldout_fraction"
        )
    if manifest.documents == 1:
        print(
            f"hint: all of it is one document by --input_format={settings.text_format.input_format}"
            "; are blank lines missing, or is it another format?"
        )
    return manifest


def create_reference_examples(
    *,
    input_file: str,
    output_dir: str,
    settings: Settings,
    options: ExampleOptions,
    dupe_factor: int,
    shard_bytes: int = 64_000_000,
    **workers,
) -> ReferenceManifest:
    """Writes segment records into OUTPUT_DIR/segments and, drawn from these, static examples.

    Args:
      dupe_factor: passes over the training segments, each with draws of its own.
      settings, shard_bytes, workers: as of `create_pretraining_data`.

    Raises:
      ValueError: as `create_pretraining_data` does.
    """
    job_directory.claim(output_dir, {**dataclasses.asdict(options), "dupe_factor": dupe_factor})
    segments = create_pretraining_data(
        input_file=input_file,
        output_dir=os.path.join(output_dir, reference_job.SEGMENTS_DIR),
        settings=settings,
        shard_bytes=shard_bytes,
        **workers,
    )
    return reference_job.draw_examples(
        segments, options, dupe_factor, settings.spm_model_file, output_dir, **workers
    )


def plan_units(sizes: dict[str, int], shard_bytes: int) -> list[TextUnit]:
    """Cuts files of the given sizes into ranges, and puts small ones into one unit.

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
    return [TextUnit(tuple(ranges), i, len(units)) for i, ranges in enumerate(units)]


def _find_duplicates(
    units: Sequence[TextUnit], settings: Settings, output_dir: str, workers: dict
) -> list[str]:
    """Writes which documents of the units are duplicates; returns the files that list them."""
    work = functools.partial(hash_unit, settings=settings, output_dir=output_dir)
    unit_job.run_units("looking for duplicates", work, units, output_dir, "hashes", **workers)
    hash_files = [os.path.join(output_dir, unit.file("hashes")) for unit in units]
    ranges = hash_ranges(hash_files)
    work = functools.partial(find_duplicates, hash_files=hash_files, output_dir=output_dir)
    unit_job.run_units("comparing hashes", work, ranges, output_dir, "duplicates", **workers)
    return [os.path.join(output_dir, hashes.file("duplicates")) for hashes in ranges]


def _identity(
    settings: Settings, tokenizer: AlbertTokenizer, sizes: dict[str, int], shard_bytes: int
) -> dict:
    """Returns the settings that a job must have to resume in a directory of records."""
    identity = dataclasses.asdict(settings)
    identity.update(settings.text_format.identity())
    del identity["text_format"]
    identity["spm_model_file"] = f"SHA-256 {tokenizer.sha256[:16]}"
    identity["input_file"] = job_directory.describe_files(sizes, sizes)
    # Half of a set of records must not come from other code than the rest.
    versions = {"code_version": albert_tf.__version__, "draws": DRAWS}
    return {**identity, "shard_bytes": shard_bytes, **versions}


def _collect(
    units: Sequence[TextUnit], settings: Settings, tokenizer: AlbertTokenizer, output_dir: str
) -> Manifest:
    """Makes the manifest of all units from their markers.

    Raises:
      ValueError: if they hold no text.
    """
    markers = unit_job.read_markers(units, output_dir)
    totals = {name: sum(marker[name] for marker in markers) for name in COUNTS}
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
        do_lower_case=settings.do_lower_case,
        code_version=albert_tf.__version__,
        **totals,
        splits=make_splits(marker["shards"] for marker in markers),
    )


def _print_plan(
    sizes: dict[str, int], units: Sequence[TextUnit], settings: Settings, tokenizer: AlbertTokenizer
) -> None:
    """Prints what the job is about to do, with an estimate from the first sentences."""
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


if __name__ == "__main__":
    define_flags()
    program.run(main)
