"""Which conditions of a query are also pushed into its scans, to prune files. The query keeps all of them.

A condition is pushed to a table only where rows that fail it cannot affect the result: from WHERE, and from ON of
inner and semi joins, to tables that no outer join pads with nulls. frazil.expr.pushed decides which of them Frazil and
Spark evaluate alike.
"""

from __future__ import annotations

from collections.abc import Iterator

from frazil._sqlglot import exp

_SHAPES = ("joins", "pivots", "sample", "laterals", "when", "changes")
"""Parts of a FROM item with which it is more than a plain table."""
_DEEPEST = 4
"""The parts of a column's name in sqlglot."""


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
    padded: set[int] = set()
    for position, join in enumerate(joins, start=1):
        side, half = join.side.upper(), join.kind.upper() in ("SEMI", "ANTI")
        if side in ("LEFT", "FULL") and not half:
            padded.add(position)
        if side in ("RIGHT", "FULL") and not half:
            padded.update(range(position))
    alone = len(sources) == 1 and not select.args.get("laterals")
    for position, source in enumerate(sources):
        if position not in padded and isinstance(source, exp.Table) and not any(source.args.get(s) for s in _SHAPES):
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
