"""Which conditions of a query are also pushed into its scans, to prune files. The query keeps all of them.

A condition is pushed to a table only where rows that fail it cannot affect the result: from WHERE, and from ON of
inner and semi joins, to tables that no outer join pads with nulls. A pushed condition may select more rows than the
query's own, never fewer: only expressions that Frazil and Spark evaluate alike under every setting are pushed, and
timestamps without a zone, which depend on the session's time zone, are widened by a day.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

from pyiceberg.schema import Schema
from sqlglot import exp

from frazil.errors import InvalidInput
from frazil.expr import (
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
    parse_filter,
)
from frazil.sql.tokens import quoted

_COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge", "nseq", "in"})
_LOGIC = frozenset({"and", "or", "not", "is"})
_SHAPES = ("joins", "pivots", "sample", "laterals", "when", "changes")
"""Parts of a FROM item with which it is more than a plain table."""
_DEEPEST = 4
"""The parts of a column's name in sqlglot."""
_FLIPPED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq"}


def conditions_by_table(tree: exp.Expr) -> dict[int, list[str]]:
    """id of a table's node → conditions on that table's columns alone, as SQL without qualifiers."""
    found: dict[int, list[str]] = {}
    for select in tree.find_all(exp.Select):
        for table, alone in _receiving(select):
            texts = (_on_table(each, table, alone) for each in _conditions(select))
            found[id(table)] = [each for each in texts if each is not None]
    return found


def _receiving(select: exp.Select) -> Iterator[tuple[exp.Table, bool]]:
    """The tables of a SELECT that no outer join pads with nulls, and whether the table is its only source."""
    start = select.args.get("from_")
    joins = select.args.get("joins") or []
    if start is None:
        return
    sources = [start.this, *(each.this for each in joins)]
    filled: set[int] = set()
    for position, join in enumerate(joins, start=1):
        side, half = join.side.upper(), join.kind.upper() in ("SEMI", "ANTI")
        if side in ("LEFT", "FULL") and not half:
            filled.add(position)
        if side in ("RIGHT", "FULL") and not half:
            filled.update(range(position))
    alone = len(sources) == 1 and not select.args.get("laterals")
    for position, source in enumerate(sources):
        if position not in filled and isinstance(source, exp.Table) and not any(source.args.get(s) for s in _SHAPES):
            yield source, alone


def _conditions(select: exp.Select) -> Iterator[exp.Expr]:
    where = select.args.get("where")
    if where is not None:
        yield from _conjuncts(where.this)
    for join in select.args.get("joins") or []:
        inner = not join.side and join.kind.upper() in ("", "INNER", "CROSS")
        if join.args.get("on") is not None and (inner or join.kind.upper() == "SEMI"):
            yield from _conjuncts(join.args["on"])


def _conjuncts(tree: exp.Expr) -> Iterator[exp.Expr]:
    stack = [tree]
    while stack:
        each = stack.pop()
        if isinstance(each, exp.And):
            stack += [each.expression, each.this]
        elif isinstance(each, exp.Paren):
            stack.append(each.this)
        else:
            yield each


def _on_table(condition: exp.Expr, table: exp.Table, alone: bool) -> str | None:
    """The condition on the table's columns; None: it names other columns, or contains a query."""
    if condition.find(exp.Query, exp.Subquery, exp.Star) is not None:
        return None
    columns = list(condition.find_all(exp.Column))
    if not columns:
        return None
    alias = [table.alias] if table.alias else [each.name for each in table.parts]
    inner = [_unqualified([each.name for each in column.parts], alias, alone) for column in columns]
    if any(each is None or len(each) > _DEEPEST for each in inner):
        return None
    copy = exp.Paren(this=condition.copy())
    for column, names in zip(list(copy.find_all(exp.Column)), inner, strict=True):
        column.replace(exp.column(*(exp.to_identifier(each, quoted=True) for each in reversed(names or []))))
    return copy.sql(dialect="spark")


def _unqualified(names: list[str], alias: list[str], alone: bool) -> list[str] | None:
    """The name without the table in front; None: it may be another table's."""
    lowered = [each.lower() for each in names]
    for qualifier in (alias, alias[-1:]):
        if len(names) > len(qualifier) and lowered[: len(qualifier)] == [each.lower() for each in qualifier]:
            return names[len(qualifier) :]
    return names if alone else None


# What may be pushed


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
    return [] if in_utc else list(_roomy(node, schema))


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
    """Values that compare without a conversion, apart from numbers."""
    kinds = [each.type for each in nodes if each.type != NULL]
    if all(is_numeric(each) for each in kinds):
        return True
    if in_utc and all(each in (DATE, TIMESTAMP) for each in kinds):
        return True
    return len(set(map(str, kinds))) == 1 and kinds[0] in (TEXT, DATE, BOOL)


def _roomy(node: Node, schema: Schema) -> Iterator[str]:
    """Comparisons with a timestamp, widened by a day on either side: no zone is further from UTC than that."""
    if not isinstance(node, Call):
        return
    if node.op == "and":
        for each in node.args:
            yield from _roomy(each, schema)
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
    name = quoted([schema.find_field(each).name for each in left.path])
    if op in ("gt", "ge", "eq") and (low := _moment(micros - MICROS_PER_DAY)) is not None:
        yield f"{name} >= '{low}'"
    if op in ("lt", "le", "eq") and (high := _moment(micros + MICROS_PER_DAY)) is not None:
        yield f"{name} <= '{high}'"


def _micros(literal: Literal) -> int | None:
    if literal.value is None or literal.type not in (DATE, TIMESTAMP):
        return None
    return int(literal.value) * (MICROS_PER_DAY if literal.type == DATE else 1)


def _moment(micros: int) -> str | None:
    try:
        moment = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=micros)
    except OverflowError:
        return None
    return moment.replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")
