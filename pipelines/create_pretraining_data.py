r"""Tokenizes a corpus once, into the segment records that pre-training reads.

Input is UTF-8 text: one sentence per line, a blank line between documents; .gz files too. Every
piece of text is kept: a sentence that does not fit into a segment goes on in the next one. Masks
and sentence order are drawn later, anew at every epoch. A share of the documents is held out.

The work is cut into byte ranges, each of which becomes a pair of shards. The records depend on text
and settings alone, not on the number of workers. The same command goes on after a crash and does
no range twice. manifest.json, written last, says what there is.

Examples:
  python -m pipelines.create_pretraining_data --input_file='corpus/*.txt' \
      --spm_model_file=vocab/spiece.model --output_dir=records
  python -m pipelines.create_pretraining_data --input_file='gs://bucket/corpus/*.txt' \
      --spm_model_file=gs://bucket/spiece.model --output_dir=gs://bucket/records \
      --runner=DataflowRunner --beam_options='--project=me --temp_location=gs://bucket/tmp'
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import shlex
import threading
from collections.abc import Iterator, Sequence

import tensorflow as tf
from absl import flags

import albert_tf
from albert_tf import files, program
from albert_tf.tokenization import AlbertTokenizer
from pipelines.data import beam_job, corpus
from pipelines.data.records import MANIFEST_FILE, SPLITS, Manifest, Shard, Split
from pipelines.data.segments import NUM_SPECIAL_PIECES
from pipelines.data.shard_writer import (
    ERROR_FILE,
    UNITS_DIR,
    Settings,
    Unit,
    write_unit_or_error,
)
from pipelines.training.checkpointing import RUN_FILE, claim
from pipelines.training.progress import Progress

FLAGS = flags.FLAGS

# Measured on English novels: bytes of a record per piece; how much gzip makes of text.
_BYTES_PER_PIECE = 1.8
_GZIP_RATIO = 2.7
_SAMPLE_SENTENCES = 1000


def define_flags() -> None:
    """Defines the flags; not at import, as programs share the names of flags."""
    flags.DEFINE_string(
        "input_file", None, "Text files: globs or paths, comma between.", required=True
    )
    flags.DEFINE_string("output_dir", None, "Where the records go.", required=True)
    flags.DEFINE_string("spm_model_file", None, "The SentencePiece model.", required=True)
    flags.DEFINE_bool("do_lower_case", True, "Lower-case the text.")
    flags.DEFINE_integer("max_seq_length", 512, "Longest example, in pieces.", lower_bound=8)
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
        "shard_bytes", 64_000_000, "Bytes of text per shard; a .gz file is one.", lower_bound=1
    )
    flags.DEFINE_enum(
        "on_decode_error", "error", ["error", "skip"], "What to do with a line that is not UTF-8."
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
    create_pretraining_data(
        input_file=FLAGS.input_file,
        output_dir=FLAGS.output_dir,
        settings=Settings(
            **{field.name: FLAGS[field.name].value for field in dataclasses.fields(Settings)}
        ),
        shard_bytes=FLAGS.shard_bytes,
        runner=FLAGS.runner,
        num_workers=FLAGS.num_workers or os.cpu_count() or 1,
        beam_options=shlex.split(FLAGS.beam_options),
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
    sizes = {
        path: tf.io.gfile.stat(path).length for path in files.match_files(input_file, "input_file")
    }
    _forget_if_nothing_is_done(output_dir)
    claim(output_dir, _identity(settings, tokenizer, sizes, shard_bytes))
    if tf.io.gfile.exists(os.path.join(output_dir, MANIFEST_FILE)):
        manifest = Manifest.read(output_dir)
        print(f"finished before: {_summary(manifest)} in {output_dir}")
        return manifest
    units = plan_units(sizes, shard_bytes)
    _remove_leftovers(output_dir)
    _print_plan(sizes, units, settings, tokenizer)
    done = _finished(units, output_dir)
    if pending := [unit for unit in units if unit not in done]:
        write = functools.partial(write_unit_or_error, settings=settings, output_dir=output_dir)
        with _progress(units, output_dir):
            beam_job.run(write, pending, runner, num_workers, beam_options)
    error_file = os.path.join(output_dir, ERROR_FILE)
    if tf.io.gfile.exists(error_file):
        with tf.io.gfile.GFile(error_file) as file:
            raise ValueError(file.read())
    manifest = _collect(units, settings, tokenizer, output_dir)
    manifest.write(output_dir)
    print(f"{_summary(manifest)} in {output_dir}")
    return manifest


def plan_units(sizes: dict[str, int], shard_bytes: int) -> list[Unit]:
    """Cuts files of the given sizes into ranges of about equal, at most `shard_bytes`, bytes."""
    ranges = []
    for path, size in sizes.items():
        count = -(-size // shard_bytes)
        if corpus.is_compressed(path):
            count = min(count, 1)
        bounds = [size * i // count for i in range(count + 1)] if count else []
        ranges.extend((path, begin, end) for begin, end in zip(bounds, bounds[1:]))
    return [Unit(*where, index=i, count=len(ranges)) for i, where in enumerate(ranges)]


def _identity(
    settings: Settings, tokenizer: AlbertTokenizer, sizes: dict[str, int], shard_bytes: int
) -> dict:
    """Returns what a directory of records must have in common with the job that goes on with it."""
    identity = dataclasses.asdict(settings)
    # What it changes comes to light at the first bad line: until then one may change one's mind.
    del identity["on_decode_error"]
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
    if names == {RUN_FILE, UNITS_DIR}:
        units_dir = os.path.join(output_dir, UNITS_DIR)
        if not tf.io.gfile.glob(os.path.join(units_dir, "*.json")):
            tf.io.gfile.rmtree(units_dir)
            tf.io.gfile.remove(os.path.join(output_dir, RUN_FILE))
            _remove_partial_files(output_dir)


def _remove_partial_files(directory: str) -> None:
    for name in tf.io.gfile.listdir(directory):
        if ".partial-" in name:
            tf.io.gfile.remove(os.path.join(directory, name))


def _remove_leftovers(output_dir: str) -> None:
    """Removes what runs that ended early left half done, and their error."""
    tf.io.gfile.makedirs(os.path.join(output_dir, UNITS_DIR))
    for directory in (output_dir, os.path.join(output_dir, UNITS_DIR)):
        _remove_partial_files(directory)
    error_file = os.path.join(output_dir, ERROR_FILE)
    if tf.io.gfile.exists(error_file):
        tf.io.gfile.remove(error_file)


def _finished(units: Sequence[Unit], output_dir: str) -> set[Unit]:
    names = set(tf.io.gfile.listdir(os.path.join(output_dir, UNITS_DIR)))
    return {unit for unit in units if os.path.basename(unit.marker) in names}


@contextlib.contextmanager
def _progress(units: Sequence[Unit], output_dir: str) -> Iterator[None]:
    """Reports, from a thread, how much of the text is in finished units: on any runner."""

    def finished() -> tuple[int, str]:
        done = _finished(units, output_dir)
        detail = f"{len(done)} of {len(units)} shards"
        return sum(unit.end - unit.begin for unit in done), detail

    def watch() -> None:
        while not stop.wait(1.0):
            done, detail = finished()
            if done < total:
                progress.update(done, detail)

    total = sum(unit.end - unit.begin for unit in units)
    stop = threading.Event()
    with Progress("writing records", total, done=finished()[0], unit="byte") as progress:
        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            stop.set()
            watcher.join()
            progress.update(*finished())


def _collect(
    units: Sequence[Unit], settings: Settings, tokenizer: AlbertTokenizer, output_dir: str
) -> Manifest:
    """Makes the manifest of all units from their markers.

    Raises:
      ValueError: if they hold no text.
    """
    markers = []
    for unit in units:
        with tf.io.gfile.GFile(os.path.join(output_dir, unit.marker)) as file:
            markers.append(json.loads(file.read()))
    totals = {
        name: sum(marker[name] for marker in markers)
        for name in ("documents", "sentences", "pieces", "skipped_lines")
    }
    if not totals["pieces"]:
        raise ValueError(
            f"--input_file: no text in it (lines that are not UTF-8: {totals['skipped_lines']}); "
            "expected one sentence per line and a blank line between documents"
        )
    shards = {
        split: [Shard(**marker["shards"][split]) for marker in markers if split in marker["shards"]]
        for split in SPLITS
    }
    return Manifest(
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
        first = corpus.read_documents(units[0].source, on_decode_error=settings.on_decode_error)
        sample = [text for _, (_, text) in zip(range(_SAMPLE_SENTENCES), first)]
        sample_bytes = sum(len(text.encode()) + 1 for text in sample)
        text_bytes = sum(
            size * (_GZIP_RATIO if corpus.is_compressed(path) else 1)
            for path, size in sizes.items()
        )
        pieces = sum(map(len, tokenizer.encode_batch(sample))) * text_bytes / max(sample_bytes, 1)
        longest = settings.max_seq_length - NUM_SPECIAL_PIECES
        mean = longest + settings.short_seq_prob * ((longest + 2) / 2 - longest)
        examples = pieces / mean
    print(
        f"""records of segments of up to {settings.max_seq_length} pieces
  text     {len(sizes):,} files, {sum(sizes.values()):,} bytes, in {len(units):,} shards
  records  about {examples:,.0f} or more, {pieces:,.0f} pieces, \
{pieces * _BYTES_PER_PIECE / 1e6:,.1f} MB; {100 * settings.heldout_fraction:g} % of the \
documents are held out""",
        flush=True,
    )


def _summary(manifest: Manifest) -> str:
    splits = [f"{manifest.splits[name].examples:,} {name}" for name in SPLITS]
    skipped = manifest.skipped_lines
    return (
        f"{' and '.join(splits)} segments of {manifest.documents:,} documents, "
        f"{manifest.pieces:,} pieces"
        + (f" ({skipped:,} lines that are not UTF-8 left out)" if skipped else "")
    )


if __name__ == "__main__":
    define_flags()
    program.run(main)
