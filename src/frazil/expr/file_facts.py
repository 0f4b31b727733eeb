"""Facts about columns from a table's metadata: bounds and counts of files, partition values and their summaries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

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

from frazil.expr.facts import Facts, Lookup, Share
from frazil.model import DataFile, FieldSummary


class FileFacts:
    """Facts from a file's statistics, and from its partition where the filter's columns are partition sources."""

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
            for position, field_id, bounds in sources:
                if position < len(partition):
                    _add(found, field_id, bounds.of_value(partition[position]))
            self._partitions[key] = found
        return found

    def of_manifest(self, spec_id: int, summaries: tuple[FieldSummary, ...]) -> Lookup:
        """Facts that hold for every row of every file of a manifest."""
        found: dict[int, Facts] = {}
        for position, field_id, bounds in self._sources.get(spec_id, ()):
            if position < len(summaries):
                _add(found, field_id, bounds.of_summary(summaries[position]))
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
    # Some writers put NaN into bounds, which then are useless.
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
class _SourceBounds:
    """What a value of one partition field says about its source column."""

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
    # Bounds hold uuids as bytes.
    return value.bytes if hasattr(value, "bytes") and hasattr(value, "hex") and not isinstance(value, bytes) else value


def partition_range(field: PartitionField, source: IcebergType, value: Any) -> tuple[Any, Any] | None:
    """The least and the greatest value of the source column that a partition may hold, each None where unlimited.

    None for a transform that does not keep the order. The value is not null and not NaN.
    """
    bounds = _source_bounds(field, source)
    return None if bounds is None or bounds.bucket is not None else (bounds.low(value), bounds.high(value))


def _sources(
    spec: PartitionSpec, schema: Schema, field_ids: frozenset[int]
) -> tuple[tuple[int, int, _SourceBounds], ...]:
    found = []
    for position, field in enumerate(spec.fields):
        if field.source_id in field_ids:
            bounds = _source_bounds(field, schema.find_type(field.source_id))
            if bounds is not None:
                found.append((position, field.source_id, bounds))
    return tuple(found)


def _source_bounds(field: PartitionField, source: IcebergType) -> _SourceBounds | None:
    transform = field.transform
    floating = isinstance(source, FloatType | DoubleType)
    result = transform.result_type(source)
    if isinstance(transform, IdentityTransform):
        return _SourceBounds(_same, _same, result, floating)
    if isinstance(transform, BucketTransform):
        return _SourceBounds(_same, _same, result, False, bucket=transform.num_buckets)
    if isinstance(transform, TruncateTransform):
        high = partial(_truncated_high, width=transform.width, source=source)
        return _SourceBounds(_same, high, result, False)
    start = _PERIOD_STARTS.get(type(transform))
    if start is None:
        return None  # void, or a transform unknown to this version: no facts
    scale = 1 if isinstance(source, DateType) else 86_400_000_000
    if start is _hours:
        return _SourceBounds(_hours, lambda value: _hours(value + 1) - 1, result, False)
    return _SourceBounds(lambda value: start(value) * scale, lambda value: start(value + 1) * scale - 1, result, False)


def _same(value: Any) -> Any:
    return value


def _hours(value: int) -> int:
    return value * 3_600_000_000


def _month_start(months: int) -> int:
    """Days since 1970 of the first day of a month counted from January 1970."""
    year, month = 1970 + months // 12, months % 12 + 1
    # Days from Gregorian dates of any year, also outside Python's calendar.
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
        return value  # shorter than the width: the whole value
    return _successor(value)


def _successor(prefix: Any) -> Any:
    """A value no smaller than anything that starts with the prefix; None if there is none."""
    if isinstance(prefix, bytes):
        trimmed = prefix.rstrip(b"\xff")
        return trimmed[:-1] + bytes([trimmed[-1] + 1]) if trimmed else None
    for size in range(len(prefix), 0, -1):
        code = ord(prefix[size - 1]) + 1
        if 0xD800 <= code <= 0xDFFF:
            code = 0xE000  # surrogates are not characters
        if code <= 0x10FFFF:
            return prefix[: size - 1] + chr(code)
    return None
