"""Rows as both engines give them, made comparable."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any

import pyarrow as pa


def canonical(table: pa.Table) -> list[str]:
    """All rows as texts, sorted; the order of columns counts, that of rows does not."""
    return sorted(repr(tuple(_plain(value) for value in row.values())) for row in table.to_pylist())


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, uuid.UUID):
        # Spark has none, and says them as text.
        return str(value)
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return value.astimezone(dt.UTC).isoformat()
    if isinstance(value, dt.time):
        # Spark has no time of day: it counts microseconds.
        return ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond
    return value


def same_rows(table: Any, spark: Any) -> list[str]:
    """The rows of a table, which Spark and Arrow must agree on."""
    scan = table.scan()
    by_arrow, by_spark = canonical(scan.to_arrow()), canonical(scan.to_spark(spark).toArrow())
    assert by_spark == by_arrow
    return by_arrow
