"""Stores an expression's values in a column by Spark's ANSI store assignment, without loss.

Numbers are stored as numbers, dates and timestamps as each other, and everything as strings; a value that would change
(an overflow, a lost fraction, a lost time of day) is an error, and so is a string for a number. Constant strings are
parsed as dates, timestamps, times and uuids where the column is one, as in comparisons.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute
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
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from frazil.errors import SchemaMismatch, Unsupported
from frazil.expr.cast import CastError, Target, find_cast, parse_date, parse_time, parse_timestamp
from frazil.expr.evaluate import denormalize, per_row, to_double
from frazil.expr.filters import Expression
from frazil.expr.nodes import (
    BINARY,
    BOOL,
    DATE,
    DOUBLE,
    INT,
    MICROS_PER_DAY,
    NESTED,
    NULL,
    TEXT,
    TIME,
    TIMESTAMP,
    UUID,
    DataType,
    Literal,
    Node,
    is_decimal,
    type_name,
)
from frazil.expr.params import params_of
from frazil.format.arrow_schema import to_arrow_schema

Array = Any
Store = Callable[[Array], Array]
pc: Any = pyarrow.compute
arrow: Any = pa
_EXACT = Context(prec=400)
"""Room for every double."""


def assigned(
    expression: Expression, field: NestedField, name: str | None = None
) -> Callable[[pa.RecordBatch | pa.Table], Array]:
    """A function from rows to the values of one column, in the column's type.

    Raises SchemaMismatch if the types never fit, and the function does if some value does not. ``name``: the
    column's in messages.
    """
    name = field.name if name is None else name
    store = _store_for(expression, field, name)

    def values(rows: pa.RecordBatch | pa.Table) -> Array:
        found: Array = expression.evaluate(rows)
        try:
            stored = store(found)
        except (pa.ArrowInvalid, CastError, OverflowError) as error:
            raise _misfit(expression, field, name, found, store, error) from error
        check_nulls(stored, field, name)
        return stored

    return values


def check_nulls(values: Array, field: NestedField, name: str) -> None:
    """Raises SchemaMismatch for a null in a required column."""
    if field.required and values.null_count:
        raise SchemaMismatch(
            f"The column {name!r} is required, and its new value is null in some row",
            advice="Exclude those rows with where, or write coalesce(…, a value)",
        )


def _store_for(expression: Expression, field: NestedField, name: str) -> Store:
    kind, node = field.field_type, expression.node
    if not isinstance(kind, PrimitiveType) or node.type == NESTED:
        raise Unsupported(
            f"The column {name!r} is {_brief(kind)} and cannot be set by a SQL expression",
            advice="Set its fields one by one, or give a Python value (a dict or a list)",
        )
    if node.type == NULL or (isinstance(node, Literal) and node.value is None):
        if field.required:
            raise SchemaMismatch(f"The column {name!r} is required and cannot be set to NULL")
        target = to_arrow_schema(kind, include_field_ids=False)
        return lambda array: arrow.nulls(len(array), target)
    found = _constant(node, kind) if _is_text(node) else None
    if found is None:
        found = _STORES[type(kind)](node.type, kind)
    if found is None:
        raise SchemaMismatch(
            f"The column {name!r} is {kind}, and {expression.text!r} is {type_name(node.type)}, which cannot be "
            "stored there",
            advice=f"Write CAST({expression.text} AS {_sql_name(kind)}) if that is intended",
        )
    return found


def _is_text(node: Node) -> bool:
    return isinstance(node, Literal) and node.type == TEXT


def _brief(kind: IcebergType) -> str:
    return f"a {str(kind).partition('<')[0]}"


def _sql_name(kind: IcebergType) -> str:
    return {"long": "BIGINT", "timestamptz": "TIMESTAMP", "timestamp": "TIMESTAMP_NTZ"}.get(
        str(kind), str(kind).upper()
    )


def _misfit(
    expression: Expression, field: NestedField, name: str, values: Array, store: Store, error: BaseException
) -> SchemaMismatch:
    row = _first_misfit(values, store)
    is_shown = not params_of(expression.text)
    shown = f"the value {values[row]}" if is_shown else "a value"
    return SchemaMismatch(
        f"The column {name!r} is {field.field_type}, and {shown} of {expression.text!r} does not fit",
        evidence=str(error).partition("\n")[0] if is_shown else None,
        advice=f"Write CAST({expression.text} AS {_sql_name(field.field_type)}), or round it, if the loss is intended",
    )


def _first_misfit(values: Array, store: Store) -> int:
    """The first row whose value cannot be stored, by bisection."""
    start, end = 0, len(values)
    while end - start > 1:
        middle = (start + end) // 2
        try:
            store(values.slice(start, middle - start))
        except (pa.ArrowInvalid, CastError, OverflowError):
            end = middle
        else:
            start = middle
    return start


# Constants


def _constant(node: Node, kind: PrimitiveType) -> Store | None:
    readers: dict[type[PrimitiveType], tuple[DataType, Callable[[str], Any]]] = {
        DateType: (DATE, parse_date),
        TimestampType: (TIMESTAMP, lambda text: parse_timestamp(text, zoned=False)),
        TimestamptzType: (TIMESTAMP, parse_timestamp),
        TimeType: (TIME, parse_time),
        UUIDType: (UUID, _parse_uuid),
    }
    if type(kind) not in readers or not isinstance(node, Literal):
        return None
    family, read = readers[type(kind)]
    return lambda array: denormalize(per_row(read, family, [array]), kind)


def _parse_uuid(text: str) -> bytes:
    try:
        return uuid.UUID(text).bytes
    except ValueError as error:
        raise CastError(f"{text!r} is not a uuid") from error


# Values of one family to a column's type


def _same(family: DataType) -> Callable[[DataType, PrimitiveType], Store | None]:
    return lambda source, kind: (lambda array: denormalize(array, kind)) if source == family else None


def _to_integer(source: DataType, kind: PrimitiveType) -> Store | None:
    # Arrow's safe casts refuse overflows and fractions.
    return (lambda array: denormalize(array, kind)) if source in (INT, DOUBLE) or is_decimal(source) else None


def _to_floating(source: DataType, kind: PrimitiveType) -> Store | None:
    target = to_arrow_schema(kind, include_field_ids=False)
    if source == INT:
        return lambda array: array.cast(target)  # refuses integers with more digits than the float

    def store(array: Array) -> Array:
        doubles = to_double(array)
        found = doubles.cast(target, safe=False)
        lost = pc.and_(pc.is_inf(found), pc.invert(pc.is_inf(doubles)))
        if pc.any(lost).as_py():
            raise CastError(f"It is out of range for {kind}")
        return found

    return store if source == DOUBLE or is_decimal(source) else None


def _to_decimal(source: DataType, kind: PrimitiveType) -> Store | None:
    assert isinstance(kind, DecimalType)
    target = pa.decimal128(kind.precision, kind.scale)
    if source == INT:
        # Arrow requires room for every integer before it reads the values: widen, then narrow.
        roomy = pa.decimal256(20 + kind.scale, kind.scale)
        return lambda array: array.cast(roomy).cast(target)
    if is_decimal(source):
        return lambda array: array.cast(target)
    if source == DOUBLE:
        return lambda array: per_row(lambda value: _exact(value, kind), target, [array])
    return None


def _exact(value: float, kind: DecimalType) -> Decimal:
    if not math.isfinite(value):
        raise CastError(f"{value} is not a {kind}")
    # By its shortest decimal form, as in Spark: the double 0.1 is the decimal 0.1.
    found = Decimal(repr(value))
    rounded = found.quantize(Decimal(1).scaleb(-kind.scale), context=_EXACT)
    if rounded != found:
        raise CastError(f"{value} has more than {kind.scale} decimal places")
    return rounded


def _to_text(source: DataType, kind: PrimitiveType) -> Store | None:
    if source == TEXT:
        return lambda array: denormalize(array, kind)
    cast = find_cast(source, Target(TEXT, "STRING")) if source != BINARY else None
    if cast is None:
        return None
    return lambda array: denormalize(per_row(cast, TEXT, [array]), kind)


def _to_date(source: DataType, kind: PrimitiveType) -> Store | None:
    if source == DATE:
        return lambda array: denormalize(array, kind)

    def store(array: Array) -> Array:
        days = pc.floor_temporal(array, unit="day")
        if pc.any(pc.not_equal(days, array)).as_py():
            raise CastError("It has a time of day, which a date cannot hold")
        return days.cast(DATE)

    return store if source == TIMESTAMP else None


def _to_timestamp(source: DataType, kind: PrimitiveType) -> Store | None:
    if source == TIMESTAMP:
        return lambda array: denormalize(array, kind)
    if source == DATE:
        return lambda array: denormalize(per_row(lambda days: days * MICROS_PER_DAY, TIMESTAMP, [array]), kind)
    return None


_STORES: dict[type[IcebergType], Callable[[DataType, PrimitiveType], Store | None]] = {
    BooleanType: _same(BOOL),
    IntegerType: _to_integer,
    LongType: _to_integer,
    FloatType: _to_floating,
    DoubleType: _to_floating,
    DecimalType: _to_decimal,
    StringType: _to_text,
    DateType: _to_date,
    TimestampType: _to_timestamp,
    TimestamptzType: _to_timestamp,
    TimeType: _same(TIME),
    UUIDType: _same(UUID),
    FixedType: _same(BINARY),
    BinaryType: _same(BINARY),
}
