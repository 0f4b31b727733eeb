"""Searches files of a table for the rows of a condition, deleted or not, and its metadata for the condition's texts."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import fastavro
import pyarrow.parquet as pq
from pyiceberg.schema import Schema

from frazil.catalog.base import Head
from frazil.errors import FrazilError
from frazil.expr import Filter
from frazil.format.manifests import iter_manifest, read_manifest_list
from frazil.format.metadata import TableMetadata
from frazil.format.storage import Storage, same_path
from frazil.model import Content, DataFile, Snapshot
from frazil.read.arrow import ReadContext
from frazil.read.plan import FileTask, plan
from frazil.read.positions import matching_positions

_QUOTED = re.compile(r"'((?:[^']|'')*)'")
_SHORTEST = 4
"""Shorter texts are found everywhere by chance."""
_POSITION_FIELDS = frozenset({2147483546, 2147483545})
"""Field ids of a position delete file's path and position (Iceberg specification, "Reserved Field IDs")."""


@dataclass(eq=False)
class Searcher:
    """Looks into each file once. ``metadata``: the version by whose schema files are read."""

    storage: Storage
    metadata: TableMetadata
    where: Filter
    texts: tuple[bytes, ...] = ()
    _found: dict[str, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._context = ReadContext.of(self.storage, self.metadata, Schema())

    def holds(self, file: DataFile) -> bool:
        """Whether a data file, or an equality delete file with the condition's columns, holds a matching row."""
        path = file.file_path
        if path not in self._found:
            task = FileTask(replace(file, record_count=file.record_count or 0), 0, None, residual=self.where)
            self._found[path] = bool(matching_positions(task, self._context))
        return self._found[path]

    def snapshot_holds(self, snapshot: Snapshot) -> bool:
        """Whether a file of a snapshot holds a matching row, deleted or not. Statistics leave out most files."""
        found = plan(self.metadata, snapshot, self.where, self.storage)
        if any(self.holds(each.file) for each in found.tasks):
            return True
        keys = (each.file for each in found.deletes if each.file.content is Content.EQUALITY_DELETES)
        return any(not self._has_columns(each) or self.holds(each) for each in keys)

    def _has_columns(self, keys: DataFile) -> bool:
        return self.where.field_ids <= set(keys.equality_ids)

    def describes(self, data: bytes) -> bool:
        """Whether a metadata file's content has one of the condition's texts."""
        return any(text in data for text in self.texts)

    def problem(self, path: str, known: Mapping[str, DataFile]) -> str | None:
        """Why rows of the condition may remain in a file; None: they do not."""
        try:
            if path.endswith((".avro", ".json", ".gz", ".zst", ".stats", ".puffin")):
                return "it has a text of the condition" if self.describes(_plain(self.storage.read(path))) else None
            file = known.get(same_path(path)) or self._unnamed(path)
            if file is None:
                return None
            if file.content is Content.EQUALITY_DELETES and not self._has_columns(file):
                return "its keys lack a column of the condition, so it cannot be searched"
            return "it holds matching rows" if self.holds(file) else None
        except FrazilError as error:
            return f"it cannot be searched: {error.problem}"
        except Exception as error:  # noqa: BLE001 - a file that nothing names can be anything
            return f"it cannot be searched: {type(error).__name__}"

    def _unnamed(self, path: str) -> DataFile | None:
        """A file that no snapshot names, as far as its footer tells. None: it has no rows of the table."""
        with self.storage.open_input(path) as source, pq.ParquetFile(source) as parquet:
            ids = {int(each) for each in _field_ids(parquet.schema_arrow)}
        if ids >= _POSITION_FIELDS:
            return None
        if self.where.field_ids <= ids:
            return DataFile(path, -1, 0, self.metadata.default_spec_id)
        return DataFile(path, -1, 0, self.metadata.default_spec_id, (), Content.EQUALITY_DELETES)


def _field_ids(schema: Any) -> Iterator[bytes]:
    for each in schema:
        if each.metadata and b"PARQUET:field_id" in each.metadata:
            yield each.metadata[b"PARQUET:field_id"]


def known_files(storage: Storage, heads: Iterable[Head]) -> dict[str, DataFile]:
    """Every data and delete file of these versions' snapshots."""
    found: dict[str, DataFile] = {}
    seen: set[str] = set()
    for head in heads:
        for snapshot in head.metadata.snapshots():
            for manifest in read_manifest_list(storage, snapshot.manifest_list or ""):
                if manifest.manifest_path not in seen:
                    seen.add(manifest.manifest_path)
                    for entry in iter_manifest(storage, manifest, stats=frozenset()):
                        found[same_path(entry.file.file_path)] = entry.file
    return found


def texts_of(where: str, params: Mapping[str, object] | None) -> tuple[bytes, ...]:
    """The texts that a condition compares with, as they would be in a file of metadata."""
    found = [each.replace("''", "'") for each in _QUOTED.findall(where)]
    found += [each for each in (params or {}).values() if isinstance(each, str)]
    return tuple(dict.fromkeys(each.encode() for each in found if len(each) >= _SHORTEST))


def _plain(data: bytes) -> bytes:
    """The content of an Avro file without its compression, or the data as they are."""
    if data[:4] == b"Obj\x01":
        return repr(list(fastavro.reader(io.BytesIO(data)))).encode() + data[: 1 << 16]
    if data[:2] == b"\x1f\x8b":
        import gzip

        return gzip.decompress(data)
    return data
