import random
from pathlib import Path

import pytest

from pipelines.data import duplicates
from pipelines.data.duplicates import find_duplicates, hash_documents, hash_ranges, read_duplicates


def left_out(directory: Path, *units: list[list[str]]) -> list[set[int]]:
    """Writes, finds and reads which documents of each unit to leave out, by number."""
    paths = [directory / f"{index}.hashes" for index in range(len(units))]
    for path, documents in zip(paths, units):
        sentences = [(n, text) for n, document in enumerate(documents) for text in document]
        path.write_bytes(hash_documents(sentences))
    found = []
    for hashes in hash_ranges(list(map(str, paths))):
        found.append(directory / f"{hashes.name}.duplicates")
        found[-1].write_bytes(find_duplicates(hashes, list(map(str, paths))))
    return [read_duplicates(found, index, len(units)) for index in range(len(units))]


FIRST = ["The sea, the sea!", "It was 3 o'clock."]


def test_case_spacing_and_punctuation_make_no_other_document(tmp_path):
    copies = [
        FIRST,
        ["THE SEA THE SEA", "it was 3 oclock"],
        ["thesea... (the  sea) It -- was", "3", "o\u2019clock"],
        ["The_sea\u00a0the\u3000sea it was 3 o\U0001f600clock", "***"],
    ]
    near = [[FIRST[0], "It was 4 o'clock."], FIRST[:1], [*FIRST, "s"], FIRST[::-1]]
    near.append(["The s\u00e9a, the sea!", FIRST[1]])
    assert left_out(tmp_path, [FIRST, *copies, *near]) == [{1, 2, 3, 4}]
    korean, upper, final = ["바다, 바다!"], ["ΟΔΟΣ. Straße"], ["οδος STRASSE!"]
    units = [korean, upper], [final, ["바다"], ["「바다」바다。"]]
    assert left_out(tmp_path, *units) == [set(), {0, 2}]
    assert left_out(tmp_path, [["😀 😀 !"], ["🎉 🚀"], ["—"], ["🎉 🚀"]]) == [{3}]
    # "He goes" and "she goes" differ in a vowel sign, which is a mark.
    assert left_out(tmp_path, [["वह जाता है।"], ["वह जाती है।"], ["वह, जाता है"]]) == [{2}]
    # These characters have several forms.
    same = ("a ❤", "a ❤\ufe0f"), ("葛飾", "葛\U000e0100飾"), ("1\ufe0f\u20e3", "1"), ("İst", "ist")
    for pair in (*same, ("cafe\u0301", "café")):
        assert left_out(tmp_path, [[text] for text in pair]) == [{1}], pair
    assert left_out(tmp_path, [["❤\ufe0f"], ["☀\ufe0f"]]) == [set()]


@pytest.mark.parametrize("range_bytes", [1 << 30, 20_000, 1])
def test_many_documents_in_ranges_of_any_size(tmp_path, monkeypatch, range_bytes):
    monkeypatch.setattr(duplicates, "_RANGE_BYTES", range_bytes)
    rng = random.Random(7)
    units = [[[str(rng.randrange(900))] for _ in range(size)] for size in (611, 0, 503, 97)]
    seen, expected = set(), []
    for documents in units:
        expected.append(set())
        for number, (text,) in enumerate(documents):
            if text in seen:
                expected[-1].add(number)
            seen.add(text)
    assert left_out(tmp_path, *units) == expected
    assert len(list(tmp_path.rglob("*.duplicates"))) == {1 << 30: 1, 20_000: 2, 1: 256}[range_bytes]
    assert sum(map(len, expected)) > 500
