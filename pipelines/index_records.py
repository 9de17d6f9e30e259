r"""Makes the reference's static examples ready for training: checks them once, where they lie.

Reads TFRecord files of google-research/ALBERT's create_pretraining_data.py (BERT's are the same but
for the labels: --sentence_objective=nsp) and checks every record: features, lengths, pieces within
the vocabulary, a [CLS] at the front, masks that fit. Then writes OUTPUT_DIR/manifest.json, which
makes OUTPUT_DIR a --record_dir of pretrain and evaluate. The files are neither copied nor changed,
and must stay where they are. After a crash, the same command resumes and checks no file twice.

Examples:
  python -m pipelines.index_records --input_file='ref/*.tfrecord' --spm_model_file=30k-clean.model \
      --output_dir=indexed
  python -m pipelines.index_records --input_file='ref/train*' --heldout_file='ref/dev*' \
      --spm_model_file=30k-clean.model --output_dir=indexed
"""

from __future__ import annotations

import array
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf
from absl import flags

import albert_tf
from albert_tf import files, job_directory, program
from albert_tf.errors import UserError
from albert_tf.progress import Progress
from albert_tf.tokenization import AlbertTokenizer
from pipelines.data.records import (
    MANIFEST_FILE,
    SPLITS,
    Manifest,
    ReferenceManifest,
    Shard,
    Split,
    shard_layout,
)
from pipelines.data.reference_examples import check_examples, example_lengths
from pipelines.data.sentence_pairs import SENTENCE_OBJECTIVES

FLAGS = flags.FLAGS

# Records that are checked in one call.
_BATCH = 256


def define_flags() -> None:
    """Defines the flags; not at import, as programs share the names of flags."""
    flags.DEFINE_string(
        "input_file", None, "TFRecord files: globs or paths, comma between.", required=True
    )
    flags.DEFINE_string(
        "heldout_file",
        None,
        "TFRecord files for evaluation (paths or globs, comma-separated). Files that --input_file "
        "also matches are not trained on.",
    )
    flags.DEFINE_string("output_dir", None, "Where the manifest goes.", required=True)
    flags.DEFINE_string("spm_model_file", None, "The records' SentencePiece model.", required=True)
    flags.DEFINE_bool("do_lower_case", True, "Whether their text was lower-cased.")
    flags.DEFINE_enum(
        "sentence_objective",
        "sop",
        SENTENCE_OBJECTIVES,
        "What their labels tell; nsp if they were made with --random_next_sentence.",
    )


def main(_) -> None:
    """Reads the flags."""
    with job_directory.lock(FLAGS.output_dir):
        index_records(
            input_file=FLAGS.input_file,
            heldout_file=FLAGS.heldout_file,
            output_dir=FLAGS.output_dir,
            spm_model_file=FLAGS.spm_model_file,
            do_lower_case=FLAGS.do_lower_case,
            sentence_objective=FLAGS.sentence_objective,
        )


def index_records(
    *,
    input_file: str,
    output_dir: str,
    spm_model_file: str,
    heldout_file: str | None = None,
    do_lower_case: bool = True,
    sentence_objective: str = "sop",
) -> ReferenceManifest:
    """Checks static examples and writes the manifest that training reads.

    Raises:
      ValueError: if a file or record is broken or does not suit the vocabulary, or `output_dir`
        holds something else.
    """
    tokenizer = AlbertTokenizer(spm_model_file, do_lower_case)
    heldout = files.match_files(heldout_file, "heldout_file") if heldout_file else []
    kept_out = {files.absolute(path) for path in heldout}
    train = [
        path
        for path in files.match_files(input_file, "input_file")
        if files.absolute(path) not in kept_out
    ]
    if not train:
        raise UserError("--heldout_file names every file of --input_file: leave some to train on")
    splits = [*(("train", path) for path in train), *(("heldout", path) for path in heldout)]
    sizes = files.sizes([path for _, path in splits])
    listing = json.dumps([[split, path, sizes[path]] for split, path in splits])
    job_directory.claim(
        output_dir,
        {
            "input_file": f"{len(splits)} files of {sum(sizes.values())} bytes, names and sizes "
            f"{hashlib.sha256(listing.encode()).hexdigest()[:8]}",
            "spm_model_file": f"SHA-256 {tokenizer.sha256[:16]}",
            "do_lower_case": do_lower_case,
            "sentence_objective": sentence_objective,
            "code_version": albert_tf.__version__,
        },
    )
    if tf.io.gfile.exists(os.path.join(output_dir, MANIFEST_FILE)):
        print(f"finished before: {output_dir}")
        return Manifest.read(output_dir)
    lengths = None
    shards: dict[str, list[Shard]] = {split: [] for split in SPLITS}
    done = 0
    with Progress("checking records", sum(sizes.values()), unit="byte") as progress:
        for index, (split, path) in enumerate(splits):
            marker = os.path.join(output_dir, "units", f"{index:05d}-of-{len(splits):05d}.json")
            if tf.io.gfile.exists(marker):
                result = files.read_json(marker)
            else:
                result = check_file(
                    path, tokenizer, lengths, lambda n, d=done: progress.update(d + n)
                )
                files.write_atomically(marker, json.dumps(result, ensure_ascii=False) + "\n")
            done += sizes[path]
            progress.update(done, f"{index + 1} of {len(splits)} files")
            if result["shard"]["examples"]:
                lengths = result["lengths"]
                shards[split].append(Shard(**result["shard"]))
            else:
                print(f"{path}: holds no record, left out")
    if not shards["train"]:
        raise UserError(f"--input_file={input_file}: no record in any of {len(train)} files")
    manifest = ReferenceManifest(
        max_seq_length=lengths[0],
        max_predictions_per_seq=lengths[1],
        sentence_objective=sentence_objective,
        vocab_sha256=tokenizer.sha256,
        vocab_size=tokenizer.vocab_size,
        do_lower_case=do_lower_case,
        code_version=albert_tf.__version__,
        drawn_with={},
        splits={split: Split(tuple(shards[split])) for split in SPLITS},
    )
    manifest.write(output_dir)
    counts = " and ".join(f"{manifest.splits[split].examples:,} {split}" for split in SPLITS)
    print(
        f"{counts} static examples of {lengths[0]} pieces and up to {lengths[1]} predictions: "
        f"--record_dir={output_dir} --max_seq_length={lengths[0]} "
        f"--max_predictions_per_seq={lengths[1]}"
    )
    return manifest


def check_file(
    path: str,
    tokenizer: AlbertTokenizer,
    lengths: Sequence[int] | None,
    report: Callable[[int], None] = lambda done: None,
) -> dict:
    """Looks through a file of static examples.

    Args:
      lengths: L and P of the files before it; None: the first record's.
      report: is told how many bytes are done.

    Returns:
      "lengths", and "shard" with the fields of a Shard.

    Raises:
      ValueError: if a record is broken, with the number of the record, from 1 on.
    """
    pieces = done = 0
    record_bytes = array.array("q")
    for batch in _batches(path):
        if lengths is None:
            lengths = example_lengths(batch[0])
        batch_pieces, fault = check_examples(batch, lengths, tokenizer)
        if fault:
            index, problem = fault
            raise UserError(
                f"{path}: record {len(record_bytes) + index + 1}: {problem}; expected static "
                "examples of the reference's create_pretraining_data.py, all of one length, made "
                "with this vocabulary: leave the file out, or make it anew"
            )
        pieces += batch_pieces
        record_bytes.extend(map(len, batch))
        done += sum(map(len, batch))
        report(done)
    shard = {
        "file": path if "://" in path else os.path.abspath(path),
        "source": os.path.basename(path),
        "pieces": pieces,
        "sha256": files.sha256(path),
        **shard_layout(record_bytes),
    }
    return {"lengths": lengths, "shard": shard}


def _batches(path: str) -> Iterator[list[bytes]]:
    """Yields the records of a file.

    Raises:
      ValueError: if it is none of TFRecords, or cut or damaged; the records before it come first.
    """
    batch: list[bytes] = []
    number = 0
    try:
        for record in tf.data.TFRecordDataset(path).as_numpy_iterator():
            number += 1
            batch.append(record)
            if len(batch) == _BATCH:
                yield batch
                batch = []
    except tf.errors.DataLossError as error:
        if batch:
            yield batch
        reason = str(error).split("{{")[-1].split("}}")[-1].strip() or str(error)
        raise UserError(
            f"{path}: record {number + 1}: cut or damaged, or no uncompressed TFRecord "
            f"({reason.split(' [Op:')[0]}): fetch the file again, or leave it out"
        ) from None
    if batch:
        yield batch


if __name__ == "__main__":
    define_flags()
    program.run(main)
