"""The values by which rows of two tables are joined: those that SQL's ``=`` compares."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Context, Decimal
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute
from pyiceberg.types import DecimalType, FixedType, FloatType, IcebergType, IntegerType

from frazil.expr.evaluate import Inputs, can_fail, coerced, denormalize, evaluate, per_row, spread
from frazil.expr.filters import Expression, find_array
from frazil.expr.nodes import (
    DATE,
    DOUBLE,
    INT,
    INT_MAX,
    INT_MIN,
    MICROS_PER_DAY,
    DataType,
    Node,
    is_decimal,
    sql_type,
)

Array = Any
pc: Any = pyarrow.compute
arrow: Any = pa
_EXACT = Context(prec=100)
_EXACT_INTEGERS = 2.0**53
"""Below it, each double equals one integer at most."""


def joinable(node: Node) -> bool:
    """Whether one side of an equality may be computed for every row, before it is known which rows are joined."""
    return not can_fail(node)


def compared(expression: Expression, kind: DataType, rows: pa.RecordBatch | pa.Table) -> Array:
    """The expression's values in the type in which they are compared."""
    inputs = Inputs(rows.num_rows, lambda column: find_array(rows, expression.schema, column))
    return spread(coerced(expression.node, kind, partial(evaluate, inputs=inputs)), rows.num_rows)


def identical(values: Array) -> Array:
    """Values that are the same where ``=`` is true: one NaN, and 0.0 for -0.0."""
    if values.type != DOUBLE:
        return values
    plain = pc.if_else(pc.is_nan(values), arrow.scalar(math.nan), pc.add(values, 0.0))
    return plain.view(pa.int64())


def held(values: Array, target: IcebergType) -> Array | None:
    """For each compared value the one that a column of this type holds and that equals it, NULL where there is none.

    None: the column may hold several different values that equal one of these.
    """
    family = sql_type(target)
    if values.type == DOUBLE and family != DOUBLE and not _has_exact_integers(values, family):
        return None
    if isinstance(target, IntegerType) and values.type == INT:
        fits = pc.and_(pc.greater_equal(values, -(2**31)), pc.less(values, 2**31))
        return denormalize(pc.if_else(fits, values, arrow.scalar(None, INT)), target)
    if isinstance(target, FloatType):
        single = values.cast(pa.float32(), safe=False)
        fits = pc.or_(pc.is_nan(values), pc.equal(single.cast(DOUBLE), values))
        return pc.if_else(fits, single, arrow.scalar(None, pa.float32()))
    if values.type == family and not isinstance(target, FixedType):
        return denormalize(values, target)
    return denormalize(per_row(_reader(target, family), family, [values]), target)


def _has_exact_integers(values: Array, family: DataType) -> bool:
    if family != INT:
        return False
    large = pc.and_(pc.is_finite(values), pc.greater_equal(pc.abs(values), _EXACT_INTEGERS))
    return not pc.any(large, min_count=0).as_py()


def _reader(target: IcebergType, family: DataType) -> Callable[[Any], Any]:
    if isinstance(target, FixedType):
        return lambda value: value if len(value) == len(target) else None
    if family == INT:
        low, high = (-(2**31), 2**31 - 1) if isinstance(target, IntegerType) else (INT_MIN, INT_MAX)
        return lambda value: (
            int(value) if math.isfinite(value) and value == int(value) and low <= value <= high else None
        )
    if family == DATE:
        return lambda micros: None if micros % MICROS_PER_DAY else micros // MICROS_PER_DAY
    assert is_decimal(family)
    assert isinstance(target, DecimalType)
    unit, limit = Decimal(1).scaleb(-target.scale), Decimal(10) ** (target.precision - target.scale)

    def read(value: Any) -> Decimal | None:
        found = Decimal(value).quantize(unit, context=_EXACT)
        return found if found == value and found.copy_abs() < limit else None

    return read
