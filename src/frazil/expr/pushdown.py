"""Which conditions of a Spark query may also be given to a scan, because Frazil and Spark agree about them.

A scan that is given a condition may return more rows than the condition selects, never fewer. So only forms whose
meaning depends on no Spark setting are given, and comparisons of timestamps, which the session's time zone may shift,
are widened by a day on either side.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

from pyiceberg.schema import Schema

from frazil.errors import InvalidInput
from frazil.expr.filters import parse_filter
from frazil.expr.nodes import (
    BOOL,
    DATE,
    MICROS_PER_DAY,
    NULL,
    TEXT,
    TIMESTAMP,
    Call,
    Column,
    Literal,
    Node,
    is_numeric,
)

_COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge", "nseq", "in"})
_LOGIC = frozenset({"and", "or", "not", "is"})
_FLIPPED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq"}


def pushed(conditions: list[str], schema: Schema, *, in_utc: bool) -> str | None:
    """The conditions for a scan; None: nothing can be pushed."""
    texts = [each for condition in conditions for each in _agreed(condition, schema, in_utc)]
    return " and ".join(each if each.startswith("(") else f"({each})" for each in texts) or None


def _agreed(condition: str, schema: Schema, in_utc: bool) -> list[str]:
    try:
        node = parse_filter(condition, schema).condition
    except InvalidInput:
        # Spark may support what Frazil does not: the query alone evaluates it.
        return []
    if _is_agreed(node, in_utc):
        return [condition]
    return [] if in_utc else list(_widened_by_a_day(node, schema))


def _is_agreed(node: Node, in_utc: bool) -> bool:
    match node:
        case Column():
            return bool(node.type == BOOL)
        case Literal():
            return node.type in (BOOL, NULL)
        case Call(op="isnull"):
            return isinstance(node.args[0], Column)
        case Call() if node.op in _LOGIC:
            return all(_is_agreed(each, in_utc) for each in node.args)
        case Call() if node.op in _COMPARISONS:
            return all(isinstance(each, Column | Literal) for each in node.args) and _are_alike(node.args, in_utc)
    return False


def _are_alike(nodes: tuple[Node, ...], in_utc: bool) -> bool:
    """Whether the values are compared without a conversion, except between numbers."""
    kinds = [each.type for each in nodes if each.type != NULL]
    if all(is_numeric(each) for each in kinds):
        return True
    if in_utc and all(each in (DATE, TIMESTAMP) for each in kinds):
        return True
    return len(set(map(str, kinds))) == 1 and kinds[0] in (TEXT, DATE, BOOL)


def _widened_by_a_day(node: Node, schema: Schema) -> Iterator[str]:
    """Comparisons of timestamps, with a day more on either side: every time zone is within a day of UTC."""
    if not isinstance(node, Call):
        return
    if node.op == "and":
        for each in node.args:
            yield from _widened_by_a_day(each, schema)
        return
    if node.op not in _FLIPPED or len(node.args) != 2:
        return
    left, right, op = *node.args, node.op
    if isinstance(left, Literal):
        left, right, op = right, left, _FLIPPED[op]
    if not (isinstance(left, Column) and isinstance(right, Literal) and left.type == TIMESTAMP):
        return
    micros = _micros(right)
    if micros is None:
        return
    name = ".".join(f"`{schema.find_field(each).name}`" for each in left.path)
    if op in ("gt", "ge", "eq") and (low := _timestamp(micros - MICROS_PER_DAY)) is not None:
        yield f"{name} >= '{low}'"
    if op in ("lt", "le", "eq") and (high := _timestamp(micros + MICROS_PER_DAY)) is not None:
        yield f"{name} <= '{high}'"


def _micros(literal: Literal) -> int | None:
    if literal.value is None or literal.type not in (DATE, TIMESTAMP):
        return None
    return int(literal.value) * (MICROS_PER_DAY if literal.type == DATE else 1)


def _timestamp(micros: int) -> str | None:
    try:
        instant = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=micros)
    except OverflowError:
        return None
    return instant.replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")
