"""Partitioning and sort orders from text, and the partition transforms over Arrow arrays.

Field names are those Iceberg Java gives (``ts_day``, ``id_bucket``, ``name_trunc``), so tables look alike wherever they
were made.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote_plus

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.partitioning import (
    PARTITION_FIELD_ID_START,
    UNPARTITIONED_PARTITION_SPEC,
    PartitionField,
    PartitionFieldValue,
    PartitionKey,
    PartitionSpec,
)
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    UnknownTransform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.typedef import Record
from pyiceberg.types import BinaryType, IcebergType, NestedField, PrimitiveType, StructType

from frazil.errors import InvalidInput, SchemaMismatch, Unsupported
from frazil.format.schemas import match_name, suggestion

if TYPE_CHECKING:
    from pyiceberg.table.sorting import SortField, SortOrder

AnyTransform = Transform[Any, Any]

_PLAIN: dict[str, tuple[Callable[[], AnyTransform], str]] = {
    "identity": (IdentityTransform, ""),
    "void": (VoidTransform, "_null"),
    "always_null": (VoidTransform, "_null"),
    "year": (YearTransform, "_year"),
    "years": (YearTransform, "_year"),
    "month": (MonthTransform, "_month"),
    "months": (MonthTransform, "_month"),
    "day": (DayTransform, "_day"),
    "days": (DayTransform, "_day"),
    "hour": (HourTransform, "_hour"),
    "hours": (HourTransform, "_hour"),
}
_NUMBERED: dict[str, tuple[Callable[[int], AnyTransform], str]] = {
    "bucket": (BucketTransform, "_bucket"),
    "truncate": (TruncateTransform, "_trunc"),
}
_CALL = re.compile(r"(?P<function>\w+)\s*\((?P<arguments>.*)\)", re.DOTALL)
_SORT = re.compile(
    r"(?P<term>.+?)(?:\s+(?P<direction>asc|desc))?(?:\s+nulls\s+(?P<nulls>first|last))?", re.IGNORECASE | re.DOTALL
)
_KNOWN = "Known transforms: identity(x) or x, year(x), month(x), day(x), hour(x), bucket(n, x), truncate(n, x), void(x)"
_PARTITION_EXAMPLE = f"{_KNOWN}. For example: partition_by=['day(ts)', 'bucket(16, user_id)']"
_SORT_EXAMPLE = f"{_KNOWN}. For example: sort_by=['ts desc', 'bucket(16, id) asc nulls last']"


@dataclass(frozen=True, slots=True)
class _Term:
    """One transform of one column."""

    transform: AnyTransform
    column: str
    field: NestedField
    name: str


def parse_partitioning(texts: Sequence[str], schema: Schema) -> PartitionSpec:
    """A new table's partition spec, from texts such as ``"day(ts)"``. Raises InvalidInput."""
    terms = [_parse_term(text, schema, _PARTITION_EXAMPLE) for text in _listed(texts, _PARTITION_EXAMPLE)]
    for position, term in enumerate(terms):
        _check_partition_name(term, schema)
        for other in terms[:position]:
            _check_apart(other, term)
    fields = (
        PartitionField(term.field.field_id, PARTITION_FIELD_ID_START + position, term.transform, term.name)
        for position, term in enumerate(terms)
    )
    return PartitionSpec(*fields) if terms else UNPARTITIONED_PARTITION_SPEC


def parse_sort(texts: Sequence[str], schema: Schema) -> SortOrder:
    """A new table's sort order, from texts such as ``"ts desc"``. Raises InvalidInput."""
    from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder

    fields = [_parse_sort_field(text, schema) for text in _listed(texts, _SORT_EXAMPLE)]
    return SortOrder(*fields) if fields else UNSORTED_SORT_ORDER


def _parse_sort_field(text: str, schema: Schema) -> SortField:
    from pyiceberg.table.sorting import NullOrder, SortDirection, SortField

    found = _SORT.fullmatch(text.strip())
    term = _parse_term(found["term"] if found else text, schema, _SORT_EXAMPLE)
    direction = SortDirection(((found and found["direction"]) or "asc").lower())
    nulls = ((found and found["nulls"]) or ("first" if direction == SortDirection.ASC else "last")).lower()
    return SortField(term.field.field_id, term.transform, direction, NullOrder(f"nulls-{nulls}"))


def _listed(texts: Sequence[str], example: str) -> list[str]:
    listed = [texts] if isinstance(texts, str) else list(texts)
    for text in listed:
        if not isinstance(text, str) or not text.strip():
            raise InvalidInput(f"{text!r} is not a transform of a column", advice=example)
    return listed


def _parse_term(text: str, schema: Schema, example: str) -> _Term:
    text = text.strip()
    call = _CALL.fullmatch(text)
    function, arguments = (call["function"].lower(), _split(call["arguments"])) if call else ("identity", [text])
    if function in _PLAIN and len(arguments) == 1:
        make_plain, suffix = _PLAIN[function]
        transform, column = make_plain(), arguments[0]
    elif function in _NUMBERED and len(arguments) == 2:
        make_numbered, suffix = _NUMBERED[function]
        transform, column = make_numbered(_positive(arguments[0], text, example)), arguments[1]
    else:
        known = function in _PLAIN or function in _NUMBERED
        hint = "" if known else suggestion(function, [*_PLAIN, *_NUMBERED]) + " "
        problem = f"{text!r} gives {function} the wrong arguments" if known else f"{text!r} has an unknown transform"
        raise InvalidInput(problem, advice=hint + example)
    name, field = _find(column, schema, text, example)
    _check_transform(transform, name, field, text, example)
    return _Term(transform, name, field, name + suffix)


def _split(arguments: str) -> list[str]:
    """By commas outside back-ticks."""
    return [part.strip() for part in re.findall(r"(?:`[^`]*`|[^,`])+", arguments)]


def _positive(number: str, text: str, example: str) -> int:
    if not number.isascii() or not number.isdigit() or not 0 < int(number) < 2**31:
        raise InvalidInput(f"{text!r} needs a whole number above 0 first, not {number!r}", advice=example)
    return int(number)


def _find(column: str, schema: Schema, text: str, example: str) -> tuple[str, NestedField]:
    names = [name for name in schema.column_names if _only_through_structs(schema, name)]
    found = match_name(column.replace("`", ""), names)
    if found is None:
        raise InvalidInput(
            f"{text!r} does not name a column of the table", advice=f"{suggestion(column, names)} {example}"
        )
    return found, schema.find_field(found)


def _only_through_structs(schema: Schema, name: str) -> bool:
    return source_path(schema, schema.find_field(name).field_id) is not None


def _check_transform(transform: AnyTransform, name: str, field: NestedField, text: str, example: str) -> None:
    kind = field.field_type
    if not isinstance(kind, PrimitiveType):
        raise InvalidInput(f"{text!r}: the column {name!r} is a {_kind(kind)}, not a plain value", advice=example)
    if not transform.can_transform(kind):
        raise InvalidInput(
            f"{text!r}: the column {name!r} has the type {kind}, which {transform} does not take", advice=example
        )


def _kind(kind: IcebergType) -> str:
    return str(kind).partition("<")[0]


def _describe(term: _Term) -> str:
    return f"{term.transform}({term.column})"


def _check_apart(first: _Term, second: _Term) -> None:
    # As in Iceberg Java: two time transforms of one column are redundant, the finer one does it.
    redundant = first.field is second.field and first.transform.dedup_name == second.transform.dedup_name
    if redundant or first.name == second.name:
        raise InvalidInput(
            f"The partitioning names {second.column!r} twice, as {_describe(first)} and as {_describe(second)}",
            advice="Keep one of them",
        )


def _check_partition_name(term: _Term, schema: Schema) -> None:
    # Iceberg Java refuses to load a spec whose field is named like another column.
    clash = match_name(term.name, schema.column_names)
    if clash is not None and not (clash == term.column and isinstance(term.transform, IdentityTransform)):
        raise InvalidInput(
            f"{_describe(term)} would make the partition field {term.name!r}, and a column has that name",
            advice="Rename the column",
        )


# Over Arrow arrays


def source_path(schema: Schema, field_id: int) -> tuple[int, ...] | None:
    """Where a column is: its position, then the positions inside structs. None: inside a list or map, or missing."""
    return _path(schema.as_struct(), field_id)


def _path(struct: StructType, field_id: int) -> tuple[int, ...] | None:
    for position, field in enumerate(struct.fields):
        if field.field_id == field_id:
            return (position,)
        if isinstance(field.field_type, StructType) and (inner := _path(field.field_type, field_id)) is not None:
            return (position, *inner)
    return None


def column_at(batch: pa.RecordBatch, path: tuple[int, ...]) -> Any:
    """The column at a path; null where a struct around it is null."""
    column = batch.column(path[0])
    return pc.struct_field(column, list(path[1:])) if len(path) > 1 else column


def arrow_transform(transform: AnyTransform, source: IcebergType) -> Callable[[Any], Any]:
    """A transform over Arrow arrays. Raises Unsupported.

    Results are in Iceberg's internal form: dates, times and timestamps as integers, uuids as 16 bytes.
    """
    if isinstance(transform, UnknownTransform):
        raise Unsupported(
            "The table is partitioned or sorted by a transform that this version does not support",
            evidence=repr(transform),
        )
    if isinstance(transform, IdentityTransform):
        return _internal
    if isinstance(transform, VoidTransform):
        return lambda array: pa.nulls(len(array), pa.int32())
    if isinstance(transform, TruncateTransform) and isinstance(source, BinaryType):
        # PyIceberg's own does not take binaries.
        width = transform.width
        return lambda array: pc.binary_slice(array, 0, width)
    apply = transform.pyarrow_transform(source)
    return lambda array: _faithful(transform, array, apply(array))


_MICROS_PER_HOUR = 3_600_000_000


def _faithful(transform: AnyTransform, array: Any, result: Any) -> Any:
    """The result, unless it is one of PyIceberg's silent overflows: a wrong partition hides its rows from filters."""
    wrong = result.null_count != array.null_count
    if isinstance(transform, HourTransform):
        exact = pc.multiply(result.cast(pa.int64()), _MICROS_PER_HOUR)
        wrong = wrong or _any(pc.greater(exact, array.cast(pa.int64())))
        wrong = wrong or _any(pc.less_equal(pc.add(exact, _MICROS_PER_HOUR), array.cast(pa.int64())))
    elif isinstance(transform, TruncateTransform) and pa.types.is_integer(array.type):
        wrong = wrong or _any(pc.greater(result, array))
    elif isinstance(transform, TruncateTransform) and pa.types.is_decimal(array.type):
        wrong = wrong or not _fits_precision(result)
    if wrong:
        raise SchemaMismatch(
            f"Some values are too large or too small for a partition value of {transform}",
            advice="Leave out those rows, or partition the table by something else",
        )
    return result


def _fits_precision(decimals: Any) -> bool:
    try:
        decimals.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _any(mask: Any) -> bool:
    return bool(pc.any(mask).as_py())


def _internal(array: Any) -> Any:
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return array.storage
    if pa.types.is_date32(kind):
        return array.cast(pa.int32())
    if pa.types.is_timestamp(kind) or pa.types.is_time64(kind):
        return array.cast(pa.int64())
    return array


class _Key(PartitionKey):
    """PyIceberg's own key refuses two transforms of one column; its location providers need the path alone."""

    def to_path(self) -> str:
        values = Record(*(each.value for each in self.field_values))
        try:
            path = self.partition_spec.partition_to_path(values, self.schema)
        except (OverflowError, ValueError):
            # Beyond Python's calendar.
            path = "/".join(f"{_quoted(each.field.name)}={_quoted(each.value)}" for each in self.field_values)
        return "/".join(_shortened(part) for part in path.split("/"))


# Most file systems allow 255 bytes. Paths may be shortened, as the manifest has the partition.
_LONGEST_NAME = 200


def _shortened(part: str) -> str:
    return part if len(part.encode()) <= _LONGEST_NAME else part.encode()[:_LONGEST_NAME].decode(errors="ignore") + "~"


def reaches_everything(spec: PartitionSpec) -> bool:
    """Whether the spec has one partition only: no fields, or void fields alone (as in Iceberg Java)."""
    return all(isinstance(field.transform, VoidTransform) for field in spec.fields)


def partition_key(spec: PartitionSpec, schema: Schema, values: tuple[Any, ...]) -> PartitionKey | None:
    """A file's partition in the form a location provider takes; None: unpartitioned."""
    if spec.is_unpartitioned():
        return None
    return _Key([PartitionFieldValue(f, v) for f, v in zip(spec.fields, values, strict=True)], spec, schema)


def _quoted(part: object) -> str:
    return quote_plus(str(part), safe="")


def partition_identity(partition: tuple[Any, ...]) -> tuple[Any, ...]:
    """A hashable key of a partition: NaN equals NaN, and -0.0 differs from 0.0, as readers may use it as data."""
    return tuple(repr(value) if isinstance(value, float) else value for value in partition)
