"""Finds the entities that word tags mark and computes their F1, as in CoNLL's shared tasks.

The definition follows conlleval, the script of CoNLL-2000 to 2003. It is implemented here because
the library seqeval has no wheel and no longer installs in a fresh environment (its setup script
needs packages that pip does not bring). The tests compare it with conlleval's output for 13 cases.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Iterable, Sequence, Set

OUTSIDE = "O"
_TAG = re.compile(r"([BIESLU])(?:-(.+))?")
# Prefixes of BILOU -> prefixes of BIOES.
_PREFIXES = {"L": "E", "U": "S"}


def parse_tag(tag: str) -> tuple[str, str]:
    """Returns prefix (B, I, E, S or O) and type of a tag: `B-person` is ("B", "person").

    Raises a KeyError for a text that is not a tag.
    """
    if tag == OUTSIDE:
        return OUTSIDE, ""
    match = _TAG.fullmatch(tag)
    if not match:
        raise KeyError(tag)
    return _PREFIXES.get(match[1], match[1]), match[2] or ""


def are_entity_tags(tags: Iterable[str]) -> bool:
    """Returns whether the tags mark entities (IOB1, IOB2, BIOES, BILOU) and not word classes."""
    tags = set(tags) - {OUTSIDE}
    return bool(tags) and all(map(_TAG.fullmatch, tags))


def find_entities(tags: Sequence[str]) -> list[tuple[int, int, str]]:
    """Returns (first word, word after the last, type) of each entity that the tags mark.

    The rule also covers invalid sequences. An entity begins at B and S; after E and S; where the
    type changes; and at any tag after O, except O. It ends before the next O or the next entity.

    Source: conlleval's startOfChunk and endOfChunk (version 2004-01-26).
    Deviation: conlleval supports neither S nor a B after an E of the same type; BIOES needs both.
    """
    entities = []
    before, start = (OUTSIDE, ""), 0
    for place, tag in enumerate([*map(parse_tag, tags), (OUTSIDE, "")]):
        begins = tag[0] in "BS" or before[0] in "ES" or before[1] != tag[1]
        if before[0] != OUTSIDE and (tag[0] == OUTSIDE or begins):
            entities.append((start, place, before[1]))
        if tag[0] != OUTSIDE and (before[0] == OUTSIDE or begins):
            start = place
        before = tag
    return entities


def score_entities(
    examples: Iterable[Sequence[Set[tuple]]], types: Iterable[str]
) -> dict[str, float]:
    """Returns `f1`, `precision` and `recall` over all entities, and `f1_TYPE` for each type.

    A found entity is correct if a known entity has the same bounds and type. The scores are
    fractions; a score whose denominator is 0 is 0.

    Args:
      examples: (known entities, found entities) per example; an entity is (start, end, type).
      types: the entity types that get an `f1_TYPE`; the other scores count all types.
    """
    counts: list[collections.Counter] = [collections.Counter() for _ in range(3)]
    for known, found in examples:
        for counter, entities in zip(counts, (known, found, known & found)):
            counter.update(entity[2] for entity in entities)
    num_known, num_found, num_right = (sum(counter.values()) for counter in counts)
    metrics = {
        "f1": _ratio(2 * num_right, num_known + num_found),
        "precision": _ratio(num_right, num_found),
        "recall": _ratio(num_right, num_known),
    }
    for name in types:
        num_known, num_found, num_right = (counter[name] for counter in counts)
        metrics[f"f1_{name}"] = _ratio(2 * num_right, num_known + num_found)
    return metrics


def _ratio(numerator: int, denominator: int) -> float:
    return numerator / denominator if denominator else 0.0
