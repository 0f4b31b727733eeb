"""Lineage files: where the rows of rewritten files are now, stored beside the manifests (rule P26).

Compressed JSON. Sets of row positions are stored as runs: (first, length) pairs in one flat list.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any, Literal

import orjson
import pyarrow as pa
from pyroaring import BitMap64

from frazil.errors import CorruptMetadata, StorageError
from frazil.format.metadata import TableMetadata
from frazil.format.storage import Storage
from frazil.model import Lineage, Run
from frazil.runtime import Runtime

_VERSION = 1
_CODEC: Literal["zstd"] = "zstd"
_LARGEST = 2**63


def write_lineage(
    storage: Storage, runtime: Runtime, metadata: TableMetadata, lineage: Lineage, *, sync: bool = True
) -> str:
    """Write it, durably, to a fresh file in the table's metadata folder; returns the path.

    ``sync``: as for ``Storage.write``.
    """
    path = f"{metadata.metadata_folder}/{runtime.new_uuid()}-lineage.json.zst"
    storage.write(path, _compressed(_to_json(lineage)), sync=sync)
    return path


def read_lineage(storage: Storage, path: str) -> Lineage:
    """Raises CorruptMetadata if the file is missing or damaged."""
    try:
        data = storage.read(path)
    except StorageError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        raise CorruptMetadata(f"The lineage file {path} cannot be read", evidence=error.problem) from error
    try:
        return _from_json(orjson.loads(_decompressed(data)))
    except (OSError, pa.ArrowException, ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise CorruptMetadata(f"The lineage file {path} is damaged", evidence=repr(error)) from error


def _to_json(lineage: Lineage) -> bytes:
    # Sources are numbered: a file that lost many single rows has thousands of runs with one path.
    sources: dict[str, int] = {}
    outputs: dict[str, list[int]] = {}
    for path, runs in lineage.outputs.items():
        flat: list[int] = []
        for run in runs:
            flat += (sources.setdefault(run.source, len(sources)), run.first, run.length)
        outputs[path] = flat
    changed = {path: [number for run in _runs(rows) for number in run] for path, rows in lineage.changed.items()}
    return orjson.dumps({"version": _VERSION, "sources": list(sources), "outputs": outputs, "changed": changed})


def _from_json(raw: Any) -> Lineage:
    if raw["version"] != _VERSION:
        raise ValueError(f"it has the version {raw['version']!r}, and {_VERSION} is known")
    # An empty source: no reader needs the old position of these rows any more.
    sources: list[str] = [_text(each) if each != "" else "" for each in raw["sources"]]
    outputs = {
        _text(path): tuple(
            Run(sources[_whole(source)], _whole(first), _whole(length, least=1))
            for source, first, length in _groups(flat, 3)
        )
        for path, flat in _mapping(raw["outputs"])
    }
    return Lineage(outputs, {_text(path): _bitmap(flat) for path, flat in _mapping(raw["changed"])})


def _bitmap(flat: list[Any]) -> BitMap64:
    rows = BitMap64()
    for first, length in _groups(flat, 2):
        rows.add_range(_whole(first), _whole(first) + _whole(length, least=1))
    return rows


def _runs(rows: BitMap64) -> Iterator[tuple[int, int]]:
    """(first, length) of each run of neighbours."""
    if not rows:
        return
    first = last = rows.min()
    for before, number in pairwise(rows):
        if number != before + 1:
            yield first, before + 1 - first
            first = number
        last = number
    yield first, last + 1 - first


def _groups(flat: list[Any], size: int) -> Iterable[tuple[Any, ...]]:
    if not isinstance(flat, list) or len(flat) % size:
        raise ValueError("a list of runs is cut short")
    return zip(*(iter(flat),) * size, strict=True)


def _mapping(value: Any) -> Iterable[tuple[Any, Any]]:
    if not isinstance(value, Mapping):
        raise ValueError("an object is missing")
    return value.items()


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("a path is missing")
    return value


def _whole(value: Any, least: int = 0) -> int:
    if type(value) is not int or not least <= value < _LARGEST:
        raise ValueError(f"{value!r} is not a row number")
    return value


def _compressed(data: bytes) -> bytes:
    out = pa.BufferOutputStream()
    with pa.CompressedOutputStream(out, _CODEC) as stream:
        stream.write(data)
    return out.getvalue().to_pybytes()


def _decompressed(data: bytes) -> bytes:
    with pa.CompressedInputStream(pa.BufferReader(data), _CODEC) as stream:
        return bytes(stream.read())
