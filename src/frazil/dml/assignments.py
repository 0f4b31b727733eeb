"""The new values of an update: each column's from a SQL expression over the old row, or from a Python value."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, StructType

from frazil.errors import InvalidInput, Unsupported
from frazil.expr import Lit, assigned, check_nulls, did_you_mean, parse_expression
from frazil.stage.rows import conform, to_reader

Array = Any
arrow: Any = pa
_NAME_PART = re.compile(r"`([^`]+)`|([^.`]+)")


@dataclass(frozen=True, slots=True)
class _Assignment:
    path: tuple[NestedField, ...]
    values: Callable[[pa.RecordBatch], Array]


class Assignments:
    """``set`` of an update, bound to a schema. Raises InvalidInput, SchemaMismatch and Unsupported when it is made."""

    def __init__(self, values: Mapping[str, object], schema: Schema, *, case_sensitive: bool = False) -> None:
        if not isinstance(values, Mapping) or not values:
            raise InvalidInput("set names no column", advice="Write set={'status': \"'gone'\", 'n': 'n + 1'}")
        self._schema = schema
        self._assignments = [_bind(name, value, schema, case_sensitive) for name, value in values.items()]
        check_apart([each.path for each in self._assignments])

    def apply(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows with their new values; every expression sees the old ones."""
        found = [(each.path, each.values(rows)) for each in self._assignments]
        columns: list[Array] = list(rows.columns)
        for path, values in found:
            position = rows.schema.get_field_index(path[0].name)
            columns[position] = replaced(columns[position], path, values)
        return arrow.RecordBatch.from_arrays(columns, schema=rows.schema)  # type: ignore[no-any-return]


def _bind(name: str, value: object, schema: Schema, case_sensitive: bool) -> _Assignment:
    path = find_column(name, schema, case_sensitive)
    shown = _dotted(path)
    if isinstance(value, str):
        expression = parse_expression(value, schema, case_sensitive=case_sensitive)
        return _Assignment(path, assigned(expression, path[-1], shown))
    constant = constant_value(value.value if isinstance(value, Lit) else value, path[-1], shown)
    return _Assignment(path, lambda rows: constant.take(arrow.repeat(0, rows.num_rows)))


def constant_value(value: object, field: NestedField, shown: str) -> Array:
    """A Python value as one row of a column, converted like rows of Python values."""
    one = Schema(field)
    batch = to_reader([{field.name: value}], one).read_next_batch()
    found = conform(batch, one).column(0)
    check_nulls(found, field, shown)
    return found


def is_column(given: object) -> bool:
    """Whether it is a Spark Column, found without loading Spark."""
    module = sys.modules.get("pyspark.sql")
    return module is not None and isinstance(given, module.Column)


def find_column(name: str, schema: Schema, case_sensitive: bool) -> tuple[NestedField, ...]:
    if not isinstance(name, str) or not name:
        raise InvalidInput(f"{name!r} in set is not a column name")
    whole = _match(name, schema.fields, case_sensitive)
    if whole is not None:
        return (whole,)
    fields = schema.fields
    path: list[NestedField] = []
    for quoted, plain in _NAME_PART.findall(name):
        found = _match(quoted or plain, fields, case_sensitive)
        if found is None:
            _refuse(name, quoted or plain, path, [each.name for each in fields])
        else:
            path.append(found)
            fields = found.field_type.fields if isinstance(found.field_type, StructType) else ()
    return tuple(path)


def _refuse(name: str, part: str, path: list[NestedField], known: list[str]) -> None:
    if path and not isinstance(path[-1].field_type, StructType):
        kind = str(path[-1].field_type).partition("<")[0]
        raise Unsupported(
            f"set names {name!r}, but {path[-1].name!r} has the type {kind}, and its parts cannot be set",
            advice=f"Set {path[-1].name!r} as a whole",
        )
    raise InvalidInput(f"set names the column {name!r}, which does not exist", advice=did_you_mean(part, known))


def _match(name: str, fields: tuple[NestedField, ...], case_sensitive: bool) -> NestedField | None:
    exact = next((each for each in fields if each.name == name), None)
    if exact is not None or case_sensitive:
        return exact
    loose = [each for each in fields if each.name.lower() == name.lower()]
    if len(loose) > 1:
        raise InvalidInput(
            f"The name {name!r} in set matches several columns: {', '.join(each.name for each in loose)}"
        )
    return loose[0] if loose else None


def check_apart(paths: Sequence[tuple[NestedField, ...]]) -> None:
    """Raises InvalidInput when one column is set twice, also as a part of another."""
    for position, each in enumerate(paths):
        for other in paths[:position]:
            shared = min(len(each), len(other))
            if each[:shared] == other[:shared]:
                raise InvalidInput(
                    f"set names {_dotted(each)!r} twice, also as {_dotted(other)!r}", advice="Keep one of them"
                )


def _dotted(path: tuple[NestedField, ...]) -> str:
    return ".".join(each.name for each in path)


def replaced(column: Array, path: tuple[NestedField, ...], values: Array) -> Array:
    """The column with new values at the end of the path. A null struct around them becomes non-null."""
    if len(path) == 1:
        return values
    children = column.flatten()
    wanted = path[1].name
    for position, each in enumerate(column.type):
        if each.name == wanted:
            children[position] = replaced(children[position], path[1:], values)
    struct = path[0].field_type
    assert isinstance(struct, StructType)
    for child, field in zip(children, struct.fields, strict=True):
        check_nulls(child, field, f"{path[0].name}.{field.name}")
    return arrow.StructArray.from_arrays(children, fields=list(column.type))
