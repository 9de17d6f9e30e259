"""Extracts entities from word tags and computes their F1 as conlleval (CoNLL-2000 to 2003).

seqeval is not used, because it can no longer be installed in a fresh environment.
"""

import collections
import functools
import re
from collections.abc import Iterable, Sequence, Set
from typing import Any, NamedTuple

OUTSIDE = "O"
_TAG = re.compile(r"([BIMESLU])(?:-(.+))?")


class Tag(NamedTuple):
    """Properties of a tag: one value each, or arrays or tensors [tags] of values.

    Attributes:
      is_inside: whether the tag is not O.
      joins: whether the tag may continue the entity before it (not B, S or U).
      lasts: whether the next tag may continue its entity (not E, L, S or U).
      type: type of the entity. "" for O.
    """

    is_inside: Any
    joins: Any
    lasts: Any
    type: Any

    @classmethod
    @functools.lru_cache(maxsize=1024)
    def parse(cls, tag: str) -> "Tag":
        """Returns the properties of a tag such as `B-person`. Raises a KeyError if invalid."""
        if tag == OUTSIDE:
            return cls(False, True, True, "")
        match = _TAG.fullmatch(tag)
        if not match:
            raise KeyError(tag)
        return cls(True, match[1] not in "BSU", match[1] not in "ESLU", match[2] or "")

    def continues(self, before: "Tag") -> Any:
        """Returns whether this tag continues the entity of the tag `before` it.

        Invalid sequences are also supported. An entity starts at B or S, after E or S, where the
        type changes, and at any tag except O after an O. It ends before the next O or entity.

        Source: conlleval's startOfChunk and endOfChunk (version 2004-01-26).
        Deviation: conlleval supports neither S nor a B after an E of the same type.
        """
        are_inside = self.is_inside & before.is_inside & (self.type == before.type)
        return are_inside & self.joins & before.lasts


def are_entity_tags(tags: Iterable[str]) -> bool:
    """Returns whether the tags are entity tags (IOB1, IOB2, BIOES, BILOU, BMES) or word classes."""
    tags = set(tags) - {OUTSIDE}
    prefixes = {tag[:1] for tag in tags}
    # Without a B, M belongs to no scheme: S, M and L, say, are sizes.
    return (
        bool(tags) and all(map(_TAG.fullmatch, tags)) and ("B" in prefixes or "M" not in prefixes)
    )


def find_entities(tags: Sequence[str]) -> list[tuple[int, int, str]]:
    """Returns (start, end, type) of each entity, where `end` is the index after the last word."""
    entities, start, before = [], 0, Tag.parse(OUTSIDE)
    for place, tag in enumerate([*map(Tag.parse, tags), before]):
        if not tag.continues(before):
            if before.is_inside:
                entities.append((start, place, before.type))
            start = place
        before = tag
    return entities


def score_entities(
    examples: Iterable[Sequence[Set[tuple]]], types: Iterable[str]
) -> dict[str, float]:
    """Returns `f1`, `precision` and `recall` over all entities, and `f1_TYPE` for each type.

    A predicted entity is correct if a gold entity has the same bounds and type. Scores are
    fractions, and 0 if their denominator is 0.

    Args:
      examples: (gold entities, predicted entities) per example. An entity is (start, end, type).
      types: entity types for which `f1_TYPE` is returned. The other scores count all types.
    """
    known, found, right = (collections.Counter[str]() for _ in range(3))
    for gold, predicted in examples:
        known.update(entity[2] for entity in gold)
        found.update(entity[2] for entity in predicted)
        right.update(entity[2] for entity in gold & predicted)
    metrics = {
        "f1": 2 * right.total() / max(known.total() + found.total(), 1),
        "precision": right.total() / max(found.total(), 1),
        "recall": right.total() / max(known.total(), 1),
    }
    for name in types:
        metrics[f"f1_{name}"] = 2 * right[name] / max(known[name] + found[name], 1)
    return metrics
