"""Column statistics for manifests, from Parquet footers.

For files that Frazil wrote: other writers may use other units and orders under the same physical types. A bound that is
too tight loses rows, so a doubtful bound is dropped. PyIceberg's own collector is not used for bounds: it keeps
those of the other row groups when one has none, fails on days beyond Python's calendar and on texts cut before
the surrogates, has no bounds inside structs and no counts of NaN.
"""

from __future__ import annotations

import logging
import re
import struct
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    LongType,
    PrimitiveType,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from frazil.format.arrow_schema import parquet_paths
from frazil.format.partitions import column_at, source_path

logger = logging.getLogger(__name__)

Mode = Literal["none", "counts", "truncate", "full"]

DEFAULT_MODE = "write.metadata.metrics.default"
COLUMN_MODE = "write.metadata.metrics.column."
MAX_INFERRED_COLUMNS = "write.metadata.metrics.max-inferred-column-defaults"
_DEFAULT_LENGTH = 16
_DEFAULT_MAX_INFERRED = 100
_TRUNCATE = re.compile(r"truncate\((\d+)\)")


@dataclass(frozen=True, slots=True)
class Metrics:
    """How much is kept of one column; ``length`` cuts texts and binaries, None: whole."""

    mode: Mode
    length: int | None = None


@dataclass(frozen=True, slots=True)
class Column:
    """One leaf of the schema. ``path`` leads to it through structs; None: it is in a list or map and has no bounds."""

    field_id: int
    kind: PrimitiveType
    metrics: Metrics
    path: tuple[int, ...] | None


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """What to collect for a schema: columns by their path in the Parquet file."""

    columns: Mapping[str, Column]
    floats: tuple[Column, ...]
    uuids: tuple[Column, ...]


@dataclass(slots=True)
class Observed:
    """Facts that the footer lacks, gathered from the rows while a file is written."""

    nans: dict[int, int] = field(default_factory=dict)
    uuid_signs: dict[int, set[tuple[bool, bool]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FileStatistics:
    column_sizes: Mapping[int, int]
    value_counts: Mapping[int, int]
    null_value_counts: Mapping[int, int]
    nan_value_counts: Mapping[int, int]
    lower_bounds: Mapping[int, bytes]
    upper_bounds: Mapping[int, bytes]
    split_offsets: tuple[int, ...]


def plan(schema: Schema, properties: Mapping[str, str], sorted_ids: Collection[int] = ()) -> Plan:
    """The plan for files of this schema (names as in the files), by the table's ``write.metadata.metrics.*``."""
    paths = parquet_paths(schema)
    modes = _modes(schema, list(paths.values()), properties, sorted_ids)
    columns = {
        path: Column(field_id, kind, modes[field_id], source_path(schema, field_id))
        for path, field_id in paths.items()
        if isinstance(kind := schema.find_type(field_id), PrimitiveType)
    }
    watched = [column for column in columns.values() if column.path is not None and column.metrics.mode != "none"]
    return Plan(
        columns,
        floats=tuple(column for column in watched if isinstance(column.kind, FloatType | DoubleType)),
        uuids=tuple(column for column in watched if isinstance(column.kind, UUIDType)),
    )


def _modes(
    schema: Schema, ids: list[int], properties: Mapping[str, str], sorted_ids: Collection[int]
) -> dict[int, Metrics]:
    default = _metrics(properties.get(DEFAULT_MODE), Metrics("truncate", _DEFAULT_LENGTH))
    # As in Iceberg Java: wide tables get metrics for their first columns only, unless a default was asked for.
    limit = len(ids) if DEFAULT_MODE in properties else _max_inferred(properties)
    modes = {}
    for position, field_id in enumerate(ids):
        mode = default if position < limit else Metrics("none")
        if field_id in sorted_ids and mode.mode in ("none", "counts"):
            mode = Metrics("truncate", _DEFAULT_LENGTH)
        modes[field_id] = _metrics(properties.get(COLUMN_MODE + (schema.find_column_name(field_id) or "")), mode)
    return modes


def _max_inferred(properties: Mapping[str, str]) -> int:
    text = properties.get(MAX_INFERRED_COLUMNS, "")
    return int(text) if text.isdigit() else _DEFAULT_MAX_INFERRED


def _metrics(text: str | None, default: Metrics) -> Metrics:
    mode = (text or "").strip().lower()
    match mode:
        case "":
            return default
        case "none" | "counts" | "full":
            return Metrics(mode)
    found = _TRUNCATE.fullmatch(mode)
    if found and int(found[1]) > 0:
        return Metrics("truncate", int(found[1]))
    # As in Iceberg Java: a mistyped property must not make the table unwritable.
    logger.warning("Ignoring the unknown metrics mode %r; use none, counts, truncate(n) or full", text)
    return default


def observe(plan: Plan, rows: pa.Table, observed: Observed) -> None:
    """Add what these rows show. Call it with every row that goes into the file."""
    if not plan.floats and not plan.uuids:
        return
    for batch in rows.to_batches():
        for column in plan.floats:
            nans = pc.sum(pc.is_nan(_at(batch, column)), min_count=0).as_py()
            observed.nans[column.field_id] = observed.nans.get(column.field_id, 0) + nans
        for column in plan.uuids:
            observed.uuid_signs.setdefault(column.field_id, set()).update(_signs(_at(batch, column)))


def _at(batch: pa.RecordBatch, column: Column) -> Any:
    assert column.path is not None
    return column_at(batch, column.path)


def _signs(uuids: Any) -> Iterable[tuple[bool, bool]]:
    """Which top bits the two halves of the uuids have."""
    storage = uuids.storage if isinstance(uuids.type, pa.BaseExtensionType) else uuids
    halves = [pc.greater_equal(_byte(storage, position), pa.scalar(b"\x80")) for position in (0, 8)]
    pairs = pa.table({"high": halves[0], "low": halves[1]}).group_by(["high", "low"]).aggregate([]).to_pylist()
    return {(pair["high"], pair["low"]) for pair in pairs if pair["high"] is not None}


def _byte(storage: Any, position: int) -> Any:
    return pc.binary_slice(storage, position, position + 1).cast(pa.binary())


def file_statistics(footer: Any, plan: Plan, observed: Observed) -> FileStatistics:
    """The statistics of a file, from its Parquet footer and from what its rows showed."""
    gathered = [_Gathered(column) for column in _in_file_order(footer, plan)]
    split_offsets = []
    for position in range(footer.num_row_groups):
        group = footer.row_group(position)
        split_offsets.append(_start(group.column(0)))
        for index, column in enumerate(gathered):
            column.add(group.column(index))
    bounds = {each.column.field_id: each.bounds(observed) for each in gathered}
    kept = [each for each in gathered if each.column.metrics.mode != "none"]
    return FileStatistics(
        column_sizes={each.column.field_id: each.size for each in gathered},
        value_counts={each.column.field_id: each.values for each in kept},
        null_value_counts={each.column.field_id: each.nulls for each in kept if each.nulls is not None},
        nan_value_counts=dict(observed.nans),
        lower_bounds={field_id: lower for field_id, (lower, _) in bounds.items() if lower is not None},
        upper_bounds={field_id: upper for field_id, (_, upper) in bounds.items() if upper is not None},
        split_offsets=tuple(sorted(split_offsets)),
    )


def _in_file_order(footer: Any, plan: Plan) -> list[Column]:
    return [plan.columns[footer.schema.column(index).path] for index in range(footer.num_columns)]


def _start(column: Any) -> int:
    """Where a row group starts: its first column's dictionary, if it has one in front of its data."""
    if column.has_dictionary_page and column.dictionary_page_offset < column.data_page_offset:
        return int(column.dictionary_page_offset)
    return int(column.data_page_offset)


class _Gathered:
    """One column over the row groups of a file."""

    __slots__ = ("bounded", "column", "lower", "nulls", "size", "upper", "values")

    def __init__(self, column: Column) -> None:
        self.column = column
        self.size = 0
        self.values = 0
        self.nulls: int | None = 0
        self.lower: Any = None
        self.upper: Any = None
        self.bounded = column.path is not None and column.metrics.mode in ("truncate", "full")

    def add(self, chunk: Any) -> None:
        self.size += chunk.total_compressed_size
        self.values += chunk.num_values
        found = chunk.statistics
        if found is None or not found.has_null_count:
            self.nulls, self.bounded = None, False
            return
        if self.nulls is not None:
            self.nulls += found.null_count
        if self.bounded:
            self._widen(found, chunk.num_values)

    def _widen(self, found: Any, values: int) -> None:
        if found.has_min_max:
            decode = _decoder(self.column.kind, found.physical_type)
            if decode is None:
                self.bounded = False
                return
            low, high = decode(found.min_raw), decode(found.max_raw)
            self.lower = low if self.lower is None else min(self.lower, low)
            self.upper = high if self.upper is None else max(self.upper, high)
        elif found.null_count < values and not isinstance(self.column.kind, FloatType | DoubleType):
            # Values without bounds, such as very long binaries: the file has no bounds. Floats have none when
            # all are NaN, which bounds do not cover anyway.
            self.bounded = False

    def bounds(self, observed: Observed) -> tuple[bytes | None, bytes | None]:
        if not self.bounded or self.lower is None:
            return None, None
        kind = self.column.kind
        if isinstance(kind, UUIDType) and not _order_is_certain(self.column, observed):
            return None, None
        length = self.column.metrics.length
        match kind:
            case StringType():
                return _text_bounds(self.lower, self.upper, length)
            case BinaryType():
                return self.lower[:length], _upper_bytes(self.upper, length)
        encode = _ENCODERS[type(kind)]
        return encode(self.lower), encode(self.upper)


def _order_is_certain(column: Column, observed: Observed) -> bool:
    # Releases of Iceberg Java compare the halves of a uuid as signed numbers, Parquet and others as unsigned bytes. The
    # two orders agree when all first halves have one sign, and all second halves.
    return len(observed.uuid_signs.get(column.field_id, ())) == 1


_PHYSICAL: dict[type[PrimitiveType], frozenset[str]] = {
    BooleanType: frozenset({"BOOLEAN"}),
    IntegerType: frozenset({"INT32"}),
    LongType: frozenset({"INT64", "INT32"}),
    FloatType: frozenset({"FLOAT"}),
    DoubleType: frozenset({"DOUBLE", "FLOAT"}),
    DateType: frozenset({"INT32"}),
    TimeType: frozenset({"INT64"}),
    TimestampType: frozenset({"INT64"}),
    TimestamptzType: frozenset({"INT64"}),
    StringType: frozenset({"BYTE_ARRAY"}),
    BinaryType: frozenset({"BYTE_ARRAY"}),
    FixedType: frozenset({"FIXED_LEN_BYTE_ARRAY"}),
    UUIDType: frozenset({"FIXED_LEN_BYTE_ARRAY"}),
    DecimalType: frozenset({"INT32", "INT64", "FIXED_LEN_BYTE_ARRAY"}),
}


def _decoder(kind: PrimitiveType, physical: str) -> Callable[[Any], Any] | None:
    """From the footer's raw value to one that orders as Iceberg does; None: the file stores another type."""
    if physical not in _PHYSICAL.get(type(kind), ()):
        return None
    if isinstance(kind, DecimalType) and physical == "FIXED_LEN_BYTE_ARRAY":
        return lambda raw: int.from_bytes(raw, "big", signed=True)
    return lambda raw: raw


def _two_complement(unscaled: int) -> bytes:
    """The specification's form of a decimal: as few bytes as hold the sign."""
    bits = (unscaled if unscaled >= 0 else ~unscaled).bit_length()
    return unscaled.to_bytes(bits // 8 + 1, "big", signed=True)


# Single values as bytes: the specification, appendix D.
_INT, _LONG, _FLOAT, _DOUBLE = struct.Struct("<i"), struct.Struct("<q"), struct.Struct("<f"), struct.Struct("<d")
_ENCODERS: dict[type[PrimitiveType], Callable[[Any], bytes]] = {
    BooleanType: lambda value: b"\x01" if value else b"\x00",
    IntegerType: _INT.pack,
    DateType: _INT.pack,
    LongType: _LONG.pack,
    TimeType: _LONG.pack,
    TimestampType: _LONG.pack,
    TimestamptzType: _LONG.pack,
    FloatType: _FLOAT.pack,
    DoubleType: _DOUBLE.pack,
    FixedType: bytes,
    UUIDType: bytes,
    DecimalType: _two_complement,
}


def _text_bounds(lower: bytes, upper: bytes, length: int | None) -> tuple[bytes | None, bytes | None]:
    try:
        low, high = lower.decode(), upper.decode()
    except UnicodeDecodeError:
        # Not text after all: other readers may order it in other ways.
        return None, None
    cut = _upper_text(high, length)
    return low[:length].encode(), None if cut is None else cut.encode()


def _upper_text(text: str, length: int | None) -> str | None:
    """A text of at most ``length`` code points that no text starting like this one exceeds; None: there is none."""
    if length is None or len(text) <= length:
        return text
    for end in range(length, 0, -1):
        following = _next_code_point(text[end - 1])
        if following is not None:
            return text[: end - 1] + following
    return None


def _next_code_point(char: str) -> str | None:
    code = ord(char) + 1
    if code == 0xD800:
        # Surrogates have no place in UTF-8.
        code = 0xE000
    return chr(code) if code <= 0x10FFFF else None


def _upper_bytes(data: bytes, length: int | None) -> bytes | None:
    if length is None or len(data) <= length:
        return data
    cut = data[:length].rstrip(b"\xff")
    return cut[:-1] + bytes([cut[-1] + 1]) if cut else None
