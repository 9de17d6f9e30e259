"""Token classification: predicts a tag for each word (entities, parts of speech)."""

import collections
import dataclasses
import functools
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from albert_tf import losses
from albert_tf.answering.classes import best_tags
from albert_tf.kinds import DOC_STRIDE
from albert_tf.storage import files
from albert_tf.text.entities import OUTSIDE, Tag, are_entity_tags, find_entities
from albert_tf.text.in_graph import on_host
from .labelled_task import LabelledTask
from .reading.examples import required
from .reading.sequences import Encoder, Packed
from .reading.split_report import describe_labels, describe_texts
from .reading.tables import Row
from .reading.token_files import FIELDS, TokenExample, example_of_row, iterate_examples
from .scoring.token_rows import Tagged, columns_of, score_rows
from .task import Answers, Columns, Description, Files, Outputs

# White space that separates columns or lines, unlike a no-break space.
_NOT_IN_COLUMNS = re.compile("[ \t-\r\x1c-\x1f\x85\u2028\u2029]")


@dataclasses.dataclass(frozen=True)
class WordWindow:
    """The words that are tagged in one sequence; `example` is the index of their text.

    `words`, int32 [n], are the words' indices in the text. Each word is in exactly one window.
    `positions`, int32 [n], are the positions of the words' first pieces in the sequence.
    """

    example: int
    words: np.ndarray
    positions: np.ndarray


class TokenClassificationTask(LabelledTask):
    """Predicts a tag for each word. Only the first piece of a word is classified.

    Words are tokenized separately, so that training on words and serving on raw text agree. A long
    text is split into windows. Each word is tagged in the window with the most context around it.

    Source: Devlin et al. 2019, section 5.3.
    Deviation: the loss of an example is the mean over its words, so it does not depend on the other
    examples in the batch.

    `doc_stride` is the number of pieces between the starts of two windows of a long text.
    """

    fields = FIELDS
    stored = ("labels", "doc_stride")

    def __init__(
        self,
        name: str,
        files: Files,
        columns: Columns | None = None,
        labels: Sequence[str] | None = None,
        doc_stride: int = DOC_STRIDE,
    ):
        super().__init__(name, files, columns, labels)
        self.doc_stride = doc_stride

    def labels_of_file(self, path: str) -> Iterator[tuple[str, str]]:
        for example in iterate_examples(path, self.columns, 0, needs_tags=True):
            for tag in required(example.tags):
                yield tag, f"{path}: text {example.id}"

    def in_order(self, labels: set[str]) -> Sequence[str]:
        """Returns the sorted tags. For entities, these are O and all prefixes with all types."""
        if not are_entity_tags(labels):
            return sorted(labels)
        prefixes, _, types = zip(*(label.partition("-") for label in labels - {OUTSIDE}))
        tags = {f"{prefix}-{name}" if name else prefix for prefix in prefixes for name in types}
        return OUTSIDE, *sorted(tags, key=lambda tag: (tag.partition("-")[2], tag))

    @functools.cached_property
    def marks_entities(self) -> bool:
        """Whether the tags mark entities. If True, metrics are computed on entities."""
        return are_entity_tags(self.labels)

    @property
    def best_metric(self) -> str:
        return "f1" if self.marks_entities else "accuracy"

    def read_file(self, path: str, first: int = 0, needs_answers: bool = False) -> Iterator:
        is_printed = False
        for example in iterate_examples(path, self.columns, first, needs_answers):
            where = f"{path}: text {example.id}, {' '.join(example.words)[:60]!r}"
            if example.counts_utf16 and not is_printed:
                print(f"{path}: spans fit the words in UTF-16 code units only: read as such")
                is_printed = True
            for tag in example.tags or ():
                self.check_known(tag, where)
            yield example

    def examples(self, rows: Iterable[Row]) -> Iterator[TokenExample]:
        return map(example_of_row, rows)

    def summarise(self, examples: list[TokenExample]) -> list[str]:
        """See Task.summarise. Counts entities by type, or words by tag if not `marks_entities`."""
        words = f"{sum(len(example.words) for example in examples):,} words"
        notes = describe_texts(examples)
        if any(example.tags is None for example in examples):
            return [f"{words}, without answers", *notes]
        if widened := sum(map(_num_widened, examples)):
            notes.append(
                f"warning: {widened:,} spans do not begin and end with a word: widened to whole "
                "words, so no prediction can equal them. Do the offsets count characters?"
            )
        tags = [required(example.tags) for example in examples]
        if self.marks_entities:
            counts = collections.Counter(e[2] for of_text in tags for e in find_entities(of_text))
            labels = describe_labels(self._types, counts)
            return [f"{words}, scored as entities", labels, *notes]
        counts = collections.Counter(tag for of_text in tags for tag in of_text)
        labels = describe_labels(self.labels, counts)
        form = "entities have tags such as B-PER, I-PER and O"
        return [f"{words}, scored as word classes ({form})", labels, *notes]

    def pack(self, examples: list[TokenExample], first: int, encoder: Encoder) -> Packed:
        """Returns one sequence per window of each text. The features are the windows."""
        counts = np.array([len(example.words) for example in examples], np.int64)
        words = tf.constant([word for example in examples for word in example.words], tf.string)
        words = tf.RaggedTensor.from_row_lengths(words, counts)
        tokens, cut = encoder.pack_words(encoder.tokenizer.in_graph(), words, self.doc_stride)
        begins = np.cumsum(counts) - counts
        windows = []
        # `row` contains the word's number in the block (from 1) at first pieces, and 0 elsewhere.
        for example, row in zip(cut.text.numpy(), tokens["word"].numpy()):
            positions = np.flatnonzero(row).astype(np.int32)
            of_window = (row[positions] - 1 - begins[example]).astype(np.int32)
            windows.append(WordWindow(first + int(example), of_window, positions))
        return tokens, None, windows

    def targets(self, examples: list, features: list, max_seq_length: int) -> dict[str, np.ndarray]:
        """Returns `labels`, int16 [windows, max_seq_length]: tags of first pieces, -1 elsewhere."""
        labels = np.full([len(features), max_seq_length], -1, np.int16)
        for row, window in zip(labels, features):
            tags = examples[window.example].tags
            row[window.positions] = [self.place_of[tags[word]] for word in window.words]
        return {"labels": labels}

    @functools.cached_property
    def _types(self) -> list[str]:
        return sorted({Tag.parse(label).type for label in self.labels} - {""})

    def owners(self, features: list[WordWindow]) -> list[int]:
        return [window.example for window in features]

    def description(self) -> Description:
        labels, stride = list(self.labels), self.doc_stride
        model = {"kind": "token_classifier", "labels": labels, "doc_stride": stride}
        return Description(model, {}, {"columns": self.columns})

    def losses(self, outputs: dict[str, tf.Tensor], batch: dict[str, tf.Tensor]) -> tf.Tensor:
        return losses.token_classification_loss(outputs["logits"], batch["labels"])

    def answers(self, examples: list, features: list | None, outputs: Outputs) -> Answers:
        """See Task.answers and token_rows."""
        tagged = self._tagged(examples, required(features), outputs)
        columns = columns_of(examples, tagged, self.marks_entities)
        return Answers(columns, {"example": examples, "tagged": tagged})

    def _tagged(
        self, examples: Sequence[TokenExample], features: Sequence[WordWindow], outputs: Outputs
    ) -> list[Tagged]:
        logits = [output["logits"][w.positions] for w, output in zip(features, outputs)]
        with on_host():
            found = best_tags(np.concatenate(logits))
        firsts = np.cumsum([0, *(len(example.words) for example in examples)])
        order = np.argsort(np.concatenate([firsts[w.example] + w.words for w in features]))
        places, best = (np.split(values.numpy()[order], firsts[1:-1]) for values in found)
        return [
            ([self.labels[place] for place in row], of_row) for row, of_row in zip(places, best)
        ]

    def score(self, rows: Iterable[dict]) -> dict[str, float]:
        return score_rows(rows, self.labels, self._types if self.marks_entities else None)

    def baselines(self, train: list, dev: list) -> dict[str, Iterable[dict]]:
        """See Task.baselines. The most frequent tag of each word in train, and of all words."""
        pairs = collections.Counter(pair for of in train for pair in zip(of.words, of.tags))
        best = {word: tag for (word, tag), _ in reversed(pairs.most_common())}
        [(usual, _)] = collections.Counter(tag for of in train for tag in of.tags).most_common(1)
        found: dict[str, Iterable[dict]] = {}
        for name, tag_of in (("words alone", best), ("majority", {})):
            tags = ([tag_of.get(word, usual) for word in example.words] for example in dev)
            tagged = [(of_text, np.ones(len(of_text))) for of_text in tags]
            columns = columns_of(dev, tagged, self.marks_entities)
            found[name] = Answers(columns, {"example": dev, "tagged": tagged}).rows()
        return found

    def write(self, directory: str, split: str, examples: list, answers: Answers) -> list[str]:
        """Writes tags, or spans if all texts are raw.

        A line of SPLIT_predictions.conll contains, separated by tabs: word, known tag (if any),
        predicted tag, probability. Blank lines separate texts. SPLIT_predictions.jsonl contains an
        object with id, text and spans for each raw text. A span has start and end (in characters),
        label, text and probability.
        """
        extension, lines = "conll", []
        for row in answers.rows():
            if "text" in row:
                extension = "jsonl"
                row = {"id": row["id"], "text": row["text"], "spans": row["prediction"]}
                lines.append(json.dumps(row, ensure_ascii=False))
                continue
            words = [_NOT_IN_COLUMNS.sub("", word) for word in row["words"]]
            known = [row["label"]] if "label" in row else []
            probabilities = (f"{number:.6f}" for number in row["probabilities"])
            lines += [*map("\t".join, zip(words, *known, row["prediction"], probabilities)), ""]
        path = os.path.join(directory, f"{split}_predictions.{extension}")
        files.write_atomically(path, "".join(line + "\n" for line in lines))
        return [path]


def _num_widened(example: TokenExample) -> int:
    """Returns how many entities of a raw text do not begin and end with a word."""
    starts, ends = ({bounds[side] for bounds in example.spans} for side in (0, 1))
    spans = example.entities or ()
    return sum(start not in starts or end not in ends for start, end, _ in spans)
