"""Converts rows to a table's exact types, by column name, with lossless casts only.

All problems of a batch are reported in one SchemaMismatch.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

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
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from frazil.errors import SchemaMismatch
from frazil.format.schemas import IdentityKey, arrow_schema, is_arrow_bytes, is_arrow_list, is_arrow_text, suggestion

_MOST_SHOWN = 20


class Misfit(Exception):
    """Why one column's values do not fit, and what to do. Collected in Problems, never raised to the user."""

    def __init__(self, detail: str, advice: str = "") -> None:
        self.detail = detail
        self.advice = advice
        super().__init__(detail)


@dataclass(slots=True)
class Problems:
    """What is wrong with a batch, line by line."""

    lines: list[str] = field(default_factory=list)

    def add(self, path: str, misfit: Misfit, expected: IcebergType | None = None, given: object = None) -> None:
        types = f" is {expected}{'' if given is None else f', given {given}'}" if expected is not None else ""
        advice = f" ({misfit.advice})" if misfit.advice else ""
        self.lines.append(f"{path!r}{types}: {misfit.detail}{advice}")

    def raise_any(self) -> None:
        if not self.lines:
            return
        shown = "".join(f"\n  - {line}" for line in self.lines[:_MOST_SHOWN])
        more = f"\n  - and {len(self.lines) - _MOST_SHOWN} more" if len(self.lines) > _MOST_SHOWN else ""
        raise SchemaMismatch(f"The rows do not fit the table:{shown}{more}")


def conform(batch: pa.RecordBatch, schema: Schema) -> pa.RecordBatch:
    """The batch in the table's columns, order and types, with field ids at all levels. Raises SchemaMismatch."""
    return conform_to(batch, schema, arrow_schema(schema))


def conform_to(batch: pa.RecordBatch, schema: Schema, target: pa.Schema) -> pa.RecordBatch:
    """The same, typed by ``target``: the schema's own Arrow form, or that of its files, where names may differ."""
    problems = Problems()
    matched = _match_columns(IdentityKey(schema), batch.schema)
    problems.lines.extend(matched.problems)
    columns = [
        pa.nulls(batch.num_rows, target.field(position).type)
        if source is None
        else _column(batch.column(source), each, target.field(position).type, "", problems)
        for position, (each, source) in enumerate(zip(schema.fields, matched.sources, strict=True))
    ]
    problems.raise_any()
    return pa.RecordBatch.from_arrays([_without_hidden_nulls(each) for each in columns], schema=target)


@dataclass(frozen=True, slots=True)
class _ColumnMatch:
    """The incoming column for each column of the table; None: there is none."""

    sources: tuple[int | None, ...]
    problems: tuple[str, ...]


@lru_cache(maxsize=256)
def _match_columns(schema: IdentityKey, given: pa.Schema) -> _ColumnMatch:
    return _match(schema.value.fields, list(given.names), "")


def _match(fields: tuple[NestedField, ...], names: list[str], path: str) -> _ColumnMatch:
    problems = Problems()
    wanted = {each.name: each for each in fields}
    feeds: dict[str, int] = {}
    for position, name in enumerate(names):
        found = _find(name, wanted, names)
        if found is None and (twin := _find(name, wanted, [])) is not None:
            problems.add(_join(path, name), Misfit(f"{twin!r} is the same column", "Keep one of them"))
        elif found is None:
            advice = f"{suggestion(name, wanted)} Leave it out, or call with merge_schema=True to add it"
            problems.add(_join(path, name), Misfit("the table has no such column", advice))
        elif found in feeds:
            problems.add(_join(path, name), Misfit(f"{names[feeds[found]]!r} is the same column", "Keep one of them"))
        else:
            feeds[found] = position
    for name, each in wanted.items():
        if name not in feeds and each.required:
            detail = "the rows do not have this required column"
            problems.add(_join(path, name), Misfit(detail), each.field_type)
    return _ColumnMatch(tuple(feeds.get(name) for name in wanted), tuple(problems.lines))


def _find(name: str, wanted: Iterable[str], names: list[str]) -> str | None:
    """The table's column for an incoming name: the same, or the only one by case that no other column matches."""
    if name in wanted:
        return name
    close = [each for each in wanted if each.lower() == name.lower() and each not in names]
    return close[0] if len(close) == 1 else None


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _column(array: Any, each: NestedField, target: Any, path: str, problems: Problems, hidden: int = 0) -> Any:
    """Converts one column; if it does not fit, records the problem and returns nulls.

    ``hidden`` nulls are those of a struct around the column, which may be null although the column is required.
    """
    name = _join(path, each.name)
    try:
        converted = _convert(array, each.field_type, target, name, problems)
    except Misfit as misfit:
        problems.add(name, misfit, each.field_type, array.type)
        return pa.nulls(len(array), target)
    nulls = converted.null_count - hidden
    if each.required and nulls:
        detail = f"{nulls} {'value is' if nulls == 1 else 'values are'} null, and the column is required"
        problems.add(name, Misfit(detail, "Fill or drop them"), each.field_type)
    return converted


def _convert(array: Any, kind: IcebergType, target: Any, name: str, problems: Problems) -> Any:
    given = array.type
    if pa.types.is_null(given):
        return pa.nulls(len(array), target)
    if pa.types.is_dictionary(given):
        return _convert(_decoded(array), kind, target, name, problems)
    if pa.types.is_run_end_encoded(given):
        return _convert(pc.call_function("run_end_decode", [array]), kind, target, name, problems)
    if isinstance(given, pa.BaseExtensionType) and not isinstance(given, pa.UuidType):
        return _convert(array.storage, kind, target, name, problems)
    match kind:
        case StructType() if pa.types.is_struct(given):
            return _struct(array, kind, target, name, problems)
        case ListType() if is_arrow_list(given):
            return _list(array, kind, target, name, problems)
        case MapType() if pa.types.is_map(given) or _is_pairs(given):
            return _map(array, kind, target, name, problems)
        case PrimitiveType():
            return _primitive(array, kind, target)
    raise Misfit("the types are not compatible")


def _check_utf8(array: Any) -> None:
    """Raises Misfit for invalid UTF-8: Arrow does not check it, and readers in other languages fail on it."""

    def check(part: Any) -> None:
        part.validate(full=True)

    try:
        check(array)
    except pa.ArrowInvalid as error:
        row = _first_misfit(array, check)
        raise Misfit(f"the text in row {row} of its batch is not valid UTF-8", "Decode the bytes first") from error


def _decoded(array: Any) -> Any:
    values = array.type.value_type
    if pa.types.is_string_view(values) or pa.types.is_binary_view(values):
        # Arrow has no take for views.
        plain = pa.large_string() if pa.types.is_string_view(values) else pa.large_binary()
        array = pa.DictionaryArray.from_arrays(array.indices, array.dictionary.cast(plain))
    return array.dictionary_decode()


# Nested types


def _struct(array: Any, kind: StructType, target: Any, name: str, problems: Problems) -> Any:
    names = [array.type.field(position).name for position in range(array.type.num_fields)]
    matched = _match(kind.fields, names, name)
    problems.lines.extend(matched.problems)
    # Flattening puts the struct's own nulls onto its fields, so that values under a null struct are not checked.
    inner = array.flatten()
    hidden = array.null_count
    children = []
    for position, (each, source) in enumerate(zip(kind.fields, matched.sources, strict=True)):
        wanted = target.field(position).type
        if source is None:
            children.append(pa.nulls(len(array), wanted))
        else:
            children.append(_column(inner[source], each, wanted, name, problems, hidden))
    mask = array.is_null() if hidden else None
    return pa.StructArray.from_arrays(children, fields=list(target), mask=mask)


def _list(array: Any, kind: ListType, target: Any, name: str, problems: Problems) -> Any:
    offsets, values = _unrolled(array)
    elements = _column(values, kind.element_field, target.value_type, name, problems)
    mask = array.is_null() if array.null_count else None
    return pa.LargeListArray.from_arrays(offsets, elements, type=target, mask=mask)


def _unrolled(array: Any) -> tuple[Any, Any]:
    """Offsets from 0 and the values they mean: without the values of null lists and of rows sliced away."""
    lengths = pc.fill_null(pc.list_value_length(array).cast(pa.int64()), 0)
    zero = pa.array([0], pa.int64())
    return pa.concat_arrays([zero, pc.cumulative_sum(lengths)]), array.flatten()


def _is_pairs(given: Any) -> bool:
    """A list of (key, value) structs: the form of a map in libraries without maps."""
    if not is_arrow_list(given) or not pa.types.is_struct(given.value_type) or given.value_type.num_fields != 2:
        return False
    return {given.value_type.field(0).name, given.value_type.field(1).name} == {"key", "value"}


def _map(array: Any, kind: MapType, target: Any, name: str, problems: Problems) -> Any:
    if pa.types.is_map(array.type):
        pair = pa.struct([array.type.key_field.with_name("key"), array.type.item_field.with_name("value")])
        array = array.cast(pa.large_list(pair))
    offsets, pairs = _unrolled(array)
    given = dict(zip((each.name for each in pairs.type), pairs.flatten(), strict=True))
    keys = _column(given["key"], kind.key_field, target.key_type, name, problems)
    values = _column(given["value"], kind.value_field, target.item_type, name, problems)
    if problems.lines:
        # Arrow raises an error of its own for null keys; the problem is recorded already.
        return pa.nulls(len(array), target)
    mask = array.is_null() if array.null_count else None
    return pa.MapArray.from_arrays(offsets.cast(pa.int32()), keys, values, type=target, mask=mask)


@lru_cache(maxsize=1024)
def _may_hide_nulls(kind: Any) -> bool:
    if pa.types.is_map(kind):
        return _may_hide_nulls(kind.key_type) or _may_hide_nulls(kind.item_type)
    if pa.types.is_large_list(kind):
        return _may_hide_nulls(kind.value_type)
    return pa.types.is_struct(kind) and any(not each.nullable or _may_hide_nulls(each.type) for each in kind)


def _without_hidden_nulls(array: Any) -> Any:
    """The array with arbitrary values instead of nulls in the required fields of null structs.

    Arrow's Parquet writer refuses every null in a required field, also where the struct around it is null.
    """
    kind = array.type
    if not _may_hide_nulls(kind):
        return array
    mask = array.is_null() if array.null_count else None
    if pa.types.is_struct(kind):
        children = [_without_hidden_nulls(array.field(position)) for position in range(kind.num_fields)]
        pairs = zip(children, kind, strict=True)
        filled = [child if each.nullable else _all_valid(child) for child, each in pairs]
        return pa.StructArray.from_arrays(filled, fields=list(kind), mask=mask)
    if pa.types.is_map(kind):
        keys, items = _without_hidden_nulls(array.keys), _without_hidden_nulls(array.items)
        return pa.MapArray.from_arrays(array.offsets, keys, items, type=array.type, mask=mask)
    return pa.LargeListArray.from_arrays(array.offsets, _without_hidden_nulls(array.values), type=kind, mask=mask)


def _all_valid(array: Any) -> Any:
    """The array without its validity bitmap: nulls become arbitrary values."""
    kind = array.type
    if not array.null_count:
        return array
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, _all_valid(array.storage))
    if pa.types.is_struct(kind):
        children = [array.field(position) for position in range(kind.num_fields)]
        return pa.StructArray.from_arrays(children, fields=list(kind))
    if pa.types.is_map(kind):
        return pa.MapArray.from_arrays(array.offsets, array.keys, array.items, type=array.type)
    if pa.types.is_large_list(kind):
        return pa.LargeListArray.from_arrays(array.offsets, array.values, type=kind)
    buffers = [pa.py_buffer(b"") if each is None else each for each in array.buffers()[1:]]
    return pa.Array.from_buffers(kind, len(array), [None, *buffers], null_count=0, offset=array.offset)


# Plain values


def _is_small_float(given: Any) -> bool:
    return bool(pa.types.is_float16(given) or pa.types.is_float32(given))


# Which Arrow types a cast may start from; whether each value survives it is found by casting.
_ACCEPTS: dict[type[IcebergType], Callable[[Any], bool]] = {
    BooleanType: pa.types.is_boolean,
    IntegerType: pa.types.is_integer,
    LongType: pa.types.is_integer,
    FloatType: lambda given: _is_small_float(given) or pa.types.is_integer(given),
    DoubleType: lambda given: pa.types.is_floating(given) or pa.types.is_integer(given),
    DecimalType: lambda given: pa.types.is_decimal(given) or pa.types.is_integer(given),
    DateType: pa.types.is_date,
    TimeType: pa.types.is_time,
    TimestampType: lambda given: pa.types.is_timestamp(given) and given.tz is None,
    TimestamptzType: lambda given: pa.types.is_timestamp(given) and given.tz is not None,
    StringType: is_arrow_text,
    BinaryType: lambda given: is_arrow_bytes(given) or pa.types.is_fixed_size_binary(given),
    FixedType: lambda given: is_arrow_bytes(given) or pa.types.is_fixed_size_binary(given),
}


def _primitive(array: Any, kind: PrimitiveType, target: Any) -> Any:
    if is_arrow_text(array.type):
        _check_utf8(array)
    if array.type == target:
        return array
    if isinstance(kind, UUIDType):
        return _uuid(array, target)
    if not _ACCEPTS[type(kind)](array.type):
        raise _refused(kind, array.type)
    cast = _cast_for(kind, array.type, target)
    try:
        return cast(array)
    except pa.ArrowInvalid as error:
        raise Misfit(*_why_not(array, cast, kind)) from error


def _cast_for(kind: PrimitiveType, given: Any, target: Any) -> Callable[[Any], Any]:
    if isinstance(kind, DecimalType) and pa.types.is_integer(given):
        # Arrow checks the type's range, not the values: cast to a wide decimal first, then narrow.
        roomy = pa.decimal256(20 + kind.scale, kind.scale)
        return lambda array: array.cast(roomy).cast(target)
    return lambda array: array.cast(target)


def _why_not(array: Any, cast: Callable[[Any], Any], kind: PrimitiveType) -> tuple[str, str]:
    position = _first_misfit(array, cast)
    detail = f"the value {_shown(array[position])} (row {position} of its batch) does not fit"
    match kind:
        case IntegerType() | LongType():
            return detail, "The column holds " + ("32-bit" if isinstance(kind, IntegerType) else "64-bit") + " integers"
        case DecimalType():
            whole = kind.precision - kind.scale
            return detail, f"Round to {kind.scale} decimal places and keep to {whole} digits before the point"
        case TimestampType() | TimestamptzType() | TimeType() if str(array.type).find("[ns") >= 0:
            return detail, "Iceberg keeps microseconds: round first, in pandas with .dt.floor('us')"
        case FixedType():
            return detail, f"Every value must have {len(kind)} bytes"
    return detail, "Cast the column yourself where the loss is meant"


def _first_misfit(array: Any, cast: Callable[[Any], Any]) -> int:
    """The row whose value cannot be cast, by halving."""
    start, end = 0, len(array)
    while end - start > 1:
        middle = (start + end) // 2
        try:
            cast(array.slice(start, middle - start))
        except pa.ArrowInvalid:
            end = middle
        else:
            start = middle
    return start


def _shown(scalar: Any) -> str:
    try:
        text = repr(scalar.as_py()) if not pa.types.is_temporal(scalar.type) else str(scalar)
    except (ValueError, OverflowError):
        # Beyond Python's calendar: the number itself.
        text = str(scalar.value)
    return text if len(text) <= 80 else text[:80] + "…"


def _refused(kind: PrimitiveType, given: Any) -> Misfit:
    match kind:
        case TimestamptzType() if pa.types.is_timestamp(given):
            return Misfit(
                "the timestamps have no time zone, but the column's do",
                "If they are UTC: in pandas df[c] = df[c].dt.tz_localize('UTC'), in Arrow pc.assume_timezone(c, 'UTC')",
            )
        case TimestampType() if pa.types.is_timestamp(given):
            return Misfit(
                "the timestamps have a time zone, but the column's do not",
                "In pandas df[c] = df[c].dt.tz_convert('UTC').dt.tz_localize(None), in Arrow pc.local_timestamp(c)",
            )
        case IntegerType() | LongType() if pa.types.is_floating(given):
            return Misfit(
                "floating-point numbers are not cast to integers",
                "In pandas, where integers with gaps become floats: df[c] = df[c].astype('Int64')",
            )
        case FloatType() if pa.types.is_float64(given):
            return Misfit("double has more digits than float", "Cast with pa.float32() where the loss is meant")
    return Misfit("the types are not compatible", "Cast the column first")


def _uuid(array: Any, target: Any) -> Any:
    given = array.type
    if isinstance(given, pa.UuidType):
        return array
    if is_arrow_text(given):
        values = [None if text is None else _parse_uuid(text) for text in array.to_pylist()]
        return pa.ExtensionArray.from_storage(target, pa.array(values, pa.binary(16)))
    if not is_arrow_bytes(given) and not pa.types.is_fixed_size_binary(given):
        raise Misfit("a uuid is 16 bytes, a text such as '0f3a…-…', or Arrow's own uuid")
    try:
        return pa.ExtensionArray.from_storage(target, array.cast(pa.binary(16)))
    except pa.ArrowInvalid as error:
        raise Misfit("a uuid has 16 bytes, and some values have another length") from error


def _parse_uuid(text: str) -> bytes:
    try:
        return uuid.UUID(text).bytes
    except ValueError as error:
        raise Misfit(f"{text[:80]!r} is not a uuid") from error
