"""JSON lines as rows. JSON has no dates, decimals or bytes: strings are converted to the columns' types."""

from __future__ import annotations

import datetime as dt
import decimal
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    FixedType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
)

from frazil.errors import InvalidInput
from frazil.format.schemas import match_name


class _Refused(Exception):
    """Why a line is refused, and what to write instead."""

    def __init__(self, why: str, advice: str) -> None:
        super().__init__(why)
        self.advice = advice


def _zoned(text: str) -> dt.datetime:
    """As in CSV, the zone is required: a guessed zone would shift every row by hours."""
    found = dt.datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise _Refused(
            f"the timestamp {text!r} has no time zone, and the column needs one",
            "Add one: 2026-11-01T12:00:00Z or 2026-11-01T12:00:00+01:00",
        )
    return found


_FROM_TEXT: dict[type[IcebergType], Callable[[str], Any]] = {
    DateType: dt.date.fromisoformat,
    TimeType: dt.time.fromisoformat,
    TimestampType: dt.datetime.fromisoformat,
    TimestamptzType: _zoned,
    DecimalType: decimal.Decimal,
    BinaryType: bytes.fromhex,
    FixedType: bytes.fromhex,
}


def read_lines(path: Path, schema: Schema) -> list[dict[str, Any]]:
    """One object per line; columns of the table get the table's types."""
    names = {field.name: field.field_type for field in schema.fields}
    rows = []
    for number, row in _objects(path):
        if not isinstance(row, dict):
            raise InvalidInput(
                f"Line {number} of {path} is not a JSON object", advice='Write one row per line: {"id": 1, "name": "a"}'
            )
        try:
            rows.append({name: _column(names, name, value) for name, value in row.items()})
        except _Refused as refused:
            raise InvalidInput(f"Line {number} of {path}: {refused}", advice=refused.advice) from refused
    return rows


def _objects(path: Path) -> Iterator[tuple[int, Any]]:
    # Decompresses by the file's suffix, such as .gz.
    with pa.input_stream(str(path)) as stream:
        text = stream.read()
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            # Decimal keeps the digits of 0.1 for a decimal column.
            yield number, json.loads(line, parse_float=decimal.Decimal, object_pairs_hook=_without_repeats)
        except _Refused as refused:
            raise InvalidInput(f"Line {number} of {path}: {refused}", advice=refused.advice) from refused
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise InvalidInput(
                f"Line {number} of {path} is not JSON", evidence=str(error), advice="Write one object per line"
            ) from error


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise _Refused(f"the name {twice!r} appears twice in one object", "Name each column once")
    return found


def _column(names: dict[str, IcebergType], name: str, value: Any) -> Any:
    found = match_name(name, names)
    return _plain(value) if found is None else _value(names[found], value)


def _value(kind: IcebergType, value: Any) -> Any:
    """Values that do not fit are left as they are: the check against the schema has the better message."""
    match kind, value:
        case StructType(), dict():
            fields = {field.name: field.field_type for field in kind.fields}
            return {name: _column(fields, name, each) for name, each in value.items()}
        case ListType(), list():
            return [_value(kind.element_type, each) for each in value]
        case MapType(), dict():
            return {_key(kind.key_type, key): _value(kind.value_type, each) for key, each in value.items()}
        case DecimalType(), decimal.Decimal():
            return value
        case _, str() if type(kind) in _FROM_TEXT:
            return _converted(_FROM_TEXT[type(kind)], value)
    return _plain(value)


def _key(kind: IcebergType, key: str) -> Any:
    """Keys of a JSON object are strings, whatever the type of the map's keys."""
    return _converted(int, key) if isinstance(kind, IntegerType | LongType) else _value(kind, key)


def _converted(convert: Callable[[str], Any], text: str) -> Any:
    try:
        return convert(text)
    except (ValueError, decimal.InvalidOperation):
        return text


def _plain(value: Any) -> Any:
    match value:
        case decimal.Decimal():
            return float(value)
        case dict():
            return {name: _plain(each) for name, each in value.items()}
        case list():
            return [_plain(each) for each in value]
    return value
