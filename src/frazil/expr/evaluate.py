"""Evaluates nodes over Arrow columns, with SQL's three-valued logic and Spark's semantics.

A value is an array, or a scalar where every row has the same value. Parts that can fail (a division, a cast) are
evaluated only on the rows that the parts before them leave undecided, so ``x <> 0 AND 10 / x > 2`` never fails.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute

from frazil.errors import InvalidInput
from frazil.expr.cast import CastError, Target, find_cast
from frazil.expr.nodes import (
    BINARY,
    BOOL,
    DATE,
    DOUBLE,
    INT,
    NESTED,
    NULL,
    TEXT,
    TIME,
    TIMESTAMP,
    UUID,
    Call,
    Column,
    DataType,
    Literal,
    Node,
    decimal_shape,
    is_decimal,
)

if TYPE_CHECKING:
    from pyiceberg.types import IcebergType

# An array or a scalar; pyarrow's stubs have no type for functions that take either.
Value = Any
pc: Any = pyarrow.compute
arrow: Any = pa
FALLIBLE = frozenset({"add", "sub", "mul", "neg", "abs", "div", "mod", "intdiv", "cast"})
ARITHMETIC = frozenset({"add", "sub", "mul", "div", "mod", "intdiv"})
COMPARED = frozenset({"eq", "ne", "lt", "le", "gt", "ge", "nseq", "in"})
"""Their option is the type in which their arguments are compared."""
_EXACT = Context(prec=100)


@dataclass(frozen=True, slots=True)
class Inputs:
    """The rows of one evaluation: how many, and the source of a column's values."""

    length: int
    fetch: Callable[[Column], Value]

    def only(self, rows: pa.BooleanArray) -> Inputs:
        fetch = self.fetch
        return Inputs(rows.true_count, lambda column: fetch(column).filter(rows))


EMPTY = Inputs(1, lambda column: arrow.nulls(1, column.type))


def evaluate(node: Node, inputs: Inputs) -> Value:
    """The node's value on every row. Raises InvalidInput where Spark would fail at run time."""
    if isinstance(node, Literal):
        return scalar(node.value, node.type)
    if isinstance(node, Column):
        return normalize(inputs.fetch(node), node.type)
    return _OPS[node.op](node, inputs)


def selected(node: Node, inputs: Inputs) -> pa.BooleanArray:
    """True on the rows for which the condition is TRUE; NULL counts as false."""
    found: pa.BooleanArray = spread(pc.fill_null(_as_bool(evaluate(node, inputs)), False), inputs.length)
    return found


@lru_cache(maxsize=4096)
def can_fail(node: Node) -> bool:
    """Whether this node raises for some value of a column."""
    if not isinstance(node, Call):
        return False
    risky = node.op in FALLIBLE and not (node.op == "cast" and node.option[1])
    return risky or any(can_fail(arg) for arg in node.args)


# Between Arrow and internal values


def scalar(value: Any, kind: DataType) -> Value:
    return arrow.scalar(value, kind)


def spread(value: Value, length: int) -> Value:
    if isinstance(value, pa.Scalar):
        return arrow.nulls(length, value.type) if not value.is_valid else arrow.repeat(value, length)
    return value


def normalize(array: Value, kind: DataType) -> Value:
    """A column of a file or of the caller's rows, in the one type of its family."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if kind == NESTED or array.type == kind:
        return array
    if kind == TIMESTAMP:
        return _naive_micros(array)
    if is_decimal(kind) and is_decimal(array.type):
        return array.cast(kind)
    return array.cast(kind, safe=kind != DOUBLE)


def _naive_micros(array: Value) -> Value:
    if pa.types.is_timestamp(array.type) and array.type.tz is not None:
        # The stored count is UTC; only the label changes.
        array = array.cast(pa.timestamp("us", "UTC"), safe=False)
        return array.view(pa.int64()).view(TIMESTAMP)
    return array.cast(TIMESTAMP, safe=False)


def denormalize(array: Value, kind: IcebergType) -> Value:
    """The inverse of ``normalize``: to the type that a table's rows have. Values that do not fit raise."""
    # Imported here: this module is pickled by value for executors that have only pyarrow.
    from frazil.format.arrow_schema import to_arrow_schema

    target: Any = to_arrow_schema(kind, include_field_ids=False)
    if isinstance(target, pa.BaseExtensionType):
        return arrow.ExtensionArray.from_storage(target, array.cast(target.storage_type))
    if array.type == TIMESTAMP:
        # The count is UTC, with or without a zone.
        return array.view(pa.int64()).view(target)
    return array.cast(target)


def internal(value: Value) -> list[Any]:
    """Python values in internal form."""
    array = arrow.array([value.as_py()], value.type) if isinstance(value, pa.Scalar) else value
    if array.type == DATE:
        array = array.view(pa.int32())
    elif array.type in (TIMESTAMP, TIME):
        array = array.view(pa.int64())
    return list(array.to_pylist())


def per_row(function: Callable[..., Any], kind: DataType, values: Sequence[Value]) -> Value:
    """Applies a function to each row, where Arrow has none that agrees with Spark; NULL gives NULL."""
    length = next((len(value) for value in values if isinstance(value, pa.Array)), None)
    columns = [internal(value) for value in values]
    if length is not None:
        columns = [
            column * length if isinstance(value, pa.Scalar) else column
            for column, value in zip(columns, values, strict=True)
        ]
    results = [None if any(each is None for each in row) else function(*row) for row in zip(*columns, strict=True)]
    array = arrow.array(results, kind)
    return array if length is not None else array[0]


def _as_bool(value: Value) -> Value:
    return value.cast(BOOL) if value.type == NULL else value


# Logic


def _connective(node: Call, inputs: Inputs) -> Value:
    join = pc.and_kleene if node.op == "and" else pc.or_kleene
    result = _as_bool(evaluate(node.args[0], inputs))
    for arg in node.args[1:]:
        if not can_fail(arg):
            result = join(result, _as_bool(evaluate(arg, inputs)))
            continue
        decided = node.op == "or"
        open_rows = pc.fill_null(pc.not_equal(result, decided), True)
        result = join(result, _as_bool(_on(arg, inputs, spread(open_rows, inputs.length))))
    return result


def _on(node: Node, inputs: Inputs, rows: pa.BooleanArray) -> Value:
    """The node's value on some rows, NULL on the others."""
    if rows.true_count == inputs.length or not can_fail(node):
        return evaluate(node, inputs)
    if rows.true_count == 0:
        return arrow.nulls(inputs.length, node.type)
    part = evaluate(node, inputs.only(rows))
    return pc.replace_with_mask(arrow.nulls(inputs.length, part.type), rows, part)


def _not(node: Call, inputs: Inputs) -> Value:
    return pc.invert(_as_bool(evaluate(node.args[0], inputs)))


def _is_null(node: Call, inputs: Inputs) -> Value:
    return pc.is_null(evaluate(node.args[0], inputs))


def _is_truth(node: Call, inputs: Inputs) -> Value:
    return pc.fill_null(pc.equal(_as_bool(evaluate(node.args[0], inputs)), node.option), False)


def _case(node: Call, inputs: Inputs) -> Value:
    pairs = [(node.args[i], node.args[i + 1]) for i in range(0, len(node.args) - 1, 2)]
    remaining = spread(scalar(True, BOOL), inputs.length)
    chosen: list[tuple[pa.BooleanArray, Value]] = []
    for condition, outcome in pairs:
        held = spread(pc.fill_null(_as_bool(_on(condition, inputs, remaining)), False), inputs.length)
        here = pc.and_(remaining, held)
        chosen.append((here, coerced(outcome, node.type, partial(_on, inputs=inputs, rows=here))))
        remaining = pc.and_not(remaining, held)
    result = coerced(node.args[-1], node.type, partial(_on, inputs=inputs, rows=remaining))
    for rows, value in reversed(chosen):
        result = pc.if_else(rows, value, result)
    return result


def _coalesce(node: Call, inputs: Inputs) -> Value:
    result = coerced(node.args[0], node.type, partial(evaluate, inputs=inputs))
    for arg in node.args[1:]:
        missing = spread(pc.is_null(result), inputs.length)
        result = pc.coalesce(result, coerced(arg, node.type, partial(_on, inputs=inputs, rows=missing)))
    return result


# Comparison


def coerced(node: Node, kind: DataType, run: Callable[[Node], Value]) -> Value:
    """A node's value in the type of its comparison."""
    if isinstance(node, Literal):
        return scalar(_literal_as(node, kind), kind)
    value = run(node)
    if value.type == kind:
        return value
    return to_double(value) if kind == DOUBLE else value.cast(kind)


def to_double(value: Value) -> Value:
    """Numbers as the nearest doubles. Arrow's own cast of decimals is off by one bit for every tenth of them."""
    return per_row(float, DOUBLE, [value]) if is_decimal(value.type) else value.cast(DOUBLE, safe=False)


def _literal_as(node: Literal, kind: DataType) -> Any:
    if node.value is None or node.type == kind:
        return node.value
    if kind == DOUBLE:
        return float(node.value)
    if kind == TIMESTAMP and node.type == DATE:
        return node.value * 86_400_000_000
    return Decimal(node.value) if is_decimal(kind) else node.value


def _equal(left: Value, right: Value, kind: DataType) -> Value:
    same = pc.equal(left, right)
    # Spark: NaN equals NaN.
    return pc.or_(same, pc.and_(pc.is_nan(left), pc.is_nan(right))) if kind == DOUBLE else same


def _less(left: Value, right: Value, kind: DataType) -> Value:
    if kind == BOOL:
        left, right = left.cast(pa.int8()), right.cast(pa.int8())
    less = pc.less(left, right)
    # Spark: NaN is greater than every other number.
    return pc.or_(less, pc.and_(pc.is_nan(right), pc.invert(pc.is_nan(left)))) if kind == DOUBLE else less


_COMPARISONS: dict[str, Callable[[Value, Value, DataType], Value]] = {
    "eq": _equal,
    "ne": lambda left, right, kind: pc.invert(_equal(left, right, kind)),
    "lt": _less,
    "gt": lambda left, right, kind: _less(right, left, kind),
    "ge": lambda left, right, kind: pc.invert(_less(left, right, kind)),
    "le": lambda left, right, kind: pc.invert(_less(right, left, kind)),
}


def _compare(node: Call, inputs: Inputs) -> Value:
    kind = node.option
    if kind == NULL:
        return arrow.scalar(None, BOOL)
    left, right = (coerced(arg, kind, partial(evaluate, inputs=inputs)) for arg in node.args)
    return _COMPARISONS[node.op](left, right, kind)


def _null_safe_equal(node: Call, inputs: Inputs) -> Value:
    kind = node.option
    if kind == NULL:
        return arrow.scalar(True)
    left, right = (coerced(arg, kind, partial(evaluate, inputs=inputs)) for arg in node.args)
    both = pc.and_(pc.is_null(left), pc.is_null(right))
    return pc.or_(both, pc.fill_null(_equal(left, right, kind), False))


def _in(node: Call, inputs: Inputs) -> Value:
    kind = node.option
    if kind == NULL:
        return arrow.scalar(None, BOOL)
    left = coerced(node.args[0], kind, partial(evaluate, inputs=inputs))
    constants = [arg for arg in node.args[1:] if isinstance(arg, Literal)]
    values = [_literal_as(arg, kind) for arg in constants if arg.value is not None]
    # 0.0 and -0.0 are equal, and is_in compares bits.
    probe = pc.add(left, 0.0) if kind == DOUBLE else left
    held = pc.is_in(probe, value_set=arrow.array([value + 0.0 for value in values] if kind == DOUBLE else values, kind))
    result = pc.if_else(pc.is_null(left), arrow.scalar(None, BOOL), held)
    if any(arg.value is None for arg in constants):
        result = pc.or_kleene(result, arrow.scalar(None, BOOL))
    for arg in node.args[1:]:
        if not isinstance(arg, Literal):
            other = coerced(arg, kind, partial(evaluate, inputs=inputs))
            result = pc.or_kleene(result, _equal(left, other, kind))
    return result


def _is_nan(node: Call, inputs: Inputs) -> Value:
    return pc.fill_null(pc.is_nan(evaluate(node.args[0], inputs).cast(DOUBLE)), False)


# Numbers


def _arithmetic(node: Call, inputs: Inputs) -> Value:
    kind = node.type
    if is_decimal(kind):
        return _decimal_arithmetic(node, inputs)
    left, right = (coerced(arg, kind, partial(evaluate, inputs=inputs)) for arg in node.args)
    if node.op in ("div", "mod", "intdiv"):
        _refuse_zero(right, left)
        return _DIVISIONS[node.op](left, right, kind)
    return _guarded(
        {"add": pc.add_checked, "sub": pc.subtract_checked, "mul": pc.multiply_checked}[node.op], left, right
    )


def _refuse_zero(divisor: Value, dividend: Value) -> None:
    # In the divisor's own type: Arrow would look for a common one, and none holds all integers and 38 decimal places.
    zero = scalar(Decimal(0) if is_decimal(divisor.type) else 0, divisor.type)
    # NULL / 0 is NULL in Spark as well.
    if (
        pc.any(pc.and_(pc.equal(divisor, zero), pc.is_valid(dividend))).as_py()
        if isinstance(divisor, pa.Array)
        else _scalar_zero(divisor, dividend)
    ):
        raise InvalidInput(
            "Division by zero in some row",
            advice='Exclude those rows first, as in "x <> 0 AND 10 / x > 2", or divide by nullif(x, 0)',
        )


def _scalar_zero(divisor: Value, dividend: Value) -> bool:
    if not divisor.is_valid or divisor.as_py() != 0:
        return False
    return dividend.is_valid if isinstance(dividend, pa.Scalar) else dividend.null_count < len(dividend)


def _remainder(left: Value, right: Value, kind: DataType) -> Value:
    if kind == DOUBLE:
        return per_row(lambda a, b: math.fmod(a, b) if math.isfinite(a) else math.nan, DOUBLE, [left, right])
    # x % -1 is 0, yet the quotient of the smallest integer and -1 does not fit.
    right = pc.if_else(pc.equal(right, -1), arrow.scalar(1, INT), right)
    return pc.subtract(left, pc.multiply(pc.divide(left, right), right))


_DIVISIONS: dict[str, Callable[[Value, Value, DataType], Value]] = {
    "div": lambda left, right, _: pc.divide(left, right),
    "intdiv": lambda left, right, _: _guarded(pc.divide_checked, left, right),
    "mod": _remainder,
}


def _guarded(function: Callable[..., Value], *args: Value) -> Value:
    try:
        return function(*args)
    except pa.ArrowInvalid as error:
        raise InvalidInput("Numeric overflow in some row", advice="CAST the number to a wider type first") from error


def _decimal_result(op: str, left: Node, right: Node) -> DataType:
    """Spark's type of an arithmetic operation on exact numbers."""
    (whole1, scale1), (whole2, scale2) = decimal_shape(left), decimal_shape(right)
    if op in ("add", "sub"):
        scale = max(scale1, scale2)
        whole = max(whole1, whole2) + 1
    elif op == "mul":
        scale = scale1 + scale2
        whole = whole1 + whole2 + 1
    elif op == "div":
        scale = max(6, scale1 + whole2 + scale2 + 1)
        whole = whole1 + scale2
    else:
        scale = max(scale1, scale2)
        whole = min(whole1, whole2)
    if whole + scale > 38:
        scale = max(38 - whole, min(scale, 6))
        return pa.decimal128(38, scale)
    return pa.decimal128(max(whole + scale, 1), scale)


def arithmetic_type(op: str, left: Node, right: Node) -> DataType:
    if op == "intdiv":
        return INT
    if DOUBLE in (left.type, right.type):
        return DOUBLE
    if is_decimal(left.type) or is_decimal(right.type):
        return _decimal_result(op, left, right)
    return DOUBLE if op == "div" else INT


def _decimal_arithmetic(node: Call, inputs: Inputs) -> Value:
    unit = Decimal(1).scaleb(-node.type.scale)
    limit = Decimal(10) ** (node.type.precision - node.type.scale)
    apply = {
        "add": _EXACT.add,
        "sub": _EXACT.subtract,
        "mul": _EXACT.multiply,
        "div": _EXACT.divide,
        "mod": _EXACT.remainder,
    }[node.op]

    def run(left: Any, right: Any) -> Decimal:
        result = apply(Decimal(left), Decimal(right)).quantize(unit, rounding=ROUND_HALF_UP, context=_EXACT)
        if result.copy_abs() >= limit:
            raise InvalidInput("Numeric overflow in some row", advice="CAST the number to a wider type first")
        return result

    left, right = (evaluate(arg, inputs) for arg in node.args)
    if node.op in ("div", "mod"):
        _refuse_zero(right, left)
    return per_row(run, node.type, [left, right])


def _negate(node: Call, inputs: Inputs) -> Value:
    value = evaluate(node.args[0], inputs)
    return (
        per_row(Decimal.copy_negate, node.type, [value])
        if is_decimal(node.type)
        else _guarded(pc.negate_checked, value)
    )


def _absolute(node: Call, inputs: Inputs) -> Value:
    value = evaluate(node.args[0], inputs)
    return per_row(Decimal.copy_abs, node.type, [value]) if is_decimal(node.type) else _guarded(pc.abs_checked, value)


# Casts


def _cast(node: Call, inputs: Inputs) -> Value:
    target, forgiving = node.option
    arg = node.args[0]
    value = evaluate(arg, inputs)
    if arg.type == NULL:
        return arrow.scalar(None, target.type)
    fast = _fast_cast(value, arg.type, target)
    if fast is not None:
        return fast
    caster = find_cast(arg.type, target)
    assert caster is not None, "the binder refuses casts that do not exist"

    def run(each: Any) -> Any:
        try:
            return caster(each)
        except CastError as error:
            if forgiving:
                return None
            raise InvalidInput(
                f"CAST to {target.name} fails in some row", evidence=str(error), advice="TRY_CAST gives NULL instead"
            ) from error

    return per_row(run, target.type, [value])


def _fast_cast(value: Value, source: DataType, target: Target) -> Value | None:
    """The casts that Arrow does as Spark does."""
    if source == target.type and target.low is None and not target.single and not is_decimal(source):
        return value
    if source == TIMESTAMP and target.type == DATE:
        return pc.floor_temporal(value, unit="day").cast(DATE)
    if source == DATE and target.type == TIMESTAMP:
        return value.cast(TIMESTAMP)
    if source == INT and target.type == DOUBLE and not target.single:
        return value.cast(DOUBLE, safe=False)
    return None


# Text


def _case_mapping(node: Call, inputs: Inputs) -> Value:
    value = evaluate(node.args[0], inputs)
    ascii_only = pc.string_is_ascii(value)
    if pc.all(ascii_only, min_count=0).as_py() if isinstance(value, pa.Array) else ascii_only.as_py() in (True, None):
        return pc.ascii_upper(value) if node.op == "upper" else pc.ascii_lower(value)
    # Full case mapping, as in Java ("ß" becomes "SS"); Arrow maps letter by letter.
    return per_row(str.upper if node.op == "upper" else str.lower, TEXT, [value])


def _length(node: Call, inputs: Inputs) -> Value:
    value = evaluate(node.args[0], inputs)
    return (pc.utf8_length(value) if value.type == TEXT else pc.binary_length(value)).cast(INT)


def _substring(node: Call, inputs: Inputs) -> Value:
    value = evaluate(node.args[0], inputs)
    start, length = node.option
    if length is not None and length <= 0:
        return pc.if_else(pc.is_null(value), arrow.scalar(None, TEXT), arrow.scalar("", TEXT))
    first = start - 1 if start > 0 else start
    stop = None if length is None else first + length
    if first < 0 and stop is not None and stop >= 0:
        stop = None
    return pc.utf8_slice_codeunits(value, start=first, stop=stop)


def _trim(node: Call, inputs: Inputs) -> Value:
    side, characters = node.option
    trim = {"both": pc.utf8_trim, "leading": pc.utf8_ltrim, "trailing": pc.utf8_rtrim}[side]
    value = evaluate(node.args[0], inputs)
    return trim(value, characters=characters) if characters else value


def _concat(node: Call, inputs: Inputs) -> Value:
    values = [evaluate(arg, inputs) for arg in node.args]
    typed = [value.cast(TEXT) if value.type == NULL else value for value in values]
    return pc.binary_join_element_wise(*typed, arrow.scalar("", TEXT), null_handling="emit_null")


_AFFIX: dict[str, tuple[Callable[..., Value], Callable[[str, str], bool]]] = {
    "starts": (pc.starts_with, str.startswith),
    "ends": (pc.ends_with, str.endswith),
    "contains": (pc.match_substring, str.__contains__),
}


def _affix(node: Call, inputs: Inputs) -> Value:
    vectorised, single = _AFFIX[node.op]
    value, part = node.args
    if isinstance(part, Literal) and part.value is not None and value.type == TEXT:
        return vectorised(evaluate(value, inputs), pattern=part.value)
    return per_row(single, BOOL, [evaluate(value, inputs), evaluate(part, inputs)])


def _matches(node: Call, inputs: Inputs) -> Value:
    return pc.match_substring_regex(evaluate(node.args[0], inputs), pattern=node.option)


# Partitions


def _bucketed(node: Call, inputs: Inputs) -> Value:
    """Whether a column's bucket is one of these; not part of SQL, but needed to select a partition's rows."""
    from pyiceberg.transforms import BucketTransform

    from frazil.format.partitions import arrow_transform

    (column,) = node.args
    assert isinstance(column, Column)
    count, wanted = node.option
    values = denormalize(evaluate(column, inputs), column.source)
    buckets = arrow_transform(BucketTransform(count), column.source)(values)
    held = pc.is_in(buckets, value_set=arrow.array(sorted(wanted), buckets.type))
    return pc.if_else(pc.is_null(buckets), arrow.scalar(None, BOOL), held)


# Dates


def _date_part(node: Call, inputs: Inputs) -> Value:
    return _DATE_PARTS[node.op](evaluate(node.args[0], inputs)).cast(INT)


_DATE_PARTS: dict[str, Callable[[Value], Value]] = {
    "year": pc.year,
    "month": pc.month,
    "day": pc.day,
    "hour": pc.hour,
    "minute": pc.minute,
    "second": pc.second,
    "quarter": pc.quarter,
    "dayofyear": pc.day_of_year,
    "weekofyear": pc.iso_week,
    "dayofweek": lambda value: pc.day_of_week(value, count_from_zero=False, week_start=7),
    "weekday": lambda value: pc.day_of_week(value, count_from_zero=True, week_start=1),
}
DATE_PARTS = frozenset(_DATE_PARTS)


_OPS: dict[str, Callable[[Call, Inputs], Value]] = {
    "and": _connective,
    "or": _connective,
    "not": _not,
    "isnull": _is_null,
    "is": _is_truth,
    "case": _case,
    "coalesce": _coalesce,
    **dict.fromkeys(_COMPARISONS, _compare),
    "nseq": _null_safe_equal,
    "in": _in,
    "isnan": _is_nan,
    **dict.fromkeys(ARITHMETIC, _arithmetic),
    "neg": _negate,
    "abs": _absolute,
    "cast": _cast,
    "upper": _case_mapping,
    "lower": _case_mapping,
    "length": _length,
    "substring": _substring,
    "trim": _trim,
    "concat": _concat,
    **dict.fromkeys(_AFFIX, _affix),
    "matches": _matches,
    "bucketed": _bucketed,
    **dict.fromkeys(_DATE_PARTS, _date_part),
}

__all__ = [
    "ARITHMETIC",
    "BINARY",
    "COMPARED",
    "EMPTY",
    "UUID",
    "Inputs",
    "Value",
    "arithmetic_type",
    "can_fail",
    "coerced",
    "denormalize",
    "evaluate",
    "internal",
    "selected",
]
