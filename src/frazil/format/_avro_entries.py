"""A fast decoder of Avro manifests: the same entries as fastavro's, without a dict for every statistic.

A manifest of 100,000 files holds millions of small numbers. PyIceberg's compiled decoder reads runs of them in one call
each; this module drives it by the file's own schema. It is a private part of PyIceberg (no other compiled Avro decoder
that can do this is a dependency), so unusual files, and installations without it, fall back to fastavro.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import orjson

try:
    from pyiceberg.avro.decoder_fast import CythonBinaryDecoder
except ImportError:  # a wheel without compiled parts
    CythonBinaryDecoder = None  # type: ignore[assignment,misc]

Decoder = Any
Read = Callable[[Decoder], Any]
_MAGIC = b"Obj\x01"
_COUNTS = ("column_sizes", "value_counts", "null_value_counts", "nan_value_counts")
_BOUNDS = ("lower_bounds", "upper_bounds")
_MOST_ITEMS = 1 << 24
_FLOAT, _DOUBLE = struct.Struct("<f"), struct.Struct("<d")


class ById(dict[int, Any]):
    """A statistic by field id; the type distinguishes it from a record of fastavro's."""

    __slots__ = ()


class Unusual(Exception):
    """This file must be read by fastavro."""


def read_records(data: bytes, wanted: frozenset[int] | None) -> Iterator[dict[str, Any]]:
    """The manifest's records, statistics as dicts by field id; ``wanted`` names the columns to keep, None: all.

    Dates and times stay the integers they are in the file. Raises Unusual before it gives anything.
    """
    if CythonBinaryDecoder is None or data[:4] != _MAGIC:
        raise Unusual
    header = CythonBinaryDecoder(data[4:])
    meta = _read_meta(header)
    codec = meta.get("avro.codec", b"null")
    if codec not in (b"null", b"deflate"):
        raise Unusual
    schema = orjson.loads(meta["avro.schema"])
    read = _Compiler(wanted).record(schema, ())
    start = 4 + header.tell()
    return _records(data, start, codec == b"deflate", read)


def _read_meta(decoder: Decoder) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    while count := _read_count(decoder):
        for _ in range(count):
            key = decoder.read_utf8()
            found[key] = decoder.read_bytes()
    return found


def _records(data: bytes, offset: int, deflated: bool, read: Read) -> Iterator[dict[str, Any]]:
    view = memoryview(data)
    marker = data[offset : offset + 16]
    offset += 16
    while offset < len(data):
        count, offset = _read_long(data, offset)
        size, offset = _read_long(data, offset)
        block = view[offset : offset + size]
        if data[offset + size : offset + size + 16] != marker:
            raise ValueError("a block does not end where it should")
        content = zlib.decompress(block, -15) if deflated else bytes(block)
        decoder = CythonBinaryDecoder(content)
        for _ in range(count):
            yield read(decoder)
        if decoder.tell() != len(content):
            raise ValueError("a block does not hold what its schema says")
        offset += size + 16


def _read_long(data: bytes, offset: int) -> tuple[int, int]:
    result = shift = 0
    while True:
        byte = data[offset]
        offset += 1
        result |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return (result >> 1) ^ -(result & 1), offset
        shift += 7


def _read_count(decoder: Decoder) -> int:
    """How many items the next run of an array or map has; 0 ends it."""
    count: int = decoder.read_int()
    if count < 0:
        decoder.skip_int()  # the run's size in bytes, which only skippers need
        count = -count
    if count > _MOST_ITEMS:
        # The compiled decoder trusts its caller with lengths.
        raise ValueError(f"a run of {count} items is not believable")
    return count


class _Compiler:
    """Turns an Avro schema into functions that read it."""

    def __init__(self, wanted: frozenset[int] | None) -> None:
        self._wanted = wanted
        self._named: dict[str, Any] = {}

    def record(self, schema: dict[str, Any], path: tuple[str, ...]) -> Read:
        self._named[schema["name"]] = schema
        fields = [(field["name"], self._field(field, (*path, field["name"]))) for field in schema["fields"]]

        def read(decoder: Decoder) -> dict[str, Any]:
            return {name: each(decoder) for name, each in fields}

        return read

    def _field(self, field: dict[str, Any], path: tuple[str, ...]) -> Read:
        name, kind = field["name"], field["type"]
        if path[:1] == ("data_file",) and len(path) == 2 and (name in _COUNTS or name in _BOUNDS):
            return self._statistics(name, kind)
        return self.value(kind, path)

    def value(self, kind: Any, path: tuple[str, ...]) -> Read:
        if isinstance(kind, list):
            return self._union(kind, path)
        if isinstance(kind, str):
            if kind in _PLAIN:
                return _PLAIN[kind]
            kind = self._named.get(kind)
            if kind is None:
                raise Unusual
        if kind["type"] == "record":
            return self.record(kind, path)
        if kind["type"] == "array":
            return _array(self.value(kind["items"], path))
        if kind["type"] == "fixed":
            self._named[kind["name"]] = kind
            return _fixed(kind)
        if kind.get("logicalType") not in (None, *_AS_STORED) or kind["type"] not in _PLAIN:
            raise Unusual
        return _PLAIN[kind["type"]]

    def _union(self, kinds: list[Any], path: tuple[str, ...]) -> Read:
        if len(kinds) != 2 or "null" not in kinds:
            raise Unusual
        null = kinds.index("null")
        inner = self.value(kinds[1 - null], path)
        return lambda decoder: None if decoder.read_int() == null else inner(decoder)

    def _statistics(self, name: str, kind: Any) -> Read:
        if not isinstance(kind, list):
            raise Unusual
        pairs = next((each for each in kind if each != "null"), None)
        if len(kind) != 2 or not _is_pair_array(pairs, "bytes" if name in _BOUNDS else "long"):
            raise Unusual
        null = kind.index("null")
        wanted = self._wanted if name != "column_sizes" or self._wanted is None else frozenset[int]()
        return _bounds(null, wanted) if name in _BOUNDS else _counts(null, wanted)


def _is_pair_array(kind: Any, value: str) -> bool:
    if not isinstance(kind, dict) or kind.get("type") != "array" or not isinstance(kind.get("items"), dict):
        return False
    fields = kind["items"].get("fields", [])
    return [(field["name"], field["type"]) for field in fields] == [("key", "int"), ("value", value)]


def _counts(null: int, wanted: frozenset[int] | None) -> Read:
    def read(decoder: Decoder) -> dict[int, int]:
        found = ById()
        if decoder.read_int() == null:
            return found
        while count := _read_count(decoder):
            numbers = decoder.read_ints(2 * count)
            keys = numbers[::2]
            if wanted is None:
                found.update(zip(keys, numbers[1::2], strict=True))
                continue
            for key in wanted:
                if key in keys:
                    found[key] = numbers[2 * keys.index(key) + 1]
        return found

    return read


def _bounds(null: int, wanted: frozenset[int] | None) -> Read:
    def read(decoder: Decoder) -> dict[int, bytes]:
        found = ById()
        if decoder.read_int() == null:
            return found
        while count := _read_count(decoder):
            decoder.read_int_bytes_dict(count, found)
        return found if wanted is None else ById((key, found[key]) for key in wanted if key in found)

    return read


def _array(item: Read) -> Read:
    def read(decoder: Decoder) -> list[Any]:
        found: list[Any] = []
        while count := _read_count(decoder):
            found.extend(item(decoder) for _ in range(count))
        return found

    return read


def _fixed(kind: dict[str, Any]) -> Read:
    size, logical = kind["size"], kind.get("logicalType")
    if logical == "decimal":
        scale = kind.get("scale", 0)
        return lambda decoder: Decimal(int.from_bytes(decoder.read(size), "big", signed=True)).scaleb(-scale)
    if logical not in (None, "uuid"):
        raise Unusual
    return lambda decoder: decoder.read(size)


_AS_STORED = ("date", "time-micros", "timestamp-micros")
_PLAIN: dict[str, Read] = {
    "null": lambda _: None,
    "boolean": lambda decoder: decoder.read_boolean(),
    "int": lambda decoder: decoder.read_int(),
    "long": lambda decoder: decoder.read_int(),
    "float": lambda decoder: _FLOAT.unpack(decoder.read(4))[0],
    "double": lambda decoder: _DOUBLE.unpack(decoder.read(8))[0],
    "bytes": lambda decoder: decoder.read_bytes(),
    "string": lambda decoder: decoder.read_utf8(),
}
