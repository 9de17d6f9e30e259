import gzip
import itertools
import json
from unittest import mock

import pytest

from pipelines.tasks.reading.token_files import FIELDS, iterate_examples


def read(path, needs_tags=True, first=0, **columns):
    return list(iterate_examples(str(path), {**FIELDS, **columns}, first, needs_tags))


def write(path, text):
    path.write_bytes(text.encode())
    return path


CONLL_2003 = "-DOCSTART- -X- -X- O\n\nEU NNP B-NP B-ORG\nrejects VBZ B-VP O\n"
UNIVERSAL = "# x\n1-2\tVámonos\t_\t_\n1\tVamos\tir\tVERB\n2\tnos\tyo\tPRON\n2.1\t_\t_\t_\n"
PER = "\ufeffAda\tB-per\r\nmet\tO\r\n\r\n\r\n#tag\tO\r\n"


def test_columns(tmp_path):
    for name, text, columns, rows in (
        ("a.conll", PER, {}, ["7 Ada met / B-per O", "8 #tag / O"]),
        ("eng.train.gz", CONLL_2003, {}, ["7 EU rejects / B-ORG O"]),
        ("eng.train.gz", CONLL_2003, {"label": "1"}, ["7 EU rejects / NNP VBZ"]),
        ("a.txt", CONLL_2003, {"text": "0", "label": "-2"}, ["7 EU rejects / B-NP B-VP"]),
        ("ES.CONLLU", UNIVERSAL, {}, ["7 Vamos nos / VERB PRON"]),
        (
            "a.conll",
            " 10\u00a0000  O \nEU\u3000\tB-LOC\n",
            {},
            ["7 10\u00a0000 EU\u3000 / O B-LOC"],
        ),
    ):
        data = text.encode()
        (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
        found = read(tmp_path / name, first=7, **columns)
        described = [f"{e.id} {' '.join(e.words)} / {' '.join(e.tags)}" for e in found]
        assert described == rows
        assert found[0].text is None and found[0].entities is None


def test_without_answers(tmp_path):
    [example] = read(write(tmp_path / "a.txt", "Ada\nmet\n"), needs_tags=False)
    assert (example.words, example.tags) == (("Ada", "met"), None)
    [example] = read(write(tmp_path / "a.jsonl", '{"text": "Ada met"}\n'), needs_tags=False)
    assert (example.words, example.tags, example.entities) == (("Ada", "met"), None, None)
    text = '[{"text": "a", "label": []},\n {"text": "b"}]'
    with pytest.raises(ValueError, match=r"a\.json:2: no field 'label'"):
        read(write(tmp_path / "a.json", text), needs_tags=False)


def test_words_and_spans_in_json(tmp_path):
    row = {"tokens": ["New York", "is"], "ner": ["B-loc", 0], "id": 5}
    path = write(tmp_path / "A.JSONL", json.dumps(row) + "\n\n")
    [example] = read(path, text="tokens", label="ner", id="id")
    assert (example.id, example.words, example.tags) == ("5", ("New York", "is"), ("B-loc", "0"))
    text, lists = "Ada Lovelace, in 北京.", [[17, 19, "loc"], [0, 12, "per"]]
    for spans in (lists, [dict(zip(("start", "end", "label"), span)) for span in lists]):
        [example] = read(write(tmp_path / "a.jsonl", json.dumps({"text": text, "label": spans})))
        assert example.words == ("Ada", "Lovelace", ",", "in", "北", "京", ".")
        assert example.tags == ("B-per", "I-per", "O", "O", "B-loc", "I-loc", "O")
        assert example.entities == ((0, 12, "per"), (17, 19, "loc"))
        assert [text[start:limit] for start, limit in example.spans] == list(example.words)
    # Spans inside of a word mark it whole.
    row = {"text": "unbelievable", "label": [[2, 5, "a"], [5, 9, "b"]]}
    [example] = read(write(tmp_path / "a.jsonl", json.dumps(row)))
    assert example.tags == ("B-a",) and example.entities == ((2, 5, "a"), (5, 9, "b"))


def test_offsets_in_utf_16_units(tmp_path):
    """They are read as such if the file's other texts fit better so."""
    rows = [("😀 Ada met 😀 Bob", [[3, 6, "a"], [14, 17, "a"]]), ("😀 in Bonn", [[6, 10, "b"]])]
    rows += [("😀 unbelievable", [[5, 9, "c"]]), ("Ada met", [[0, 3, "a"]])]
    path = tmp_path / "a.jsonl"
    lines = [json.dumps({"text": text, "label": spans}) for text, spans in rows]
    with mock.patch("itertools.accumulate", wraps=itertools.accumulate) as tables:
        found = read(write(path, "\n".join(lines)))
    assert tables.call_count == 2 * 3  # per text with an emoji, however many its spans
    marked = [[e.text[start:end] for start, end, _ in e.entities] for e in found]
    assert marked == [["Ada", "Bob"], ["Bonn"], ["beli"], ["Ada"]]
    assert all(e.counts_utf16 for e in found)
    # Within a character, or fitting as well in characters: not read so.
    for label in ([1, 4, "a"], [2, 5, "a"]):
        line = json.dumps({"text": "😀 Ada met", "label": [label]})
        assert not read(write(path, line))[0].counts_utf16


def test_faults(tmp_path):
    for name, text, columns, message in (
        ("a.conll", "", {}, "a.conll: no texts"),
        ("a.conll", "Ada\n", {}, r"a.conll:1: 1 columns, expected a word and"),
        ("a.conll", "Ada O\nmet\n", {}, r"a.conll:2: 1 columns, expected 2 .*between spaces"),
        ("a.conll", "Ada\tO\n\tO\n", {}, r"a.conll:2: the word in column 0 is empty"),
        ("a.conll", "Ada\t\n", {}, r"a.conll:1: 'column -1' is \"\", expected a label"),
        ("a.conll", "Ada O\n", {"label": "ner"}, "--label_column=ner: the columns of CoNLL"),
        ("a.conll", "Ada O\n", {"text": "2"}, r"a.conll:1: no column 2"),
        ("a.conll", "Ada O\n", {"label": "2"}, r"a.conll:1: 2 columns, expected a word"),
        ("a.csv", "text\nBob", {}, r"a.csv: models that tag words read .jsonl, or"),
        ("a.jsonl", '{"text": "a"}', {}, r"a.jsonl:1: no field 'label'"),
        ("a.jsonl", '{"text": "a", "label": "O"}', {}, "'label' is no list"),
        ("a.jsonl", '{"text": ["a"], "label": []}', {}, r"0 tags in 'label', expected 1, one a"),
        ("a.jsonl", '{"text": ["a", " "], "label": ["O", "O"]}', {}, "a word in 'text' is empty"),
        ("a.jsonl", '{"text": ["a"], "label": [[0]]}', {}, r"'label' is \[0\], expected text or a"),
        ("a.jsonl", '{"text": "a", "label": [[0, 2, "x"]]}', {}, r"holds \[0, 2, 'x'\], expected"),
        ("a.jsonl", '{"text": "a", "label": [[0, 1]]}', {}, r"holds \[0, 1\], expected"),
        ("a.jsonl", '{"text": "a", "label": [7]}', {}, "holds 7, expected"),
        ("a.jsonl", '{"text": "a", "label": [{"start": 0}]}', {}, "holds {'start': 0}, expected"),
        ("a.jsonl", '{"text": "a b", "label": [[0, 3, "x"], [2, 3, "y"]]}', {}, "overlap"),
    ):
        with pytest.raises(ValueError, match=message):
            read(write(tmp_path / name, text), **columns)
