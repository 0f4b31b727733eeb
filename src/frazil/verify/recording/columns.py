"""The columns whose values may be recorded: no other value of a row is ever logged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyiceberg.schema import Schema

from frazil.errors import InvalidInput
from frazil.expr import INT, TEXT, Call, Column, Filter, Literal
from frazil.verify.recording.log import plain


@dataclass(frozen=True, slots=True)
class Named:
    """The key columns and the value column of a table."""

    keys: tuple[str, ...]
    value: str

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.keys, self.value)

    def ids(self, schema: Schema) -> tuple[int, ...] | None:
        """The field ids of the columns, keys first; None: the schema lacks some of them."""
        found = [schema.find_field(name).field_id for name in self.columns if name in schema.column_names]
        return tuple(found) if len(found) == len(self.columns) else None

    def pairs(self, rows: pa.RecordBatch | pa.Table) -> Iterable[tuple[Any, Any]]:
        """(key, value) of each row."""
        columns = [rows.column(name).to_pylist() for name in self.columns]
        for *key, value in zip(*columns, strict=True):
            yield plain(key[0] if len(key) == 1 else key), plain(value)


def parse_named(values: Mapping[str, tuple[Any, str]] | str | None) -> dict[str, Named]:
    """``{"shop.t": ("id", "v")}``, or the same as a string: ``shop.t=id:v``; tables are separated by commas, key
    columns by plus signs.
    """
    if not values:
        return {}
    if isinstance(values, str):
        values = dict(_parsed(each) for each in values.split(",") if each.strip())
    found: dict[str, Named] = {}
    for table, (key, value) in values.items():
        found[table] = Named((key,) if isinstance(key, str) else tuple(key), value)
    return found


def _parsed(text: str) -> tuple[str, tuple[tuple[str, ...], str]]:
    table, equals, columns = text.strip().partition("=")
    keys, colon, value = columns.partition(":")
    if not (table and equals and keys and colon and value):
        raise InvalidInput(
            f"{text!r} does not name a key column and a value column", advice="Write TABLE=KEY:VALUE, as in shop.t=id:v"
        )
    return table, (tuple(keys.split("+")), value)


def asked_keys(where: Filter, key_id: int) -> list[Any] | None:
    """The keys that a condition selects (``id = 1``, ``id IN (1, 2)``); None: it is of another form."""
    condition = where.condition
    if not isinstance(condition, Call) or condition.op not in ("eq", "in"):
        return None
    columns = [each for each in condition.args if isinstance(each, Column)]
    constants = [each for each in condition.args if isinstance(each, Literal)]
    if len(columns) != 1 or len(columns) + len(constants) != len(condition.args):
        return None
    exact = columns[0].field_id == key_id and columns[0].type in (INT, TEXT)
    if not exact or any(each.type != columns[0].type for each in constants):
        return None
    return [plain(each.value) for each in constants]


def shown_filter(where: Filter, named: Named | None) -> str | None:
    """The condition; of one on other columns than the named ones, only the columns' names."""
    if where.is_true:
        return None
    names = {column.name for column in where.columns}
    if named is not None and names <= set(named.columns):
        return where.text
    return f"a condition on {', '.join(sorted(names))}"
