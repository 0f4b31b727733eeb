"""Decides from statistics alone whether a file may hold, or holds only, rows that a filter selects.

Manifest summaries, partition values, a file's column bounds and a Parquet row group's are all turned into the same
thing, Facts about a column, so one evaluator serves them all and evidence of several kinds adds up. The rows' order is
Spark's: NaN is greater than every number. Nothing here trusts a statistic that is missing.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from pyiceberg import expressions as ice
from pyiceberg.conversions import from_bytes
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    TruncateTransform,
    YearTransform,
)
from pyiceberg.types import DateType, DecimalType, DoubleType, FloatType, IcebergType, PrimitiveType

from frazil.model import DataFile, FieldSummary

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
    """How many of the rows have some property."""

    NONE = 0
    UNKNOWN = 1
    ALL = 2


@dataclass(slots=True)
class Facts:
    """What is known of one column over some rows. ``None`` bounds: unknown, or there is no value to bound."""

    lower: Any = None
    upper: Any = None
    nulls: Share = Share.UNKNOWN
    nans: Share = Share.UNKNOWN
    """Among the values that are not NULL."""
    buckets: tuple[tuple[int, int, int], ...] = ()
    """(number of buckets, lowest, highest) of each bucket transform."""

    def together(self, other: Facts) -> Facts:
        """Both are true of the same rows."""
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
    """Whether every value is known to be in one of these buckets, of so many."""
    count, buckets = wanted
    return any(
        each == count and all(bucket in buckets for bucket in range(low, high + 1)) for each, low, high in facts.buckets
    )


def _outside(facts: Facts, wanted: tuple[int, frozenset[int]]) -> bool:
    """Whether every value is known to be in none of them."""
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


# Facts from where


class FileFacts:
    """Reads Facts off a file's statistics, and off its partition where the filter's columns are partition sources."""

    def __init__(self, schema: Schema, field_ids: frozenset[int], specs: Mapping[int, PartitionSpec]) -> None:
        self._decoders = {each: _decoder(schema, each) for each in field_ids}
        self._sources = {spec_id: _sources(spec, schema, field_ids) for spec_id, spec in specs.items()}
        self._partitions: dict[tuple[int, tuple[Any, ...]], dict[int, Facts]] = {}

    def of_file(self, file: DataFile) -> Lookup:
        known = self.of_partition(file.spec_id, file.partition)

        def lookup(field_id: int) -> Facts:
            facts = self._decoders[field_id](file)
            more = known.get(field_id)
            return facts if more is None else facts.together(more)

        return lookup

    def of_partition(self, spec_id: int, partition: tuple[Any, ...]) -> dict[int, Facts]:
        """Facts that hold for every row of a partition, by field id."""
        sources = self._sources.get(spec_id)
        if not sources:
            return {}
        key = (spec_id, partition)
        found = self._partitions.get(key)
        if found is None:
            found = {}
            for position, field_id, reading in sources:
                if position < len(partition):
                    _add(found, field_id, reading.of_value(partition[position]))
            self._partitions[key] = found
        return found

    def of_manifest(self, spec_id: int, summaries: tuple[FieldSummary, ...]) -> Lookup:
        """Facts that hold for every row of every file of a manifest."""
        found: dict[int, Facts] = {}
        for position, field_id, reading in self._sources.get(spec_id, ()):
            if position < len(summaries):
                _add(found, field_id, reading.of_summary(summaries[position]))
        return lambda field_id: found.get(field_id) or Facts()


def _add(found: dict[int, Facts], field_id: int, facts: Facts) -> None:
    found[field_id] = found[field_id].together(facts) if field_id in found else facts


def _decoder(schema: Schema, field_id: int) -> Callable[[DataFile], Facts]:
    kind = schema.find_type(field_id)
    floating = isinstance(kind, FloatType | DoubleType)
    bounded = isinstance(kind, PrimitiveType)
    decode: Callable[[bytes], Any] = partial(from_bytes.dispatch(type(kind)), kind)

    def read(file: DataFile) -> Facts:
        lower = file.lower_bounds.get(field_id) if bounded else None
        upper = file.upper_bounds.get(field_id) if bounded else None
        values, nulls = file.value_counts.get(field_id), file.null_value_counts.get(field_id)
        return Facts(
            lower=_usable(decode(lower)) if lower is not None else None,
            upper=_usable(decode(upper)) if upper is not None else None,
            nulls=_share(nulls, values),
            nans=_nans(file, field_id, values, nulls) if floating else Share.NONE,
        )

    return read


def _usable(value: Any) -> Any:
    # Some writers put NaN into bounds, which then bound nothing.
    return None if value != value else value


def _share(some: int | None, of: int | None) -> Share:
    if some == 0:
        return Share.NONE
    return Share.ALL if some is not None and some == of else Share.UNKNOWN


def _nans(file: DataFile, field_id: int, values: int | None, nulls: int | None) -> Share:
    nans = file.nan_value_counts.get(field_id)
    if nans == 0:
        return Share.NONE
    return _share(nans, None if values is None or nulls is None else values - nulls)


# Partition values as facts about their source column


@dataclass(frozen=True, slots=True)
class _Reading:
    """How one partition field speaks about its source column."""

    low: Callable[[Any], Any]
    high: Callable[[Any], Any]
    result: IcebergType
    floating: bool
    bucket: int | None = None

    def of_value(self, value: Any) -> Facts:
        if value is None:
            return Facts(nulls=Share.ALL, nans=Share.NONE)
        value = _plain(value)
        if value != value:
            return Facts(nulls=Share.NONE, nans=Share.ALL)
        return self._between(value, value, nulls=Share.NONE, nans=Share.NONE)

    def of_summary(self, summary: FieldSummary) -> Facts:
        nans = Share.UNKNOWN if self.floating and summary.contains_nan is not False else Share.NONE
        if summary.lower_bound is None or summary.upper_bound is None:
            only_null = summary.contains_null and nans == Share.NONE
            return Facts(nulls=Share.ALL if only_null else Share.UNKNOWN, nans=nans)
        decode: Callable[[bytes], Any] = partial(from_bytes.dispatch(type(self.result)), self.result)
        nulls = Share.UNKNOWN if summary.contains_null else Share.NONE
        lower: Any = decode(summary.lower_bound)
        upper: Any = decode(summary.upper_bound)
        if lower != lower or upper != upper:
            return Facts(nulls=nulls, nans=nans)
        return self._between(lower, upper, nulls=nulls, nans=nans)

    def _between(self, lower: Any, upper: Any, *, nulls: Share, nans: Share) -> Facts:
        if self.bucket is not None:
            return Facts(nulls=nulls, nans=nans, buckets=((self.bucket, lower, upper),))
        return Facts(lower=self.low(lower), upper=self.high(upper), nulls=nulls, nans=nans)


def _plain(value: Any) -> Any:
    # Bounds hold a uuid as bytes.
    return value.bytes if hasattr(value, "bytes") and hasattr(value, "hex") and not isinstance(value, bytes) else value


def partition_range(field: PartitionField, source: IcebergType, value: Any) -> tuple[Any, Any] | None:
    """The least and the greatest value of the source column that a partition may hold, each None where unlimited.

    None for a transform that does not keep the order. The value is not null and not NaN.
    """
    reading = _reading(field, source)
    return None if reading is None or reading.bucket is not None else (reading.low(value), reading.high(value))


def _sources(spec: PartitionSpec, schema: Schema, field_ids: frozenset[int]) -> tuple[tuple[int, int, _Reading], ...]:
    found = []
    for position, field in enumerate(spec.fields):
        if field.source_id in field_ids:
            reading = _reading(field, schema.find_type(field.source_id))
            if reading is not None:
                found.append((position, field.source_id, reading))
    return tuple(found)


def _reading(field: PartitionField, source: IcebergType) -> _Reading | None:
    transform = field.transform
    floating = isinstance(source, FloatType | DoubleType)
    result = transform.result_type(source)
    if isinstance(transform, IdentityTransform):
        return _Reading(_same, _same, result, floating)
    if isinstance(transform, BucketTransform):
        return _Reading(_same, _same, result, False, bucket=transform.num_buckets)
    if isinstance(transform, TruncateTransform):
        high = partial(_truncated_high, width=transform.width, source=source)
        return _Reading(_same, high, result, False)
    start = _PERIOD_STARTS.get(type(transform))
    if start is None:
        return None  # void, or a transform this version does not know: it says nothing
    scale = 1 if isinstance(source, DateType) else 86_400_000_000
    if start is _hours:
        return _Reading(_hours, lambda value: _hours(value + 1) - 1, result, False)
    return _Reading(lambda value: start(value) * scale, lambda value: start(value + 1) * scale - 1, result, False)


def _same(value: Any) -> Any:
    return value


def _hours(value: int) -> int:
    return value * 3_600_000_000


def _month_start(months: int) -> int:
    """Days since 1970 of the first day of a month counted from January 1970."""
    year, month = 1970 + months // 12, months % 12 + 1
    # Days from civil (Gregorian) dates of any year, also beyond Python's calendar.
    shifted = year - (month <= 2)
    era, of_era = shifted // 400, shifted % 400
    day_of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + day_of_year - 719_468


_PERIOD_STARTS: dict[type, Callable[[int], int]] = {
    YearTransform: lambda years: _month_start(years * 12),
    MonthTransform: _month_start,
    DayTransform: _same,
    HourTransform: _hours,
}


def _truncated_high(value: Any, *, width: int, source: IcebergType) -> Any:
    if isinstance(value, int):
        return value + width - 1
    if isinstance(source, DecimalType):
        from decimal import Decimal

        return value + Decimal(width - 1).scaleb(-source.scale)
    if len(value) < width:
        return value  # shorter than the cut: the whole value
    return _successor(value)


def _successor(prefix: Any) -> Any:
    """A value no smaller than anything that starts with the prefix; None if there is none."""
    if isinstance(prefix, bytes):
        trimmed = prefix.rstrip(b"\xff")
        return trimmed[:-1] + bytes([trimmed[-1] + 1]) if trimmed else None
    for size in range(len(prefix), 0, -1):
        code = ord(prefix[size - 1]) + 1
        if 0xD800 <= code <= 0xDFFF:
            code = 0xE000  # surrogates are no characters
        if code <= 0x10FFFF:
            return prefix[: size - 1] + chr(code)
    return None


# The same tree as PyIceberg's expression


def to_pyiceberg(tree: Tree, schema: Schema, *, unknown: bool) -> ice.BooleanExpression:
    """For PyIceberg's evaluators, whose NULL and NaN rules are spelled out here where they differ from the atoms'.

    ``unknown`` replaces what those evaluators would get wrong: True in an inclusive tree, False in a strict one.
    """
    if isinstance(tree, bool):
        return _always(tree)
    if isinstance(tree, Both):
        return _fold(ice.And, [to_pyiceberg(part, schema, unknown=unknown) for part in tree.parts])
    if isinstance(tree, Either):
        return _fold(ice.Or, [to_pyiceberg(part, schema, unknown=unknown) for part in tree.parts])
    return _always(unknown) if _misread(tree, schema, inclusive=unknown) else _predicate(tree, schema)


def _always(value: bool) -> ice.BooleanExpression:
    return ice.AlwaysTrue() if value else ice.AlwaysFalse()


def _misread(atom: Atom, schema: Schema, *, inclusive: bool) -> bool:
    if atom.op in ("bucket", "notbucket"):
        return True  # it has no predicate on a transform of a column
    nested = all(field.field_id != atom.field_id for field in schema.fields)
    if nested and (not inclusive or atom.op == "null"):
        # It takes a required field of an optional struct for never NULL, and its strict evaluator knows no nesting.
        return True
    # It takes infinity for a number out of a 32-bit float's range.
    values = atom.value if isinstance(atom.value, tuple) else (atom.value,)
    return any(isinstance(value, float) and value in (float("inf"), float("-inf")) for value in values)


def _fold(join: Any, parts: list[ice.BooleanExpression]) -> ice.BooleanExpression:
    # In halves: PyIceberg's visitors recurse, and a chain of thousands would be too deep.
    if len(parts) == 1:
        return parts[0]
    middle = len(parts) // 2
    return join(_fold(join, parts[:middle]), _fold(join, parts[middle:]))  # type: ignore[no-any-return]


# Its classes are pydantic models whose positional arguments type checkers do not see.
_ice: Any = ice
_PREDICATES: dict[str, Callable[[str, Any], ice.BooleanExpression]] = {
    "lt": _ice.LessThan,
    "le": _ice.LessThanOrEqual,
    "gt": _ice.GreaterThan,
    "ge": _ice.GreaterThanOrEqual,
    "eq": _ice.EqualTo,
    "ne": _ice.NotEqualTo,
    "in": lambda name, values: _ice.In(name, set(values)),
    "starts": _ice.StartsWith,
    "null": lambda name, _: _ice.IsNull(name),
    "notnull": lambda name, _: _ice.NotNull(name),
    "nan": lambda name, _: _ice.IsNaN(name),
    "notnan": lambda name, _: _ice.NotNaN(name),
}


def _predicate(atom: Atom, schema: Schema) -> ice.BooleanExpression:
    name = schema.find_column_name(atom.field_id) or ""
    floating = isinstance(schema.find_type(atom.field_id), FloatType | DoubleType)
    predicate = _PREDICATES[atom.op](name, atom.value)
    if floating and atom.op in ("gt", "ge"):
        predicate = ice.Or(predicate, _ice.IsNaN(name))
    elif floating and atom.op in ("lt", "le", "eq", "in"):
        predicate = ice.And(predicate, _ice.NotNaN(name))
    return predicate if atom.op in ("null", "notnull") else ice.And(_ice.NotNull(name), predicate)
