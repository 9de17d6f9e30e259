"""Trains the SentencePiece vocabulary of a new ALBERT on your own text.

The outputs are PREFIX.model, PREFIX.vocab (the pieces as text) and PREFIX.json (settings that
create_pretraining_data reads). A report shows how well the vocabulary fits lines that were held out
of training. If there are fewer than about 10,000 lines, the report uses the training text. An
existing vocabulary is not trained again.

Examples:
  python -m pipelines.train_vocab --input_file='corpus/*.txt' --output_prefix=vocabulary/30k
  python -m pipelines.train_vocab --input_file=japanese.txt --output_prefix=ja --keep_accents
"""

import dataclasses
import io
import os
import random
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import sentencepiece
import tensorflow as tf
from absl import flags

from albert_tf.jobs import job_directory, program
from albert_tf.jobs.settings import define_settings_flags, setting, settings_from_flags
from albert_tf.storage import files
from albert_tf.storage.errors import UserError
from albert_tf.storage.progress import duration
from albert_tf.text import model_normalizer
from albert_tf.text.settings import TextSettings, preprocess, settings_path
from albert_tf.text.tokenization import CLS, MASK, PAD, SEP, UNK
from .data import corpus, vocabulary_report

FLAGS = flags.FLAGS


@dataclasses.dataclass(frozen=True)
class VocabularySettings:
    """Settings of a vocabulary, except the text and its format."""

    vocab_size: int = setting(flags.DEFINE_integer, "Number of pieces.", 30_000, lower_bound=16)
    model_type: str = setting(
        flags.DEFINE_enum,
        "Type of SentencePiece model.",
        "unigram",
        enum_values=["unigram", "bpe"],
    )
    character_coverage: float = setting(
        flags.DEFINE_float,
        "Fraction of characters that the pieces cover. The rarest characters become <unk>.",
        0.99995,
        lower_bound=0.9,
        upper_bound=1.0,
    )
    do_lower_case: bool = setting(flags.DEFINE_bool, "Lower-case the text.", True)
    keep_accents: bool = setting(
        flags.DEFINE_bool,
        "Keep accents, tones and other marks (for Japanese, Vietnamese, Thai, Hindi and others). "
        "Otherwise か and が have the same pieces, as do bán and bàn.",
        False,
    )
    normalize_in_model: bool = setting(
        flags.DEFINE_bool,
        "Put the lower-casing and the handling of accents into the model itself, for KerasHub and "
        "other readers that do not prepare text.",
        False,
    )

    @property
    def text(self) -> TextSettings:
        """How the text is prepared."""
        return TextSettings(self.do_lower_case, self.keep_accents)


def define_flags() -> None:
    """Defines the flags of this program. Other programs may use the same flag names."""
    corpus.define_flags()
    flags.DEFINE_string("output_prefix", None, "Path prefix of the output files.", required=True)
    define_settings_flags(VocabularySettings)


# Special pieces with ids 0 to 13. Source: the reference's README, "SentencePiece".
# Deviation: the comma. Without it, some pieces end in a digit and a comma. The tokenizer splits
# these again, which other readers of the vocabulary do not.
_SPECIAL_PIECES = {
    "pad_id": 0,
    "unk_id": 1,
    "bos_id": -1,
    "eos_id": -1,
    "pad_piece": PAD,
    "unk_piece": UNK,
    "control_symbols": [CLS, SEP, MASK],
    "user_defined_symbols": ["(", ")", '"', "-", ".", "–", "£", "€", ","],
}
# Longer lines are split, at a space if there is one. SentencePiece silently skips lines above 4,192
# bytes. Its run time is quadratic in the line length: a line of 100,000 times `x ` takes 125 s.
_MAX_LINE_CHARACTERS = 2000
_LINE = re.compile(rf"\S.{{0,{_MAX_LINE_CHARACTERS - 1}}}(?!\S)|\S{{1,{_MAX_LINE_CHARACTERS}}}")
_MAX_LINE_BYTES = 4 * _MAX_LINE_CHARACTERS
# Maximum number of training sentences. SentencePiece samples a larger corpus, to limit its memory.
_MAX_SENTENCES = 10_000_000
# Every 100th line is held out, if these are at least _MIN_HELDOUT_LINES. The report uses at most
# _SAMPLE_LINES of them, and as many sentences of the raw text.
_HELDOUT_EVERY = 100
_MIN_HELDOUT_LINES = 100
_SAMPLE_LINES = 20_000


def main(_) -> None:
    """Runs the program with the values of its flags."""
    train_vocab(
        files.match_files(FLAGS.input_file, "input_file"),
        FLAGS.output_prefix,
        settings_from_flags(VocabularySettings),
        settings_from_flags(corpus.TextFormat),
    )


def train_vocab(
    input_files: list[str],
    output_prefix: str,
    settings: VocabularySettings,
    text_format: corpus.TextFormat,
) -> None:
    """Trains and writes a vocabulary, unless it exists already.

    Raises a UserError if another vocabulary exists at this prefix, the text is empty or unreadable,
    or the vocabulary size is too large or too small for the text.
    """
    sizes = files.sizes(input_files)
    provenance = {
        "settings": {**dataclasses.asdict(settings), **dataclasses.asdict(text_format)},
        "input_bytes": sizes,
    }
    record = settings_path(f"{output_prefix}.model")
    if tf.io.gfile.exists(f"{output_prefix}.model"):
        known = files.read_json_if_exists(record)
        if difference := job_directory.describe_difference(known, provenance):
            raise UserError(
                f"{output_prefix}.model is there already, but made of other input files or with "
                f"other settings ({difference}): delete it or choose another --output_prefix"
            )
        print(f"{output_prefix}.model is there already: nothing to do")
        job_directory.warn_if_modified(input_files, record)
        return
    print(
        f"vocabulary: {settings.vocab_size:,} {settings.model_type} pieces, "
        f"{settings.text.describe()}, from {len(sizes):,} file(s) of "
        f"{sum(sizes.values()) / 1e6:,.1f} MB -> {output_prefix}.model",
        flush=True,
    )
    table = model_normalizer.normalizer(settings.text) if settings.normalize_in_model else None
    text = _Text(input_files, settings.text, text_format, table)
    model = _train(text, settings)
    if table:
        model = model_normalizer.with_normalizer(model, table)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    pieces = range(processor.vocab_size())
    listing = "".join(f"{processor.id_to_piece(i)}\t{processor.get_score(i):g}\n" for i in pieces)
    files.write_atomically(f"{output_prefix}.vocab", listing)
    files.write_json(record, provenance, indent=1)
    files.write_atomically(f"{output_prefix}.model", model)  # last, to mark the job as finished
    where = "held out of training" if text.heldout else "of the training text"
    report = vocabulary_report.report(processor, text.heldout or text.first, where)
    print("\n".join([report, *vocabulary_report.lost_marks(text.losing.lines)]))


class _Sample:
    """A random sample of at most _SAMPLE_LINES lines. Each line is kept with equal probability."""

    def __init__(self):
        self.lines: list[str] = []
        self.num_seen = 0
        self._rng = random.Random(0)

    def add(self, line: str) -> None:
        """Keeps the line, perhaps in place of another, or drops it."""
        self.num_seen += 1
        if self.num_seen <= _SAMPLE_LINES:
            self.lines.append(line)
        elif (place := self._rng.randrange(self.num_seen)) < _SAMPLE_LINES:
            self.lines[place] = line


class _Text:
    """Iterates over normalised sentences. Stores counts, samples for the report and any error."""

    def __init__(
        self,
        input_files: list[str],
        text_settings: TextSettings,
        text_format: corpus.TextFormat,
        table: sentencepiece.SentencePieceNormalizer | None,
    ):
        self._files, self._text_format = input_files, text_format
        self._text_settings, self._table = text_settings, table
        self.counts: Counter[str] = Counter()
        self.heldout: list[str] = []  # sample of the held-out lines
        self.losing = _Sample()  # raw sentences, if marks are removed
        self.first: list[str] = []  # first lines of the text
        self.error: BaseException | None = None  # SentencePiece may raise a RuntimeError instead

    def __iter__(self) -> Iterator[str]:
        heldout = _Sample()
        try:
            for number, text in enumerate(self._sentences()):
                self.counts["sentences"] += 1
                if len(self.first) < _MIN_HELDOUT_LINES:
                    self.first.append(text)
                if number % _HELDOUT_EVERY < _HELDOUT_EVERY - 1:
                    yield text
                else:
                    heldout.add(text)
            if heldout.num_seen < _MIN_HELDOUT_LINES:
                yield from heldout.lines
            else:
                self.heldout = heldout.lines
        except BaseException as error:
            self.error = error
            raise

    def _sentences(self) -> Iterator[str]:
        for path in self._files:
            for sentence in corpus.read_documents(path, self._text_format, counts=self.counts):
                if not self._text_settings.keep_accents:
                    self.losing.add(sentence.text[:_MAX_LINE_CHARACTERS])
                if self._table:
                    text = self._table.normalize(sentence.text)
                else:
                    text = preprocess(sentence.text, self._text_settings)
                yield from (line[0] for line in _LINE.finditer(text))


def _train(text: _Text, settings: VocabularySettings) -> bytes:
    """Trains a SentencePiece model and returns its bytes."""
    model = io.BytesIO()
    errors = []
    options: dict[str, Any] = {**dataclasses.asdict(settings), **_SPECIAL_PIECES}
    # _Text has already applied these.
    for name in ("do_lower_case", "keep_accents", "normalize_in_model"):
        del options[name]

    def train() -> None:
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(text),
                model_writer=model,
                minloglevel=2,
                max_sentence_length=_MAX_LINE_BYTES,
                input_sentence_size=_MAX_SENTENCES,
                byte_fallback=False,
                shuffle_input_sentence=True,  # SentencePiece's own seed is fixed
                **options,
            )
        except Exception as error:
            errors.append(error)

    # Train in another thread, so that this one can print progress and handle Ctrl-C.
    thread = threading.Thread(target=train, daemon=True)
    started = time.monotonic()
    thread.start()
    try:
        thread.join(60)
        while thread.is_alive():
            passed = duration(time.monotonic() - started)
            print(f"{text.counts['sentences']:,} sentences read, {passed} so far", flush=True)
            thread.join(60)
    except KeyboardInterrupt:
        print("\ninterrupted; nothing is written", file=sys.stderr, flush=True)
        os._exit(130)  # SentencePiece's threads would abort a normal exit
    if text.counts["skipped_lines"]:
        print(f"left out {text.counts['skipped_lines']:,} bad lines")
    if text.error is not None:
        raise text.error
    if not text.counts["sentences"]:
        raise UserError("--input_file: the files hold no text, only blank lines")
    if errors and isinstance(errors[0], RuntimeError):
        raise UserError(_explain(str(errors[0]))) from errors[0]
    if errors:
        raise errors[0]
    return model.getvalue()


def _explain(message: str) -> str:
    """Translates an error message of SentencePiece into advice for the user."""
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


if __name__ == "__main__":
    define_flags()
    program.run(main)
