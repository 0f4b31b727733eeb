"""Projects a filter to tests of single columns, for pruning: a tree implied by the filter, or one that implies it.

``reach(node, truth, unknown)`` is the condition on a row under which the node evaluates to TRUE, FALSE or NULL. Parts
that do not test single columns become ``unknown``: True gives a condition that holds on every matching row
(inclusive), False one that holds on matching rows only (strict). Three-valued NOT only swaps the truth value.
"""

from __future__ import annotations

import calendar
import datetime as dt
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Any
from typing import Literal as Choice

from pyiceberg.types import DecimalType, FixedType, FloatType, IntegerType

from frazil.expr.facts import Atom, Tree, both, either
from frazil.expr.nodes import (
    BOOL,
    DATE,
    DOUBLE,
    INT,
    MICROS_PER_DAY,
    NESTED,
    NULL,
    TEXT,
    TIMESTAMP,
    Call,
    Column,
    Literal,
    Node,
    is_decimal,
)

Truth = Choice["true", "false", "null"]
_EXACT = Context(prec=100)
_OPPOSITE = {"eq": "ne", "ne": "eq", "lt": "ge", "ge": "lt", "gt": "le", "le": "gt"}
_MIRRORED = {"eq": "eq", "ne": "ne", "lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}


def reach(node: Node, truth: Truth, unknown: bool) -> Tree:
    """The condition on a row under which the node has this truth value."""
    if isinstance(node, Literal):
        return _constant(node.value, truth)
    if isinstance(node, Column):
        if truth == "null":
            return Atom("null", node.field_id)
        return Atom("eq", node.field_id, truth == "true") if node.type == BOOL else unknown
    handler = _HANDLERS.get(node.op)
    return unknown if handler is None else handler(node, truth, unknown)


def _constant(value: Any, truth: Truth) -> bool:
    if value is None:
        return truth == "null"
    return truth == ("true" if value else "false")


def _and(node: Call, truth: Truth, unknown: bool) -> Tree:
    if truth == "true":
        return both(*(reach(arg, "true", unknown) for arg in node.args))
    if truth == "false":
        return either(*(reach(arg, "false", unknown) for arg in node.args))
    # NULL: no part false, and not all true.
    open_parts = [either(reach(arg, "true", unknown), reach(arg, "null", unknown)) for arg in node.args]
    return both(*open_parts, either(*(reach(arg, "null", unknown) for arg in node.args)))


def _or(node: Call, truth: Truth, unknown: bool) -> Tree:
    if truth == "true":
        return either(*(reach(arg, "true", unknown) for arg in node.args))
    if truth == "false":
        return both(*(reach(arg, "false", unknown) for arg in node.args))
    open_parts = [either(reach(arg, "false", unknown), reach(arg, "null", unknown)) for arg in node.args]
    return both(*open_parts, either(*(reach(arg, "null", unknown) for arg in node.args)))


def _not(node: Call, truth: Truth, unknown: bool) -> Tree:
    swapped: dict[Truth, Truth] = {"true": "false", "false": "true", "null": "null"}
    return reach(node.args[0], swapped[truth], unknown)


def _is_null(node: Call, truth: Truth, unknown: bool) -> Tree:
    if truth == "null":
        return False
    arg = node.args[0]
    if truth == "true":
        return _null_of(arg, unknown)
    return _present(arg, unknown)


def _null_of(node: Node, unknown: bool) -> Tree:
    if isinstance(node, Column):
        return Atom("null", node.field_id)
    if isinstance(node, Literal):
        return node.value is None
    return reach(node, "null", unknown) if node.type == BOOL else unknown


def _present(node: Node, unknown: bool) -> Tree:
    if isinstance(node, Column):
        return Atom("notnull", node.field_id)
    if isinstance(node, Literal):
        return node.value is not None
    if node.type == BOOL:
        return either(reach(node, "true", unknown), reach(node, "false", unknown))
    return unknown


def _is_truth(node: Call, truth: Truth, unknown: bool) -> Tree:
    if truth == "null":
        return False
    wanted: Truth = "true" if node.option else "false"
    other: Truth = "false" if node.option else "true"
    if truth == "true":
        return reach(node.args[0], wanted, unknown)
    return either(reach(node.args[0], other, unknown), reach(node.args[0], "null", unknown))


def _compare(node: Call, truth: Truth, unknown: bool) -> Tree:
    left, right, op = *node.args, node.op
    if isinstance(left, Literal):
        left, right, op = right, left, _MIRRORED[op]
    if not isinstance(right, Literal):
        return unknown
    if right.value is None:
        return truth == "null"
    subject = _subject(left, right)
    if subject is None:
        return unknown
    if truth == "null":
        return Atom("null", subject.column.field_id)
    return subject.test(op if truth == "true" else _OPPOSITE[op])


def _null_safe(node: Call, truth: Truth, unknown: bool) -> Tree:
    if truth == "null":
        return False
    left, right = node.args
    if isinstance(left, Literal):
        left, right = right, left
    if not isinstance(right, Literal):
        return unknown
    if right.value is None:
        return _null_of(left, unknown) if truth == "true" else _present(left, unknown)
    subject = _subject(left, right)
    if subject is None:
        return unknown
    if truth == "true":
        return subject.test("eq")
    return either(Atom("null", subject.column.field_id), subject.test("ne"))


def _in(node: Call, truth: Truth, unknown: bool) -> Tree:
    subject, rest = node.args[0], node.args[1:]
    if not isinstance(subject, Column) or not all(isinstance(each, Literal) for each in rest):
        return unknown
    has_null = any(isinstance(each, Literal) and each.value is None for each in rest)
    known = [each for each in rest if isinstance(each, Literal) and each.value is not None]
    # One double in the list makes Spark compare all of it as doubles.
    doubles = node.option == DOUBLE
    fitted = [_subject(subject, Literal(float(each.value), DOUBLE) if doubles else each) for each in known]
    if any(each is None for each in fitted):
        return unknown
    tests = [each.test("eq") for each in fitted if each is not None]
    if truth == "true":
        return _one_of(tests)
    if truth == "null":
        return unknown if has_null else Atom("null", subject.field_id)
    if has_null:
        return False
    present = Atom("notnull", subject.field_id)
    return both(present, *(each.test("ne") for each in fitted if each is not None))


def _one_of(tests: list[Tree]) -> Tree:
    equal = [test for test in tests if isinstance(test, Atom) and test.op == "eq"]
    others = [test for test in tests if not (isinstance(test, Atom) and test.op == "eq")]
    if len(equal) > 1:
        return either(*others, Atom("in", equal[0].field_id, tuple(dict.fromkeys(test.value for test in equal))))
    return either(*others, *equal)


def _is_nan(node: Call, truth: Truth, unknown: bool) -> Tree:
    arg = node.args[0]
    if truth == "null":
        return False
    if not isinstance(arg, Column):
        return unknown
    if arg.type != DOUBLE:
        return truth == "false"
    if truth == "true":
        return Atom("nan", arg.field_id)
    return either(Atom("null", arg.field_id), Atom("notnan", arg.field_id))


def _starts(node: Call, truth: Truth, unknown: bool) -> Tree:
    subject, prefix = node.args
    if not isinstance(prefix, Literal) or prefix.value is None:
        return unknown
    return _prefix_test(subject, prefix.value, truth, unknown, exact=True)


def _matches(node: Call, truth: Truth, unknown: bool) -> Tree:
    """LIKE: bounds can only test its fixed beginning."""
    prefix, exact = node.args[1:], False
    if len(prefix) != 2 or not isinstance(prefix[0], Literal) or not isinstance(prefix[1], Literal):
        return unknown
    exact = bool(prefix[1].value)
    return _prefix_test(node.args[0], prefix[0].value, truth, unknown, exact=exact)


def _prefix_test(subject: Node, prefix: str, truth: Truth, unknown: bool, *, exact: bool) -> Tree:
    if not isinstance(subject, Column) or subject.type != TEXT:
        return unknown
    if truth == "null":
        return Atom("null", subject.field_id)
    present = Atom("notnull", subject.field_id)
    starts = Atom("starts", subject.field_id, prefix) if prefix else present
    if truth == "true":
        return starts if exact or unknown else False
    # FALSE: any value that is not NULL may fail to match, and bounds cannot prove that one does.
    return present if unknown else False


def _bucketed(node: Call, truth: Truth, unknown: bool) -> Tree:
    (column,) = node.args
    if not isinstance(column, Column):
        return unknown
    if truth == "null":
        return Atom("null", column.field_id)
    return Atom("bucket" if truth == "true" else "notbucket", column.field_id, node.option)


# One column against one constant


@dataclass(frozen=True, slots=True)
class _Subject:
    """A column and a constant in the column's own domain.

    ``floor`` and ``ceiling`` are the column values next to the constant; equal when the column can hold it exactly;
    None when nothing of the domain lies on that side.
    """

    column: Column
    floor: Any
    ceiling: Any
    nan: bool = False

    def test(self, op: str) -> Tree:
        """True on the rows whose value is not NULL and compares so."""
        if self.nan:
            return self._test_nan(op)
        exact = self.floor is not None and self.floor == self.ceiling
        return self._test_exact(op) if exact else self._test_gap(op)

    def _atom(self, op: str, value: Any = None) -> Tree:
        return Atom(op, self.column.field_id, value)

    def _test_exact(self, op: str) -> Tree:
        return self._atom(op, self.floor)

    def _test_gap(self, op: str) -> Tree:
        if op == "eq":
            return False
        if op == "ne":
            return self._atom("notnull")
        if op in ("lt", "le"):
            return False if self.floor is None else self._atom("le", self.floor)
        return False if self.ceiling is None else self._atom("ge", self.ceiling)

    def _test_nan(self, op: str) -> Tree:
        floating = self.column.type == DOUBLE
        tests: dict[str, Tree] = {
            "eq": self._atom("nan") if floating else False,
            "ge": self._atom("nan") if floating else False,
            "gt": False,
            "ne": self._atom("notnan") if floating else self._atom("notnull"),
            "lt": self._atom("notnan") if floating else self._atom("notnull"),
            "le": self._atom("notnull"),
        }
        return tests[op]


def _subject(node: Node, constant: Literal) -> _Subject | _Range | None:
    if isinstance(node, Column):
        return _fit(node, constant)
    if isinstance(node, Call) and len(node.args) == 1 and isinstance(node.args[0], Column):
        return _ranged(node, node.args[0], constant)
    return None


def _fit(column: Column, constant: Literal) -> _Subject | None:
    if column.type in (NULL, NESTED):
        return None
    if isinstance(constant.value, float) and math.isnan(constant.value):
        return _Subject(column, None, None, nan=True)
    if column.type == INT:
        return _fit_integer(column, constant)
    if column.type == DOUBLE:
        return _fit_floating(column, float(constant.value))
    if is_decimal(column.type):
        return _fit_decimal(column, constant)
    if isinstance(column.source, FixedType) and len(constant.value) != len(column.source):
        return None
    if column.type == DATE and constant.type == TIMESTAMP:
        floor = constant.value // MICROS_PER_DAY
        return _Subject(column, floor, floor if floor * MICROS_PER_DAY == constant.value else floor + 1)
    value = constant.value * MICROS_PER_DAY if column.type == TIMESTAMP and constant.type == DATE else constant.value
    return _Subject(column, value, value)


def _fit_integer(column: Column, constant: Literal) -> _Subject | None:
    value = constant.value
    # Spark compares a long with a double as doubles: beyond 2**53 several longs are one double.
    if isinstance(value, float) and math.isfinite(value) and abs(value) >= 2**53:
        return None
    bits = 31 if isinstance(column.source, IntegerType) else 63
    lowest, highest = -(2**bits), 2**bits - 1
    if value < lowest:
        return _Subject(column, None, lowest)
    if value > highest:
        return _Subject(column, highest, None)
    return _Subject(column, math.floor(value), math.ceil(value))


def _fit_decimal(column: Column, constant: Literal) -> _Subject | None:
    if isinstance(constant.value, float):
        return None  # compared as doubles, which round
    assert isinstance(column.source, DecimalType)
    unit = Decimal(1).scaleb(-column.source.scale)
    highest = (Decimal(10) ** column.source.precision - 1).scaleb(-column.source.scale, context=_EXACT)
    value = Decimal(constant.value)
    if value > highest:
        return _Subject(column, highest, None)
    if value < -highest:
        return _Subject(column, None, _EXACT.minus(highest))
    return _Subject(
        column,
        value.quantize(unit, rounding=ROUND_FLOOR, context=_EXACT),
        value.quantize(unit, rounding=ROUND_CEILING, context=_EXACT),
    )


def _fit_floating(column: Column, value: float) -> _Subject:
    if not isinstance(column.source, FloatType) or math.isinf(value):
        return _Subject(column, value, value)
    try:
        near = struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        largest = struct.unpack("<f", b"\xff\xff\x7f\x7f")[0]
        return _Subject(column, largest, math.inf) if value > 0 else _Subject(column, -math.inf, -largest)
    if near == value:
        return _Subject(column, near, near)
    return _Subject(column, near, _beside(near, 1)) if near < value else _Subject(column, _beside(near, -1), near)


def _beside(value: float, direction: int) -> float:
    """The next 32-bit float above or below."""
    bits = struct.unpack("<i", struct.pack("<f", value))[0]
    if value == 0:
        bits = 1 if direction > 0 else -(2**31) + 1
    else:
        bits += direction if value > 0 else -direction
    return float(struct.unpack("<f", struct.pack("<i", bits))[0])


# Days and years of a column: ranges of the column itself


@dataclass(frozen=True, slots=True)
class _Range:
    """A constant that means the column's values from ``start`` (inclusive) to ``end`` (exclusive)."""

    column: Column
    start: int
    end: int

    def test(self, op: str) -> Tree:
        field_id = self.column.field_id
        inside = both(Atom("ge", field_id, self.start), Atom("lt", field_id, self.end))
        tests: dict[str, Tree] = {
            "eq": inside,
            "ne": either(Atom("lt", field_id, self.start), Atom("ge", field_id, self.end)),
            "lt": Atom("lt", field_id, self.start),
            "ge": Atom("ge", field_id, self.start),
            "le": Atom("lt", field_id, self.end),
            "gt": Atom("ge", field_id, self.end),
        }
        return tests[op]


def _ranged(node: Call, column: Column, constant: Literal) -> _Range | None:
    if column.type not in (DATE, TIMESTAMP):
        return None
    scale = 1 if column.type == DATE else MICROS_PER_DAY
    if node.op == "cast" and node.type == DATE and constant.type == DATE:
        return _Range(column, constant.value * scale, (constant.value + 1) * scale)
    if node.op == "year" and constant.type == INT and dt.MINYEAR <= constant.value < dt.MAXYEAR:
        return _Range(column, _year_start(constant.value) * scale, _year_start(constant.value + 1) * scale)
    return None


def _year_start(year: int) -> int:
    return calendar.timegm((year, 1, 1, 0, 0, 0)) // 86_400


_HANDLERS: dict[str, Callable[[Call, Truth, bool], Tree]] = {
    "and": _and,
    "or": _or,
    "not": _not,
    "isnull": _is_null,
    "is": _is_truth,
    **dict.fromkeys(_OPPOSITE, _compare),
    "nseq": _null_safe,
    "in": _in,
    "isnan": _is_nan,
    "starts": _starts,
    "matches": _matches,
    "bucketed": _bucketed,
}
