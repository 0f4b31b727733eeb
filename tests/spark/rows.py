"""Rows as both engines give them, made comparable."""

from __future__ import annotations

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
    if hasattr(value, "astimezone") and getattr(value, "tzinfo", None) is not None:
        import datetime as dt

        return value.astimezone(dt.UTC).isoformat()
    return value


def same_rows(table: Any, spark: Any) -> list[str]:
    """The rows of a table, which Spark and Arrow must agree on."""
    scan = table.scan()
    by_arrow, by_spark = canonical(scan.to_arrow()), canonical(scan.to_spark(spark).toArrow())
    assert by_spark == by_arrow
    return by_arrow
