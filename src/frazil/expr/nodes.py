"""A SQL expression as a typed tree: the result of binding, and the input of evaluation and pruning.

Types are Arrow's, one per family: all integers are int64, both floats float64, both timestamps microseconds without
zone (text without a zone is UTC, so timestamps with and without zone compare by the same count), strings
large_string.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa
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
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from frazil.errors import InvalidInput

DataType = Any
"""A pyarrow.DataType, whose stubs hide what only decimals have."""

BOOL = pa.bool_()
INT = pa.int64()
DOUBLE = pa.float64()
TEXT = pa.large_string()
DATE = pa.date32()
TIMESTAMP = pa.timestamp("us")
TIME = pa.time64("us")
UUID = pa.binary(16)
BINARY = pa.large_binary()
NULL = pa.null()
NESTED = pa.struct([])
"""Structs, lists and maps: only IS NULL accepts them."""

INT_MIN, INT_MAX = -(2**63), 2**63 - 1
MICROS_PER_DAY = 86_400_000_000
MAX_PRECISION = 38


@dataclass(frozen=True, slots=True)
class Column:
    """A column, bound to its field id (rule P16). ``path``: the ids from the top-level column down to it."""

    field_id: int
    path: tuple[int, ...]
    name: str
    source: IcebergType
    type: DataType


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant in internal form: days, microseconds, Decimal, bytes; None is SQL's NULL."""

    value: Any
    type: DataType


@dataclass(frozen=True, slots=True)
class Call:
    """An operator or function. ``option`` is what is not an argument: a pattern, a cast's target, a common type."""

    op: str
    args: tuple[Node, ...]
    type: DataType
    option: Any = None


Node = Column | Literal | Call

TRUE = Literal(True, BOOL)
FALSE = Literal(False, BOOL)

_BY_ICEBERG: dict[type, DataType] = {
    BooleanType: BOOL,
    IntegerType: INT,
    LongType: INT,
    FloatType: DOUBLE,
    DoubleType: DOUBLE,
    StringType: TEXT,
    DateType: DATE,
    TimestampType: TIMESTAMP,
    TimestamptzType: TIMESTAMP,
    TimeType: TIME,
    UUIDType: UUID,
    FixedType: BINARY,
    BinaryType: BINARY,
}


def sql_type(kind: IcebergType) -> DataType:
    """The type a column of this Iceberg type has in an expression."""
    if isinstance(kind, DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    return _BY_ICEBERG.get(type(kind), NESTED)


def is_decimal(kind: DataType) -> bool:
    return bool(pa.types.is_decimal(kind))


def is_numeric(kind: DataType) -> bool:
    return kind in (INT, DOUBLE) or is_decimal(kind)


_NAMES = {
    BOOL: "boolean",
    INT: "integer",
    DOUBLE: "floating-point",
    TEXT: "text",
    DATE: "date",
    TIMESTAMP: "timestamp",
    TIME: "time",
    UUID: "uuid",
    BINARY: "binary",
    NULL: "NULL",
}


def type_name(kind: DataType) -> str:
    if is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    return _NAMES.get(kind, "nested")


def decimal_shape(node: Node) -> tuple[int, int]:
    """How many digits before and after the point a number of this node may have; a constant's are counted."""
    if is_decimal(node.type):
        return node.type.precision - node.type.scale, node.type.scale
    if isinstance(node, Literal) and node.value is not None:
        return len(str(abs(int(node.value)))), 0
    return 19, 0


def common_type(nodes: tuple[Node, ...], where: str) -> DataType:
    """The type in which all of these are compared or chosen, as Spark widens them. Raises InvalidInput if none."""
    kinds = {node.type for node in nodes if node.type != NULL}
    if len(kinds) <= 1:
        return kinds.pop() if kinds else NULL
    if all(is_numeric(kind) for kind in kinds):
        return DOUBLE if DOUBLE in kinds else _wider_decimal(nodes)
    if kinds == {DATE, TIMESTAMP}:
        return TIMESTAMP
    names = " and ".join(sorted(type_name(kind) for kind in kinds))
    raise InvalidInput(
        f"Cannot compare or combine {names} in {where}",
        advice="Make both sides the same type: strings in single quotes for string columns, bare numbers for numeric "
        "ones, or write CAST(… AS …)",
    )


def _wider_decimal(nodes: tuple[Node, ...]) -> DataType:
    shapes = [decimal_shape(node) for node in nodes if node.type != NULL]
    whole, scale = max(shape[0] for shape in shapes), max(shape[1] for shape in shapes)
    make: Any = pa.decimal128 if whole + scale <= MAX_PRECISION else pa.decimal256
    return make(whole + scale, scale)


def number_literal(text: str) -> Literal:
    """A bare number as Spark reads it: an integer, an exact decimal, or with an exponent a double."""
    try:
        if "e" in text.lower():
            return Literal(float(text), DOUBLE)
        exact = Decimal(text)
    except (ValueError, InvalidOperation) as error:
        raise InvalidInput(f"{text!r} is not a number") from error
    if "." not in text and INT_MIN <= exact <= INT_MAX:
        return Literal(int(exact), INT)
    return decimal_literal(exact)


def decimal_literal(value: Decimal) -> Literal:
    _, digits, exponent = value.as_tuple()
    scale = max(0, -int(exponent))
    precision = max(len(digits) + max(0, int(exponent)), scale, 1)
    if precision > MAX_PRECISION:
        raise InvalidInput(
            f"The number {value} has {precision} digits", advice=f"A number may have {MAX_PRECISION} digits at most"
        )
    return Literal(value, pa.decimal128(precision, scale))
