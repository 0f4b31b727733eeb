"""Runs one SQL statement on a lake. Statements may contain personal data: nothing here logs them."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from typing import Any, Protocol

from frazil.errors import InvalidInput, Unsupported
from frazil.model import Ident, Isolation
from frazil.on_spark.session import Session, checked
from frazil.sql import alter, calls, ddl, dml
from frazil.sql.begun import Begins, Begun
from frazil.sql.queries import QUERY_WORDS, query
from frazil.sql.scope import Alone, Within
from frazil.sql.session import Context, LakeLike
from frazil.sql.tokens import Cursor, read_statement
from frazil.transaction import Transaction

_STATEMENTS: dict[str, Callable[[Context, Cursor], Any]] = {
    "INSERT": dml.insert,
    "UPDATE": dml.update,
    "DELETE": dml.delete,
    "MERGE": dml.merge,
    "CREATE": ddl.create,
    "DROP": ddl.drop,
    "ALTER": alter.alter,
    "SHOW": ddl.show,
    "DESCRIBE": ddl.describe,
    "DESC": ddl.describe,
    "CALL": calls.call,
}
_BOUNDARIES = ("BEGIN", "START", "COMMIT", "ROLLBACK")
_KNOWN = (
    "SELECT, INSERT, UPDATE, DELETE, MERGE, CREATE, DROP, ALTER TABLE, SHOW, DESCRIBE, CALL, BEGIN, COMMIT and ROLLBACK"
)


class BeginningLake(LakeLike, Begins, Protocol):
    """A lake on which SQL begins transactions."""


Time = dt.datetime | str | int


def run(lake: BeginningLake, begun: Begun, text: str, spark: object = None, as_of: Time | None = None) -> Any:
    """Run one statement of ``lake.sql()``: in the transaction that this thread has begun, or by itself."""
    cursor = Cursor(read_statement(text))
    if cursor.sees("BEGIN") or cursor.sees("START", "TRANSACTION"):
        _check_now("BEGIN", as_of)
        return begun.begin(lake, _isolation(cursor))
    if cursor.sees_one("COMMIT", "ROLLBACK"):
        word = cursor.take().value.upper()
        _check_now(word, as_of)
        cursor.accept("TRANSACTION")
        cursor.end()
        transaction = begun.take(word)
        return transaction.commit() if word == "COMMIT" else transaction.rollback()
    return execute(lake, text, spark, begun.current(), as_of)


def _isolation(cursor: Cursor) -> str:
    """``BEGIN [TRANSACTION]`` or ``START TRANSACTION``, each with ``[ISOLATION LEVEL SERIALIZABLE | SNAPSHOT]``"""
    cursor.take()
    cursor.accept("TRANSACTION")
    level = str(Isolation.SERIALIZABLE)
    if cursor.accept("ISOLATION", "LEVEL"):
        level = cursor.one_of(*(each.upper() for each in Isolation)).lower()
    cursor.end()
    return level


def execute(
    lake: LakeLike,
    text: str,
    spark: object = None,
    transaction: Transaction | None = None,
    as_of: Time | None = None,
) -> Any:
    """Run one statement: a DataFrame for a query, a Commit or None for everything else. ``as_of``: a query alone."""
    if as_of is not None and transaction is not None:
        raise InvalidInput(
            "as_of inside a transaction: its queries read the lake at the instant at which it was pinned",
            advice="Leave as_of out, or run the query outside of the transaction",
        )
    scope = Alone() if transaction is None else Within(transaction)
    context = Context(lake, None if spark is None else checked(spark), scope)
    cursor = Cursor(read_statement(text))
    first = cursor.take().value.upper()
    cursor.at = 0
    if first == "WITH" and len(cursor.until("INSERT")) < len(cursor.statement.tokens):
        cursor.at = 0
        _check_now("INSERT", as_of)
        return dml.insert(context, cursor)
    if first in QUERY_WORDS:
        return query(context, text, as_of=as_of)
    _check_now(first, as_of)
    if first in _BOUNDARIES and transaction is not None:
        raise InvalidInput(
            f"{first} inside a transaction: this is one already", advice="End it with tx.commit() or tx.rollback()"
        )
    statement = _STATEMENTS.get(first)
    if statement is None:
        raise Unsupported(f"lake.sql() does not support {first[:20]}", advice=f"Supported are {_KNOWN}")
    return statement(context, cursor)


def _check_now(word: str, as_of: object) -> None:
    """Raises InvalidInput for a statement that is not a query and names a time."""
    if as_of is not None:
        raise InvalidInput(
            f"as_of belongs to queries, and {word[:20]} is not one: the lake as it was can only be read",
            advice="Leave as_of out, or write SELECT, WITH … SELECT, FROM … or VALUES",
        )


def attach(lake: LakeLike, spark: object = None) -> dict[str, str]:
    """A temporary view of every table, all of one instant; returns table → view."""
    context = Context(lake, None if spark is None else checked(spark))
    session: Session = context.session("attach()")
    names = _view_names(lake.tables())
    snapshot = context.snapshot(session)
    for table, view in names.items():
        snapshot.table(table).scan().to_spark().createOrReplaceTempView(view)
    return names


def _view_names(tables: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for table in tables:
        ident = Ident.parse(table)
        view = re.sub(r"\W", "_", "_".join((*ident.namespace, ident.name)))
        other = next((name for name, taken in found.items() if taken.lower() == view.lower()), None)
        if other is not None:
            raise InvalidInput(
                f"The tables {other} and {table} would both become the view {view}",
                advice="Rename one of them, or query both through lake.sql(), which needs no views",
            )
        found[table] = view
    return found
