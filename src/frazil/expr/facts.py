"""Decides from statistics alone whether some rows may include, or include only, rows that a filter selects.

The filter is a tree of atoms, each a test of one column. Statistics of all kinds become Facts about a column: manifest
summaries, partition values, a file's column bounds, a Parquet row group's. So one evaluator serves all of them, and
several kinds of evidence add up. The order of values is Spark's: NaN is greater than every number. A missing statistic
proves nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from pyiceberg.transforms import BucketTransform
from pyiceberg.types import DecimalType, IcebergType

# The tree


@dataclass(frozen=True, slots=True)
class Atom:
    """A test of one column that is true or false on every row, never unknown.

    Comparisons are false on NULL. ``gt`` and ``ge`` hold for NaN, ``lt``, ``le`` and ``eq`` do not; ``ne`` does.
    ``bucket``: the value falls into one of some buckets, ``value`` being (number of buckets, those wanted).
    """

    op: str
    field_id: int
    value: Any = None


@dataclass(frozen=True, slots=True)
class Both:
    parts: tuple[Tree, ...]


@dataclass(frozen=True, slots=True)
class Either:
    parts: tuple[Tree, ...]


Tree = bool | Atom | Both | Either


def both(*parts: Tree) -> Tree:
    kept = [part for part in parts if part is not True]
    if any(part is False for part in kept):
        return False
    return Both(tuple(kept)) if len(kept) > 1 else kept[0] if kept else True


def either(*parts: Tree) -> Tree:
    kept = [part for part in parts if part is not False]
    if any(part is True for part in kept):
        return True
    return Either(tuple(kept)) if len(kept) > 1 else kept[0] if kept else False


# Facts


class Share(enum.IntEnum):
    """How many of the rows have a property."""

    NONE = 0
    UNKNOWN = 1
    ALL = 2


@dataclass(slots=True)
class Facts:
    """What is known about one column over some rows. ``None`` bounds: unknown, or there is no value to bound."""

    lower: Any = None
    upper: Any = None
    nulls: Share = Share.UNKNOWN
    nans: Share = Share.UNKNOWN
    """Among the values that are not NULL."""
    buckets: tuple[tuple[int, int, int], ...] = ()
    """(number of buckets, lowest, highest) of each bucket transform."""

    def together(self, other: Facts) -> Facts:
        """Both facts, about the same rows."""
        return Facts(
            lower=_pick(max, self.lower, other.lower),
            upper=_pick(min, self.upper, other.upper),
            nulls=self.nulls if other.nulls == Share.UNKNOWN else other.nulls,
            nans=self.nans if other.nans == Share.UNKNOWN else other.nans,
            buckets=self.buckets + other.buckets,
        )


def _pick(choose: Callable[[Any, Any], Any], one: Any, other: Any) -> Any:
    if one is None or other is None:
        return other if one is None else one
    return choose(one, other)


Lookup = Callable[[int], Facts]
Evaluator = Callable[[Lookup], bool]


def may_match(tree: Tree) -> Evaluator:
    """False only when no row can satisfy the tree."""
    return _compiled(tree, _MAY)


def must_match(tree: Tree) -> Evaluator:
    """True only when every row satisfies the tree."""
    return _compiled(tree, _MUST)


Test = Callable[[Facts, Any], bool]


def _compiled(tree: Tree, tests: Mapping[str, Test]) -> Evaluator:
    if isinstance(tree, bool):
        return lambda _: tree
    if isinstance(tree, Atom):
        test, field_id, value = tests[tree.op], tree.field_id, tree.value
        return lambda lookup: test(lookup(field_id), value)
    parts = [_compiled(part, tests) for part in tree.parts]
    if isinstance(tree, Both):
        return lambda lookup: all(part(lookup) for part in parts)
    return lambda lookup: any(part(lookup) for part in parts)


def _may_be_below(facts: Facts, value: Any, *, included: bool) -> bool:
    if facts.nulls == Share.ALL or facts.nans == Share.ALL:
        return False
    return facts.lower is None or facts.lower < value or (included and facts.lower == value)


def _may_be_above(facts: Facts, value: Any, *, included: bool) -> bool:
    if facts.nulls == Share.ALL:
        return False
    if facts.nans != Share.NONE or facts.upper is None:
        return True
    return bool(facts.upper > value or (included and facts.upper == value))


def _may_equal(facts: Facts, value: Any) -> bool:
    if facts.nulls == Share.ALL or facts.nans == Share.ALL:
        return False
    if (facts.lower is not None and facts.lower > value) or (facts.upper is not None and facts.upper < value):
        return False
    return all(low <= bucket_of(count, value) <= high for count, low, high in facts.buckets)


def _may_start(facts: Facts, prefix: Any) -> bool:
    if facts.nulls == Share.ALL:
        return False
    size = len(prefix)
    if facts.lower is not None and facts.lower[:size] > prefix:
        return False
    return facts.upper is None or facts.upper[:size] >= prefix


def _only_value(facts: Facts, value: Any) -> bool:
    return facts.nans == Share.NONE and facts.lower is not None and facts.lower == facts.upper == value


def _inside(facts: Facts, wanted: tuple[int, frozenset[int]]) -> bool:
    """Whether every value is known to be in one of these buckets. ``wanted``: their number in all, and which."""
    count, buckets = wanted
    return any(
        each == count and all(bucket in buckets for bucket in range(low, high + 1)) for each, low, high in facts.buckets
    )


def _outside(facts: Facts, wanted: tuple[int, frozenset[int]]) -> bool:
    """Whether every value is known to be in none of these buckets."""
    count, buckets = wanted
    return any(
        each == count and not any(low <= bucket <= high for bucket in buckets) for each, low, high in facts.buckets
    )


_MAY: dict[str, Test] = {
    "lt": partial(_may_be_below, included=False),
    "le": partial(_may_be_below, included=True),
    "gt": partial(_may_be_above, included=False),
    "ge": partial(_may_be_above, included=True),
    "eq": _may_equal,
    "ne": lambda facts, value: facts.nulls != Share.ALL and not _only_value(facts, value),
    "in": lambda facts, values: any(_may_equal(facts, value) for value in values),
    "starts": _may_start,
    "null": lambda facts, _: facts.nulls != Share.NONE,
    "notnull": lambda facts, _: facts.nulls != Share.ALL,
    "nan": lambda facts, _: facts.nulls != Share.ALL and facts.nans != Share.NONE,
    "notnan": lambda facts, _: facts.nulls != Share.ALL and facts.nans != Share.ALL,
    "bucket": lambda facts, wanted: facts.nulls != Share.ALL and not _outside(facts, wanted),
    "notbucket": lambda facts, wanted: facts.nulls != Share.ALL and not _inside(facts, wanted),
}


def _all_below(facts: Facts, value: Any, *, included: bool) -> bool:
    if facts.nulls != Share.NONE or facts.nans != Share.NONE or facts.upper is None:
        return False
    return bool(facts.upper < value or (included and facts.upper == value))


def _all_above(facts: Facts, value: Any, *, included: bool) -> bool:
    if facts.nulls != Share.NONE or facts.lower is None:
        return facts.nulls == Share.NONE and facts.nans == Share.ALL
    return bool(facts.lower > value or (included and facts.lower == value))


def _all_differ(facts: Facts, value: Any) -> bool:
    if facts.nulls != Share.NONE:
        return False
    if facts.nans == Share.ALL:
        return True
    outside = (facts.lower is not None and facts.lower > value) or (facts.upper is not None and facts.upper < value)
    return outside or any(not low <= bucket_of(count, value) <= high for count, low, high in facts.buckets)


def _all_start(facts: Facts, prefix: Any) -> bool:
    size = len(prefix)
    known = facts.nulls == Share.NONE and facts.lower is not None and facts.upper is not None
    return known and facts.lower[:size] == prefix and facts.upper[:size] == prefix


_MUST: dict[str, Test] = {
    "lt": partial(_all_below, included=False),
    "le": partial(_all_below, included=True),
    "gt": partial(_all_above, included=False),
    "ge": partial(_all_above, included=True),
    "eq": lambda facts, value: facts.nulls == Share.NONE and _only_value(facts, value),
    "ne": _all_differ,
    "in": lambda facts, values: facts.nulls == Share.NONE and any(_only_value(facts, value) for value in values),
    "starts": _all_start,
    "null": lambda facts, _: facts.nulls == Share.ALL,
    "notnull": lambda facts, _: facts.nulls == Share.NONE,
    "nan": lambda facts, _: facts.nulls == Share.NONE and facts.nans == Share.ALL,
    "notnan": lambda facts, _: facts.nulls == Share.NONE and facts.nans == Share.NONE,
    "bucket": lambda facts, wanted: facts.nulls == Share.NONE and _inside(facts, wanted),
    "notbucket": lambda facts, wanted: facts.nulls == Share.NONE and _outside(facts, wanted),
}


@lru_cache(maxsize=65536)
def bucket_of(count: int, value: Any) -> int:
    """Iceberg's bucket of a value in internal form. Integers of every width, dates and times hash alike."""
    from pyiceberg.types import BinaryType, LongType, StringType

    kind: IcebergType = LongType()
    if isinstance(value, str):
        kind = StringType()
    elif isinstance(value, bytes):
        kind = BinaryType()
    elif not isinstance(value, int):
        exponent = value.as_tuple().exponent
        kind = DecimalType(38, max(0, -int(exponent)))
    return int(BucketTransform(count).transform(kind)(value) or 0)
