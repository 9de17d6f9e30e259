import pytest

from albert_tf.text.entities import are_entity_tags, find_entities, score_entities

# Known tags, found tags, and what conlleval (2004-01-26) prints of them: known, found, correct
# phrases; precision, recall, FB1.
CONLLEVAL = {
    "right": ("B-a I-a O B-b / B-a I-a O B-b", (2, 2, 2), (100.0, 100.0, 100.0)),
    "bounds": ("B-a I-a O B-b / B-a O O B-b", (2, 2, 1), (50.0, 50.0, 50.0)),
    "IOB1": ("I-a I-a O I-b B-b / I-a I-a O I-b I-b", (3, 2, 1), (50.0, 33.33, 40.0)),
    "I after O": ("O B-a I-a O / O I-a I-a O", (1, 1, 1), (100.0, 100.0, 100.0)),
    "type changes inside": ("B-a I-a I-a / B-a I-b I-b", (1, 2, 0), (0.0, 0.0, 0.0)),
    "I of another type": ("B-a B-b O O / B-a I-b I-b O", (2, 2, 1), (50.0, 50.0, 50.0)),
    "nothing found": ("B-a O B-b / O O O", (2, 0, 0), (0.0, 0.0, 0.0)),
    "nothing known": ("O O O / B-a O O", (0, 1, 0), (0.0, 0.0, 0.0)),
    "adjacent": ("B-a B-a B-a I-a / B-a I-a B-a I-a", (3, 2, 1), (50.0, 33.33, 40.0)),
    "no types": ("B I O B / B I O I", (2, 2, 2), (100.0, 100.0, 100.0)),
    "hyphen": ("B-c-d I-c-d O / B-c-d O O", (1, 1, 0), (0.0, 0.0, 0.0)),
}


@pytest.mark.parametrize("case", CONLLEVAL)
def test_as_conlleval(case):
    tags, counts, percentages = CONLLEVAL[case]
    known, found = (set(find_entities(part.split())) for part in tags.split(" / "))
    assert (len(known), len(found), len(known & found)) == counts
    metrics = score_entities([(known, found)], [])
    found_percentages = [100 * metrics[name] for name in ("precision", "recall", "f1")]
    assert found_percentages == pytest.approx(percentages, abs=0.005)


def test_bioes_bilou_and_bmes():
    tags = "S-a B-a I-a E-a B-a E-a O E-b I-b S-b"
    expected = [(0, 1, "a"), (1, 4, "a"), (4, 6, "a"), (7, 8, "b"), (8, 9, "b"), (9, 10, "b")]
    assert find_entities(tags.split()) == expected
    bilou = tags.replace("S-", "U-").replace("E-", "L-")
    assert find_entities(bilou.split()) == expected
    assert find_entities(tags.replace("I-", "M-").split()) == expected


def test_each_type_has_its_figure():
    known = [{(0, 1, "a"), (1, 2, "b")}, {(0, 1, "a")}]
    found = [{(0, 1, "a"), (1, 2, "a")}, {(0, 1, "a")}]
    metrics = score_entities(zip(known, found), ["a", "b", "c"])
    expected = {**dict.fromkeys(("f1", "precision", "recall"), 2 / 3), "f1_a": 0.8}
    assert metrics == pytest.approx({**expected, "f1_b": 0.0, "f1_c": 0.0})


def test_which_tags_mark_entities():
    assert are_entity_tags(["O", "B-person", "I-person"]) and are_entity_tags(["O", "B", "I"])
    assert are_entity_tags("BMES") and are_entity_tags(["I-person"])
    assert not are_entity_tags(["O"]) and not are_entity_tags(["NN", "VB", "O"])
    for tags in ("B-person X-person", "O PER-B PER-I", "O B_PER", "b-per o", "B-PER 0", "S M", "M"):
        assert not are_entity_tags(tags.split())
