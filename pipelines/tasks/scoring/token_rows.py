"""The rows that pipelines.predict writes for models that tag words, with one row per text.

For texts given as words, the columns are `words`, `label` (if known), `prediction` and
`probabilities`. Each contains a list with one value per word. For raw texts, the columns are
`text`, `label` (if known) and `prediction`. The last two contain lists of spans in characters,
{"start", "end", "label"}. Predicted spans also have `text` and `probability`. In CSV and TSV files,
lists are written as JSON.
"""

import array
import itertools
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from albert_tf.text.entities import find_entities, score_entities
from ..reading.examples import required
from ..reading.token_files import TokenExample
from .metrics import METRICS, rounded_down

# The tags of an example's words, and their probabilities, float32 [words].
Tagged = tuple[Sequence[str], np.ndarray]


def predicted_spans(example: TokenExample, tagged: Tagged, marks_entities: bool) -> list[dict]:
    """Returns the predicted spans of a raw text: entities, or words if not `marks_entities`."""
    (tags, best), text = tagged, required(example.text)
    words = [(place, place + 1, tag) for place, tag in enumerate(tags)]
    spans = []
    for first, last, label in find_entities(tags) if marks_entities else words:
        start, end = example.spans[first][0], example.spans[last - 1][1]
        probability = float(rounded_down(np.array(np.mean(best[first:last], dtype=np.float64))))
        span = {"start": start, "end": end, "label": label, "text": text[start:end]}
        spans.append({**span, "probability": probability})
    return spans


def _known_spans(example: TokenExample, marks_entities: bool) -> list[dict]:
    words = [(*span, tag) for span, tag in zip(example.spans, required(example.tags))]
    spans = required(example.entities) if marks_entities else words
    return [{"start": start, "end": end, "label": label} for start, end, label in spans]


def columns_of(
    examples: Sequence[TokenExample], tagged: Sequence[Tagged], marks_entities: bool
) -> dict[str, list]:
    """Returns the columns of Task.answers, with spans if all examples are raw texts."""
    columns: dict[str, list] = {"id": [example.id for example in examples]}
    has_answers = all(example.is_answered for example in examples)
    if all(example.text is not None for example in examples):
        columns["text"] = [example.text for example in examples]
        if has_answers:
            columns["label"] = [_known_spans(example, marks_entities) for example in examples]
        spans = (predicted_spans(*pair, marks_entities) for pair in zip(examples, tagged))
        return {**columns, "prediction": list(spans)}
    columns["words"] = [list(example.words) for example in examples]
    if has_answers:
        columns["label"] = [list(required(example.tags)) for example in examples]
    columns["prediction"] = [list(tags) for tags, _ in tagged]
    probabilities = (rounded_down(best.astype(np.float64)) for _, best in tagged)
    columns["probabilities"] = [of_text.tolist() for of_text in probabilities]
    return columns


def score_rows(
    rows: Iterable[dict], labels: Sequence[str], types: Sequence[str] | None
) -> dict[str, float]:
    """Computes metrics from rows of columns_of, in one pass. Returns {} if there are no answers.

    The rows may also contain `example` and `tagged`. Without them, `accuracy` is omitted for raw
    texts with entities, because spans are not words. `types` are the types of entities, or None if
    the tags do not mark entities.
    """
    marks_entities = types is not None
    rows = iter(rows)
    first = next(rows, {})
    if "label" not in first:
        return {}
    place_of = {label: place for place, label in enumerate(labels)}
    known, found = array.array("i"), array.array("i")  # indices of the words' tags

    def entities() -> Iterator[Sequence[set[tuple]]]:
        """Yields known and predicted entities of each row. Also stores the tags of its words."""
        for row in itertools.chain([first], rows):
            tags: Sequence = (row["label"], row["prediction"])
            answers = tags
            if "example" in row:
                tags = row["example"].tags, row["tagged"][0]
            elif "text" in row:
                tags = () if marks_entities else [[s["label"] for s in spans] for spans in answers]
            for of_words, places in zip(tags, (known, found)):
                places.extend(place_of[tag] for tag in of_words)
            if "text" in row:
                yield [{(s["start"], s["end"], s["label"]) for s in spans} for spans in answers]
            elif marks_entities:
                yield [set(find_entities(of_words)) for of_words in tags]

    scores = score_entities(entities(), types or ())
    metrics = scores if marks_entities else {}
    if known or "example" in first:
        places = np.array(known), np.array(found)
        for name in ("accuracy",) if marks_entities else ("accuracy", "macro_f1"):
            metrics[name] = float(METRICS[name](*places)) if known else 0.0
    return metrics
