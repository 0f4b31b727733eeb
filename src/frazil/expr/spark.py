"""Filters and expressions as Spark columns, with exactly the meaning they have over Arrow.

The session's ANSI mode, time zone and decimal settings have no effect: functions that depend on them are not used.
Comparisons stay plain enough for Spark to push them down to Parquet, with two exceptions that would lose rows there:
Parquet's statistics omit NaN, and its dictionaries distinguish 0.0 from -0.0. Operations for which Spark has no
function that agrees with Frazil's on every value run in Python workers (spark_workers.py).

Where evaluation over Arrow fails on a row (an overflow, a division by zero, a cast), Spark's task fails. A filter may
omit the failure on a row that another part of it excludes already.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from functools import reduce
from typing import Any

import pyarrow as pa
from pyiceberg.transforms import BucketTransform, IdentityTransform, Transform
from pyiceberg.types import IntegerType, PrimitiveType, TimestampType, TimestamptzType

from frazil.errors import Unsupported
from frazil.expr import spark_workers
from frazil.expr.cast import Target, format_timestamp
from frazil.expr.evaluate import ARITHMETIC, DATE_PARTS, can_fail
from frazil.expr.filters import Expression, Filter
from frazil.expr.nodes import (
    BINARY,
    BOOL,
    DATE,
    DOUBLE,
    INT,
    INT_MAX,
    INT_MIN,
    MAX_PRECISION,
    MICROS_PER_DAY,
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
from frazil.expr.patterns import like_pattern

SparkColumn = Any
"""A pyspark.sql.Column."""
At = Callable[[Column], SparkColumn]
"""From a bound column to the Spark column with its values, in the Spark type of its Iceberg type."""
Transformed = Callable[[Transform[Any, Any], PrimitiveType, SparkColumn], SparkColumn]
"""An Iceberg partition transform of a Spark column; dates, times and timestamps become integers."""

_EXACT = Context(prec=100)
_FLIPPED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "eq": "eq", "ne": "ne", "nseq": "nseq"}


@dataclass(frozen=True, slots=True)
class SparkColumns:
    """Translates filters, expressions and constants. ``transformed`` applies partition transforms."""

    transformed: Transformed

    def condition(self, where: Filter, at: At) -> SparkColumn:
        """TRUE on exactly the rows that the filter selects, FALSE or NULL on the others."""
        return self._translator(at).whole(where.condition)

    def value(self, expression: Expression, at: At) -> SparkColumn:
        """The expression's value on each row, in one type for each family, as ``Expression.type`` is.

        Integers are bigint, both floats double, times bigint, uuids string, and timestamps timestamp_ntz in UTC.
        Raises Unsupported for numbers of more than 38 digits.
        """
        node = expression.node
        if is_decimal(node.type) and node.type.precision > MAX_PRECISION:
            raise Unsupported(
                f"The value of {expression.text!r} may have {node.type.precision} digits",
                advice=f"CAST it to a decimal of {MAX_PRECISION} digits or fewer",
            )
        translator = self._translator(at)
        found = translator.without_zone(node) if isinstance(node, Column) else translator.whole(node)
        return found.cast(_type_name(node.type)) if node.type in (INT, DOUBLE) else found

    def literal(self, constant: Any, kind: DataType, *, zoned: bool = False) -> SparkColumn:
        """A constant in internal form (days, microseconds, Decimal, bytes)."""
        return self._translator(_no_column).literal(constant, kind, zoned=zoned)

    def without_zone(self, node: Node, at: At) -> SparkColumn:
        """The value of a timestamp or date as timestamp_ntz in UTC."""
        return self._translator(at).without_zone(node)

    def _translator(self, at: At) -> _Translator:
        return _Translator(at, self.transformed)


def _no_column(column: Column) -> SparkColumn:
    raise AssertionError(f"a constant has no column {column.name}")


class _Translator:
    def __init__(self, at: At, transformed: Transformed) -> None:
        from pyspark.sql import functions

        self._at = at
        self._transformed = transformed
        self._f: Any = functions

    def whole(self, node: Node) -> SparkColumn:
        """A tree from its root.

        Spark runs Python functions on all rows, and other parts of a filter before them. So a tree with a part that
        needs Python and a part that can fail runs in Python as a whole, except for the first parts of an AND.
        """
        if not spark_workers.has_foreign(node) or not can_fail(node):
            return self.column(node)
        if not isinstance(node, Call) or node.op != "and":
            return self.in_python(node)
        first = next(position for position, arg in enumerate(node.args) if can_fail(arg))
        rest = node.args[first:]
        last = self.in_python(rest[0] if len(rest) == 1 else Call("and", rest, BOOL))
        return _balanced([*(self.boolean(arg) for arg in node.args[:first]), last], _both)

    def column(self, node: Node) -> SparkColumn:
        """In its natural type: a column unchanged, a call in the type that ``value`` returns."""
        if isinstance(node, Literal):
            return self.literal(node.value, node.type)
        if isinstance(node, Column):
            return self._at(node)
        return self.in_python(node) if spark_workers.is_foreign(node) else _OPS[node.op](self, node)

    def in_python(self, node: Node) -> SparkColumn:
        fallible = can_fail(node)
        sent = spark_workers.sent(node, fallible=fallible)
        # Spark takes a function without arguments for a constant, and does not pass it the number of rows.
        inputs = [self.to_wire(each) for each in sent.inputs] or [self._f.lit(True)]
        found = sent.function(*inputs)
        if fallible:
            found = self.unless(found["error"].isNotNull(), found["error"], found["value"])
        return self.from_wire(found, node.type)

    def to_wire(self, node: Node) -> SparkColumn:
        found = self.column(node)
        if isinstance(node, Column) and node.type in (DATE, TIMESTAMP, UUID):
            assert isinstance(node.source, PrimitiveType)
            return self._transformed(IdentityTransform(), node.source, found)
        return found.cast(spark_workers.wire(node.type)[0])

    def from_wire(self, found: SparkColumn, kind: DataType) -> SparkColumn:
        f = self._f
        if kind == DATE:
            return f.date_from_unix_date(found)
        if kind == TIMESTAMP:
            return self.clock(found)
        if kind == UUID:
            dashes = (f.lit(r"^(.{8})(.{4})(.{4})(.{4})(.{12})$"), f.lit("$1-$2-$3-$4-$5"))
            return f.regexp_replace(f.lower(f.hex(found)), *dashes)
        return found

    def unless(self, failed: SparkColumn, error: SparkColumn | str, result: SparkColumn) -> SparkColumn:
        """The result, or an error on rows that fail."""
        f = self._f
        message = f.lit(error) if isinstance(error, str) else error
        # Typed, because raise_error has the type of NULL; the error comes first, so that the result is not evaluated.
        return f.when(failed, f.when(f.lit(True), f.raise_error(message))).otherwise(result)

    # Constants: none depends on the session, and Spark folds all of them before it reads a file

    def literal(self, value: Any, kind: DataType, *, zoned: bool = False) -> SparkColumn:
        f = self._f
        if value is None:
            return f.lit(None).cast(_type_name(kind, zoned))
        if kind == DATE:
            return f.date_from_unix_date(f.lit(value))
        if kind == TIMESTAMP:
            if zoned:
                return f.timestamp_micros(f.lit(value).cast("bigint"))
            return f.lit(format_timestamp(value)).cast("timestamp_ntz")
        if kind == DOUBLE:
            return f.lit(repr(float(value))).cast("double")
        if is_decimal(kind):
            return f.lit(format(Decimal(value), "f")).cast(_type_name(kind))
        if kind == UUID:
            return f.lit(str(uuid.UUID(bytes=value)))
        if kind == BINARY:
            return f.unhex(f.lit(bytes(value).hex()))
        return f.lit(value)

    def null(self) -> SparkColumn:
        return self._f.lit(None).cast("boolean")

    def on_values(self, subject: SparkColumn, result: SparkColumn | bool) -> SparkColumn:
        """The result where the subject is not NULL, NULL elsewhere."""
        return self._f.when(subject.isNotNull(), result)

    # Logic

    def boolean(self, node: Node) -> SparkColumn:
        return self.null() if node.type == NULL else self.column(node)

    def connective(self, node: Call) -> SparkColumn:
        join = _both if node.op == "and" else _either
        if not any(can_fail(arg) for arg in node.args[1:]):
            return _balanced([self.boolean(arg) for arg in node.args], join)
        return self.in_order(node.args, join, decided=node.op == "or")

    def in_order(self, args: Sequence[Node], join: Callable[[Any, Any], Any], *, decided: bool) -> SparkColumn:
        """Later parts are evaluated only where earlier parts leave the result open.

        AND and OR alone do not guarantee that: Spark evaluates a common subexpression once, before both sides.
        """
        f = self._f
        first = next((position for position, arg in enumerate(args[1:], 1) if can_fail(arg)), len(args))
        before = _balanced([self.boolean(arg) for arg in args[:first]], join)
        if first == len(args):
            return before
        rest = self.in_order(args[first:], join, decided=decided)
        return join(before, f.when(before.eqNullSafe(f.lit(decided)), f.lit(decided)).otherwise(rest))

    def negation(self, node: Call) -> SparkColumn:
        return ~self.boolean(node.args[0])

    def is_null(self, node: Call) -> SparkColumn:
        return self.column(node.args[0]).isNull()

    def is_truth(self, node: Call) -> SparkColumn:
        return self.boolean(node.args[0]).eqNullSafe(self._f.lit(node.option))

    # Comparison

    def zoned(self, nodes: Sequence[Node]) -> bool:
        """Whether all of these except constants have Spark's type with a zone."""
        sources = [node for node in nodes if not isinstance(node, Literal)]
        return bool(sources) and all(
            isinstance(node, Column) and isinstance(node.source, TimestamptzType) for node in sources
        )

    def compared(self, node: Node, kind: DataType, *, zoned: bool = False) -> SparkColumn:
        """A node's value in the type of its comparison."""
        if isinstance(node, Literal):
            moment = kind == TIMESTAMP and node.type == DATE and node.value is not None
            return self.literal(node.value * MICROS_PER_DAY if moment else node.value, kind, zoned=zoned)
        found = self.column(node)
        if kind == TIMESTAMP and node.type == DATE:
            return found.cast("timestamp_ntz")
        if kind == TIMESTAMP:
            return found if zoned else self.without_zone(node)
        if kind == DOUBLE or is_decimal(kind):
            return found.cast(_type_name(kind))
        return found

    def without_zone(self, node: Node) -> SparkColumn:
        """A timestamp or date as timestamp_ntz in UTC."""
        found = self.column(node)
        if isinstance(node, Column) and isinstance(node.source, TimestamptzType):
            return self.clock(self._f.unix_micros(found))
        return found

    def clock(self, micros: SparkColumn) -> SparkColumn:
        """Microseconds since 1970 as timestamp_ntz in UTC. By a sum, because a cast would use the session's zone."""
        f = self._f
        days, rest = self.floor_div(micros, MICROS_PER_DAY), f.pmod(micros, f.lit(MICROS_PER_DAY))
        seconds = rest.cast("decimal(11,0)") * f.lit("0.000001").cast("decimal(6,6)")
        span = f.make_dt_interval(days.cast("int"), f.lit(0), f.lit(0), seconds.cast("decimal(18,6)"))
        return self.literal(0, TIMESTAMP) + span

    def micros(self, node: Node) -> SparkColumn:
        """A timestamp as microseconds since 1970."""
        found = self.column(node)
        kind = node.source if isinstance(node, Column) else TimestampType()
        assert isinstance(kind, PrimitiveType)
        return self._transformed(IdentityTransform(), kind, found)

    def floor_div(self, number: SparkColumn, divisor: int) -> SparkColumn:
        f = self._f
        quotient = f.call_function("div", number, f.lit(divisor))
        below = (number < 0) & (number % divisor != 0)
        return f.when(below, quotient - 1).otherwise(quotient)

    def compare(self, node: Call) -> SparkColumn:
        kind = node.option
        left, right = node.args
        if kind == NULL:
            return self._f.lit(True) if node.op == "nseq" else self.null()
        op = node.op
        if isinstance(left, Literal):
            left, right, op = right, left, _FLIPPED[op]
        if isinstance(right, Literal) and right.value is not None:
            if kind == DOUBLE:
                return self.compare_double(op, self.compared(left, DOUBLE), float(right.value))
            if is_decimal(kind):
                return self.compare_exact(op, left, Decimal(right.value))
        zoned = kind == TIMESTAMP and self.zoned(node.args)
        return _OPERATORS[op](self.compared(left, kind, zoned=zoned), self.compared(right, kind, zoned=zoned))

    def compare_double(self, op: str, subject: SparkColumn, number: float) -> SparkColumn:
        """Spark: NaN equals NaN and is greater than every other number.

        Written so that no pushed-down part mentions NaN, which Parquet's statistics omit.
        """
        f = self._f
        is_nan, is_number = f.isnan(subject), ~f.isnan(subject)
        if op == "nseq":
            return f.coalesce(self.compare_double("eq", subject, number), f.lit(False))
        if op in ("ne", "gt", "ge"):
            if math.isnan(number):
                return ~self.compare_double({"ne": "eq", "gt": "le", "ge": "lt"}[op], subject, number)
            if op == "ne":
                return ~self.compare_double("eq", subject, number)
            # -0.0 may be stored as well, and both 0.0 >= -0.0 and -0.0 >= 0.0.
            bound = self.literal(-0.0 if number == 0 and op == "ge" else number, DOUBLE)
            return _OPERATORS[op](subject, bound) | is_nan
        if math.isnan(number):
            return self.on_values(subject, {"eq": is_nan, "lt": is_number, "le": f.lit(True)}[op])
        if op == "eq" and number == 0:
            return (subject >= self.literal(-0.0, DOUBLE)) & (subject <= self.literal(0.0, DOUBLE)) & is_number
        bound = self.literal(0.0 if number == 0 else number, DOUBLE)
        return _OPERATORS[op](subject, bound) & is_number

    def compare_exact(self, op: str, node: Node, number: Decimal) -> SparkColumn:
        """Compares an integer or decimal with a constant of its own type, so that the comparison is pushed down."""
        subject = self.column(node)
        unit, low, high = _grid(node)
        if _EXACT.remainder(number, unit) == 0 and low <= number <= high:
            return _OPERATORS[op](subject, self.on_grid(node, number))
        if op == "nseq":
            return self._f.lit(False)
        if op in ("eq", "ne"):
            return self.on_values(subject, self._f.lit(op == "ne"))
        upward = op in ("gt", "ge")
        nearest = number.quantize(unit, rounding=ROUND_CEILING if upward else ROUND_FLOOR, context=_EXACT)
        if nearest < low:
            return self.on_values(subject, self._f.lit(upward))
        if nearest > high:
            return self.on_values(subject, self._f.lit(not upward))
        return _OPERATORS["ge" if upward else "le"](subject, self.on_grid(node, nearest))

    def on_grid(self, node: Node, number: Decimal) -> SparkColumn:
        return self.literal(int(number) if node.type == INT else number, node.type)

    def membership(self, node: Call) -> SparkColumn:
        kind = node.option
        if kind == NULL:
            return self.null()
        subject, members = node.args[0], node.args[1:]
        values = [arg for arg in members if isinstance(arg, Literal) and arg.value is not None]
        found = [self.one_of(subject, values, kind)] if values else []
        if any(isinstance(arg, Literal) and arg.value is None for arg in members):
            found.append(self.null())
        others = [Call("eq", (subject, arg), BOOL, kind) for arg in members if not isinstance(arg, Literal)]
        found += [self.compare(each) for each in others]
        return _balanced(found, _either)

    def one_of(self, node: Node, values: list[Literal], kind: DataType) -> SparkColumn:
        f = self._f
        if kind == DOUBLE:
            return self.one_of_doubles(self.compared(node, kind), {float(each.value) for each in values})
        if is_decimal(kind):
            subject = self.column(node)
            unit, low, high = _grid(node)
            exact = {Decimal(each.value) for each in values}
            fitting = [
                self.on_grid(node, each) for each in exact if _EXACT.remainder(each, unit) == 0 and low <= each <= high
            ]
            return subject.isin(fitting) if fitting else self.on_values(subject, f.lit(False))
        zoned = kind == TIMESTAMP and self.zoned((node,))
        subject = self.compared(node, kind, zoned=zoned)
        return subject.isin([self.compared(each, kind, zoned=zoned) for each in values])

    def one_of_doubles(self, subject: SparkColumn, numbers: set[float]) -> SparkColumn:
        f = self._f
        plain = [each for each in numbers if not math.isnan(each)]
        # Spark looks up long lists by bits, and so do Parquet's dictionaries.
        both = [*(each for each in plain if each != 0), *([0.0, -0.0] if 0.0 in plain else [])]
        is_nan = self.on_values(subject, f.isnan(subject))
        if not both:
            return is_nan
        held = subject.isin([self.literal(each, DOUBLE) for each in both]) & ~f.isnan(subject)
        return held | is_nan if len(plain) < len(numbers) else held

    def is_nan(self, node: Call) -> SparkColumn:
        return self._f.isnan(self.compared(node.args[0], DOUBLE))

    # Choice

    def case(self, node: Call) -> SparkColumn:
        f = self._f
        result = self.compared(node.args[-1], node.type)
        for position in range(len(node.args) - 3, -1, -2):
            condition, outcome = node.args[position : position + 2]
            result = f.when(self.boolean(condition), self.compared(outcome, node.type)).otherwise(result)
        return result

    def coalesce(self, node: Call) -> SparkColumn:
        return self._f.coalesce(*(self.compared(arg, node.type) for arg in node.args))

    # Numbers

    def arithmetic(self, node: Call) -> SparkColumn:
        if is_decimal(node.type):
            return self.decimal_arithmetic(node)
        left, right = (self.compared(arg, node.type).cast(_type_name(node.type)) for arg in node.args)
        if node.op in ("div", "mod", "intdiv"):
            return self.division(node.op, left, right, node.type)
        if node.type == DOUBLE:
            return _SUMS[node.op](left, right)
        return self.unless_null(getattr(self._f, _TRIED[node.op])(left, right), _OVERFLOW, left, right)

    def unless_null(self, result: SparkColumn, error: str, *args: SparkColumn) -> SparkColumn:
        """An error where the result is NULL although no argument is."""
        values = _balanced([each.isNotNull() for each in args], _both)
        return self.unless(result.isNull() & values, error, result)

    def division(self, op: str, left: SparkColumn, right: SparkColumn, kind: DataType) -> SparkColumn:
        f = self._f
        if op == "intdiv":
            found = self.unless(
                (left == self.literal(INT_MIN, INT)) & (right == -1), _OVERFLOW, f.call_function("div", left, right)
            )
        else:
            found = left / right if op == "div" else left % right
        # NULL / 0 is NULL.
        return self.unless((right == self.literal(0, kind)) & left.isNotNull(), _ZERO, found)

    def decimal_arithmetic(self, node: Call) -> SparkColumn:
        """Only for results with room for all digits: their types do not depend on Spark's settings."""
        left, right = (self.compared(arg, _decimal(*decimal_shape(arg))) for arg in node.args)
        if node.op in ("div", "mod"):
            found = left / right if node.op == "div" else left % right
            zero = (right == self.literal(0, _decimal(1, 0))) & left.isNotNull()
            return self.unless(zero, _ZERO, found.cast(_type_name(node.type)))
        return _SUMS[node.op](left, right).cast(_type_name(node.type))

    def negative(self, node: Call) -> SparkColumn:
        found = self.compared(node.args[0], node.type).cast(_type_name(node.type))
        return self.unless_smallest(found, -found, node.type)

    def absolute(self, node: Call) -> SparkColumn:
        found = self.compared(node.args[0], node.type).cast(_type_name(node.type))
        return self.unless_smallest(found, self._f.abs(found), node.type)

    def unless_smallest(self, found: SparkColumn, result: SparkColumn, kind: DataType) -> SparkColumn:
        if kind != INT:
            return result
        return self.unless(found == self.literal(INT_MIN, INT), _OVERFLOW, result)

    # Casts

    def cast(self, node: Call) -> SparkColumn:
        target, forgiving = node.option
        arg = node.args[0]
        if arg.type == NULL:
            return self.literal(None, target.type)
        tried = self.tried(arg, target)
        if tried is None:
            return self.sure(arg, target)
        if forgiving:
            return tried
        return self.unless_null(tried, f"CAST to {target.name} fails in some row", self.column(arg))

    def tried(self, arg: Node, target: Target) -> SparkColumn | None:
        """The value, or NULL where the cast fails. None: it never fails."""
        f = self._f
        source = arg.type
        if target.type == INT and source != BOOL:
            return self.in_range(self.floored(arg, target), target)
        if is_decimal(target.type) and source != BOOL:
            found = self.column(arg) if is_decimal(source) else self.column(arg).cast("bigint")
            return found.try_cast(_type_name(target.type))
        if target.type == TIMESTAMP and source == INT:
            return self.clock(f.try_multiply(self.column(arg).cast("bigint"), f.lit(1_000_000).cast("bigint")))
        if is_decimal(target.type):
            return self.column(arg).cast("int").try_cast(_type_name(target.type))
        return None

    def floored(self, arg: Node, target: Target) -> SparkColumn:
        f = self._f
        if arg.type == TIMESTAMP:
            return self.floor_div(self.micros(arg), 1_000_000)
        if is_decimal(arg.type):
            return self.column(arg).try_cast("bigint")
        if arg.type != DOUBLE:
            return self.column(arg).cast("bigint")
        number = self.compared(arg, DOUBLE)
        assert target.low is not None
        assert target.high is not None
        # The fraction is dropped, so everything above low - 1 fits; for bigint, low - 1 is not a distinct double.
        above = number >= float(target.low) if target.low == INT_MIN else number > float(target.low - 1)
        return f.when(above & (number < float(target.high + 1)), number.cast("bigint"))

    def in_range(self, number: SparkColumn, target: Target) -> SparkColumn:
        if target.low in (None, INT_MIN):
            return number
        return self._f.when(number.between(target.low, target.high), number)

    def sure(self, arg: Node, target: Target) -> SparkColumn:
        found = self.column(arg)
        if target.type == DOUBLE:
            doubles = found.cast("double")
            # Through double, as over Arrow, which may round differently from a direct cast.
            return doubles.cast("float").cast("double") if target.single else doubles
        if target.type == BOOL:
            return found if arg.type == BOOL else found != self._f.lit(0)
        if target.type in (DATE, TIMESTAMP, TEXT) and arg.type == TIMESTAMP:
            found = self.without_zone(arg)
        if target.type == TIMESTAMP:
            return found.cast("timestamp_ntz")
        if target.type == TEXT:
            # CAST formats decimals as 1E-7 outside ANSI mode; try_cast always uses ANSI's format.
            return found.try_cast("string")
        return found.cast(_type_name(target.type))

    # Text

    def length(self, node: Call) -> SparkColumn:
        return self._f.length(self.column(node.args[0])).cast("bigint")

    def substring(self, node: Call) -> SparkColumn:
        start, length = node.option
        limit = 2**31 - 1
        shown = limit if length is None else max(-1, min(length, limit))
        return self._f.substring(self.column(node.args[0]), max(-limit, min(start, limit)), shown)

    def trim(self, node: Call) -> SparkColumn:
        side, characters = node.option
        found = self.column(node.args[0])
        trim = {"both": self._f.btrim, "leading": self._f.ltrim, "trailing": self._f.rtrim}[side]
        return trim(found, self._f.lit(characters)) if characters else found

    def concat(self, node: Call) -> SparkColumn:
        return self._f.concat(*(self.column(arg).cast("string") for arg in node.args))

    def affix(self, node: Call) -> SparkColumn:
        subject, part = (self.column(arg) for arg in node.args)
        return getattr(self._f, {"starts": "startswith", "ends": "endswith", "contains": "contains"}[node.op])(
            subject, part
        )

    def like(self, node: Call) -> SparkColumn:
        subject, fixed, is_prefix = node.args
        assert isinstance(fixed, Literal)
        assert isinstance(is_prefix, Literal)
        found = self.column(subject)
        if is_prefix.value:
            return self._f.startswith(found, self._f.lit(fixed.value))
        return self._f.like(found, self._f.lit(like_pattern(node.option)), self._f.lit("\\"))

    # Partitions

    def bucketed(self, node: Call) -> SparkColumn:
        (column,) = node.args
        assert isinstance(column, Column)
        assert isinstance(column.source, PrimitiveType)
        count, wanted = node.option
        return self._transformed(BucketTransform(count), column.source, self.column(column)).isin(sorted(wanted))

    # Dates

    def date_part(self, node: Call) -> SparkColumn:
        (arg,) = node.args
        found = self.without_zone(arg) if arg.type == TIMESTAMP else self.column(arg)
        return getattr(self._f, node.op)(found).cast("bigint")


def _both(left: SparkColumn, right: SparkColumn) -> SparkColumn:
    return left & right


def _either(left: SparkColumn, right: SparkColumn) -> SparkColumn:
    return left | right


def _balanced(parts: list[SparkColumn], join: Callable[[Any, Any], Any]) -> SparkColumn:
    """Joined in pairs, in order: Spark walks expressions by recursion, and a chain of thousands would be too deep."""
    while len(parts) > 1:
        parts = [reduce(join, parts[i : i + 2]) for i in range(0, len(parts), 2)]
    return parts[0]


def _grid(node: Node) -> tuple[Decimal, Decimal, Decimal]:
    """The step between the numbers that a node may have, and the smallest and largest of them."""
    if is_decimal(node.type):
        unit = Decimal(1).scaleb(-node.type.scale)
        high = _EXACT.subtract(Decimal(1).scaleb(node.type.precision - node.type.scale), unit)
        return unit, high.copy_negate(), high
    if isinstance(node, Column) and isinstance(node.source, IntegerType):
        return Decimal(1), Decimal(-(2**31)), Decimal(2**31 - 1)
    return Decimal(1), Decimal(INT_MIN), Decimal(INT_MAX)


_NAMES = {
    BOOL: "boolean",
    INT: "bigint",
    DOUBLE: "double",
    TEXT: "string",
    DATE: "date",
    TIME: "bigint",
    UUID: "string",
    BINARY: "binary",
    NULL: "void",
}


def _type_name(kind: DataType, zoned: bool = False) -> str:
    if kind == TIMESTAMP:
        # A bare "timestamp" depends on the session.
        return "timestamp_ltz" if zoned else "timestamp_ntz"
    if is_decimal(kind):
        return f"decimal({min(kind.precision, MAX_PRECISION)},{kind.scale})"
    return _NAMES[kind]


_OVERFLOW = "Numeric overflow in some row. CAST the number to a wider type first."
_ZERO = "Division by zero in some row. Exclude those rows first, or divide by nullif(x, 0)."
_TRIED = {"add": "try_add", "sub": "try_subtract", "mul": "try_multiply"}
_SUMS: dict[str, Callable[[SparkColumn, SparkColumn], SparkColumn]] = {
    "add": lambda left, right: left + right,
    "sub": lambda left, right: left - right,
    "mul": lambda left, right: left * right,
}


def _decimal(whole: int, scale: int) -> DataType:
    return pa.decimal128(max(whole + scale, 1), scale)


_OPERATORS: dict[str, Callable[[SparkColumn, SparkColumn], SparkColumn]] = {
    "eq": lambda left, right: left == right,
    "ne": lambda left, right: left != right,
    "lt": lambda left, right: left < right,
    "le": lambda left, right: left <= right,
    "gt": lambda left, right: left > right,
    "ge": lambda left, right: left >= right,
    "nseq": lambda left, right: left.eqNullSafe(right),
}
_OPS: dict[str, Callable[[_Translator, Call], SparkColumn]] = {
    "and": _Translator.connective,
    "or": _Translator.connective,
    "not": _Translator.negation,
    "isnull": _Translator.is_null,
    "is": _Translator.is_truth,
    **dict.fromkeys(_OPERATORS, _Translator.compare),
    "in": _Translator.membership,
    "isnan": _Translator.is_nan,
    "case": _Translator.case,
    "coalesce": _Translator.coalesce,
    **dict.fromkeys(ARITHMETIC, _Translator.arithmetic),
    "neg": _Translator.negative,
    "abs": _Translator.absolute,
    "cast": _Translator.cast,
    "length": _Translator.length,
    "substring": _Translator.substring,
    "trim": _Translator.trim,
    "concat": _Translator.concat,
    **dict.fromkeys(("starts", "ends", "contains"), _Translator.affix),
    "matches": _Translator.like,
    "bucketed": _Translator.bucketed,
    **dict.fromkeys(DATE_PARTS, _Translator.date_part),
}
