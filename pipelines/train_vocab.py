"""Trains the SentencePiece vocabulary of a new ALBERT on your own text.

Input: UTF-8 text files (.gz too), one sentence per line, blank lines between documents. Output:
PREFIX.model, PREFIX.vocab (the same for reading) and PREFIX.json (the settings). The text is
prepared exactly as the tokenizer will prepare it. A finished vocabulary is not trained again.

Examples:
  python -m pipelines.train_vocab --input_file='corpus/*.txt' --output_prefix=vocabulary/30k
  python -m pipelines.train_vocab --input_file=korean.txt --output_prefix=ko --do_lower_case=false
"""

from __future__ import annotations

import io
import json
import os
import random
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator

import sentencepiece
import tensorflow as tf
from absl import flags

from albert_tf import files, program
from albert_tf.tokenization import CLS, MASK, PAD, SEP, UNK, preprocess
from pipelines.data import corpus
from pipelines.training.progress import duration

FLAGS = flags.FLAGS


def define_flags() -> None:
    """Defines the flags; not at import, as programs share the names of flags."""
    flags.DEFINE_list("input_file", None, "Text files or globs.", required=True)
    flags.DEFINE_string("output_prefix", None, "Where PREFIX.model will be.", required=True)
    flags.DEFINE_integer("vocab_size", 30_000, "Number of pieces.", lower_bound=16)
    flags.DEFINE_enum("model_type", "unigram", ["unigram", "bpe"], "Kind of SentencePiece model.")
    flags.DEFINE_float(
        "character_coverage",
        0.99995,
        "Share of the text's characters that get a piece; the rarest others become <unk>.",
        lower_bound=0.9,
        upper_bound=1.0,
    )
    flags.DEFINE_integer(
        "input_sentence_size",
        10_000_000,
        "Sentences to draw from a larger corpus.",
        lower_bound=101,
    )
    flags.DEFINE_bool("do_lower_case", True, "Lower-case the text.")
    flags.DEFINE_bool("byte_fallback", False, "Spell unknown characters in bytes: no <unk>.")
    flags.DEFINE_enum(
        "on_decode_error", "error", ["error", "skip"], "What to do with broken lines."
    )


# Source: the reference's README, "SentencePiece": ids 0 to 12.
_SPECIAL_PIECES = {
    "pad_id": 0,
    "unk_id": 1,
    "bos_id": -1,
    "eos_id": -1,
    "pad_piece": PAD,
    "unk_piece": UNK,
    "control_symbols": [CLS, SEP, MASK],
    "user_defined_symbols": ["(", ")", '"', "-", ".", "–", "£", "€"],
}
# A longer line would be left out without a word; SentencePiece's own limit is 4,192 bytes.
_MAX_SENTENCE_BYTES = 1 << 22
_SAMPLE_LINES = 20_000
_SECONDS_BETWEEN_LINES = 10


def main(_) -> None:
    """Reads the flags."""
    train_vocab(
        input_files=files.match_files(FLAGS.input_file, "input_file"),
        output_prefix=FLAGS.output_prefix,
        settings={
            "vocab_size": FLAGS.vocab_size,
            "model_type": FLAGS.model_type,
            "character_coverage": FLAGS.character_coverage,
            "input_sentence_size": FLAGS.input_sentence_size,
            "do_lower_case": FLAGS.do_lower_case,
            "byte_fallback": FLAGS.byte_fallback,
            "on_decode_error": FLAGS.on_decode_error,
        },
    )


def train_vocab(input_files: list[str], output_prefix: str, settings: dict) -> None:
    """Trains and writes a vocabulary, unless the same one is there already.

    Args:
      input_files: the text.
      output_prefix: PREFIX of the three files.
      settings: the other flags by name.

    Raises:
      ValueError: if another vocabulary is there, the text is empty or not UTF-8, or the vocabulary
        size does not fit the text.
    """
    sizes = {path: tf.io.gfile.stat(path).length for path in input_files}
    provenance = {"settings": settings, "input_bytes": sizes}
    if _is_done(output_prefix, provenance):
        print(f"{output_prefix}.model is there already, made of the same text: nothing to do")
        return
    print(
        f"vocabulary: {settings['vocab_size']:,} {settings['model_type']} pieces, "
        f"{'lower-cased' if settings['do_lower_case'] else 'cased'}, from {len(sizes):,} "
        f"file(s) of {sum(sizes.values()) / 1e6:,.1f} MB -> {output_prefix}.model",
        flush=True,
    )
    text = _Text(input_files, settings)
    model = _train(text, settings)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    pieces = range(processor.vocab_size())
    listing = "".join(f"{processor.id_to_piece(i)}\t{processor.get_score(i):g}\n" for i in pieces)
    files.write_atomically(f"{output_prefix}.vocab", listing)
    files.write_atomically(f"{output_prefix}.json", json.dumps(provenance, indent=1) + "\n")
    files.write_atomically(f"{output_prefix}.model", model)  # last: it says that all is done
    print(report(processor, text.sample))


def _is_done(output_prefix: str, provenance: dict) -> bool:
    if not tf.io.gfile.exists(f"{output_prefix}.model"):
        return False
    found = None
    if tf.io.gfile.exists(f"{output_prefix}.json"):
        found = files.read_json(f"{output_prefix}.json")
    if found == provenance:
        return True
    if found is None:
        difference = f"{output_prefix}.json, which would say how it was made, is missing"
    elif found["input_bytes"] != provenance["input_bytes"]:
        difference = "it was made of other input files"
    else:
        difference = "it was made with " + ", ".join(
            f"--{name}={value}"
            for name, value in found["settings"].items()
            if value != provenance["settings"].get(name)
        )
    raise ValueError(
        f"{output_prefix}.model is there already, but {difference}: delete it or choose another "
        "--output_prefix"
    )


class _Text:
    """Iterates over the prepared sentences; keeps count of them, a sample, and what went wrong.

    SentencePiece may turn an error raised in here into a RuntimeError: `error` keeps the true one.
    """

    def __init__(self, input_files: list[str], settings: dict):
        self._files, self._settings = input_files, settings
        self.counts = Counter()
        self.sample: list[str] = []
        self.error: BaseException | None = None
        self.is_read = False

    def __iter__(self) -> Iterator[str]:
        rng = random.Random(0)
        try:
            for line in self._lines():
                if text := preprocess(line, self._settings["do_lower_case"]):
                    # Each sentence so far is in the sample with the same probability.
                    if len(self.sample) < _SAMPLE_LINES:
                        self.sample.append(text)
                    elif (place := rng.randrange(self.counts["sentences"] + 1)) < _SAMPLE_LINES:
                        self.sample[place] = text
                    self.counts["sentences"] += 1
                    yield text
        except BaseException as error:
            self.error = error
            raise
        self.is_read = True

    def _lines(self) -> Iterator[str]:
        for path in self._files:
            yield from corpus.read_lines(path, self._settings["on_decode_error"], self.counts)


def _train(text: _Text, settings: dict) -> bytes:
    """Returns the bytes of a SentencePiece model."""
    model = io.BytesIO()
    errors = []

    def train() -> None:
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(text),
                model_writer=model,
                minloglevel=2,
                max_sentence_length=_MAX_SENTENCE_BYTES,
                shuffle_input_sentence=True,  # draws with a seed of its own, always the same
                **_SPECIAL_PIECES,
                **{
                    name: settings[name]
                    for name in (
                        "vocab_size",
                        "model_type",
                        "character_coverage",
                        "input_sentence_size",
                        "byte_fallback",
                    )
                },
            )
        except Exception as error:
            errors.append(error)

    # In a thread: it takes minutes, in which this one says so and hears Ctrl-C.
    thread = threading.Thread(target=train, daemon=True)
    started = time.monotonic()
    thread.start()
    try:
        while thread.is_alive():
            thread.join(_SECONDS_BETWEEN_LINES)
            if thread.is_alive():
                stage = "trains on" if text.is_read else "has read"
                seconds = duration(time.monotonic() - started)
                print(
                    f"{stage} {text.counts['sentences']:,} sentences, {seconds} so far", flush=True
                )
    except KeyboardInterrupt:
        print("\ninterrupted; nothing is written", file=sys.stderr, flush=True)
        os._exit(130)  # SentencePiece's own threads would abort an orderly exit
    if text.counts["skipped_lines"]:
        print(f"left out {text.counts['skipped_lines']:,} lines that are not UTF-8")
    if text.error is not None:
        raise text.error
    if not text.counts["sentences"]:
        raise ValueError("--input_file: the files hold no text, only blank lines")
    if errors and isinstance(errors[0], RuntimeError):
        raise ValueError(_explain(str(errors[0]))) from errors[0]
    if errors:
        raise errors[0]
    return model.getvalue()


def _explain(message: str) -> str:
    """Words SentencePiece's error for the user."""
    if found := re.search(r"size too high .*<= (\d+)", message):
        return (
            f"--vocab_size is too large for this text: at most {found[1]} pieces can be made of "
            "it; lower --vocab_size or give more text"
        )
    if found := re.search(r"required_chars\. \d+ vs (\d+)", message):
        return (
            f"--vocab_size is too small for this text: its characters alone need {found[1]} "
            "pieces; raise --vocab_size or lower --character_coverage"
        )
    return f"SentencePiece could not train: {message}"


def report(processor: sentencepiece.SentencePieceProcessor, sample: Iterable[str]) -> str:
    """Returns a few lines on how a vocabulary fits prepared text."""
    sample = list(sample)
    num_words = sum(text.count(" ") + 1 for text in sample)
    num_pieces, unknown = 0, Counter()
    for text in sample:
        ids = processor.encode(text)
        num_pieces += len(ids)
        if processor.unk_id() in ids:
            pieces = processor.encode(text, out_type=str)
            unknown.update(p for p, i in zip(pieces, ids) if i == processor.unk_id())
    lines = [
        f"{processor.vocab_size():,} pieces; on {len(sample):,} lines of the text: "
        f"{num_pieces / num_words:.2f} pieces per word, "
        f"{100 * sum(unknown.values()) / max(num_pieces, 1):.4f} % <unk>"
    ]
    if unknown:
        most = ", ".join(f"{piece!r} {count:,}" for piece, count in unknown.most_common(8))
        lines.append(f"most frequent among <unk>: {most}")
    quotes = sum(count for piece, count in unknown.items() if set(piece) & set("“”‘’"))
    if quotes > len(sample) / 100:
        lines.append(
            "hint: curly quotes are unknown to this vocabulary: write them straight (\" and ') in "
            "the corpus, or raise --character_coverage"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    define_flags()
    program.run(main)
