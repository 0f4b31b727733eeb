"""Reads snapshots by Iceberg's specification, sharing only the manifest reader with the code under test.

Also lists the files of a snapshot, so that each can be checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from frazil.format.manifests import DATA_MANIFEST, read_manifest, read_manifest_list
from frazil.format.storage import Storage
from frazil.model import PATH_FIELD, POSITION_FIELD, Content, DataFile, Entry, Manifest
from frazil_verification.simulator.files import Files
from frazil_verification.simulator.steps import Row

_Key = tuple[object, tuple[Any, ...]]
"""The scope of an equality delete (None: every partition), and the key that it deletes."""


class Unreadable(Exception):
    """A snapshot cannot be read."""


@dataclass(slots=True)
class _Deletes:
    """The content of delete files: position or key → the newest sequence number that deletes it."""

    positions: dict[str, dict[int, int]] = field(default_factory=dict)
    keys: dict[tuple[str, ...], dict[_Key, int]] = field(default_factory=dict)


class SnapshotReader:
    """Files never change, so their content is cached."""

    def __init__(self, files: Files, storage: Storage, columns: Mapping[int, str]) -> None:
        self._files = files
        self._storage = storage
        self._columns = {**columns, PATH_FIELD: "file_path", POSITION_FIELD: "pos"}
        self._rows: dict[str, list[Row]] = {}
        self._entries: dict[tuple[str, int], list[Entry]] = {}

    def rows(self, manifest_list: str) -> list[Row]:
        """All rows of a snapshot. Raises Unreadable."""
        data, deletes = self._plan(manifest_list)
        found = self._read_deletes(deletes)
        return [row for entry in data for row in self._live(entry, found)]

    def paths(self, manifest_list: str) -> Iterator[str]:
        """Every file that is needed to read a snapshot."""
        yield manifest_list
        for manifest in self._manifests(manifest_list):
            yield manifest.manifest_path
            yield from (entry.file.file_path for entry in self._read(manifest))

    def _plan(self, manifest_list: str) -> tuple[list[Entry], list[Entry]]:
        data: list[Entry] = []
        deletes: list[Entry] = []
        seen: set[str] = set()
        for manifest in self._manifests(manifest_list):
            for entry in self._read(manifest):
                if entry.file.file_path in seen:
                    raise Unreadable(f"it lists the file {entry.file.file_path} twice")
                seen.add(entry.file.file_path)
                (data if manifest.content == DATA_MANIFEST else deletes).append(entry)
        return data, deletes

    def _manifests(self, manifest_list: str) -> tuple[Manifest, ...]:
        self._check(manifest_list)
        return read_manifest_list(self._storage, manifest_list)

    def _read(self, manifest: Manifest) -> list[Entry]:
        key = manifest.manifest_path, manifest.sequence_number
        if key not in self._entries:
            self._check(manifest.manifest_path)
            self._entries[key] = list(read_manifest(self._storage, manifest, stats=frozenset()))
        return self._entries[key]

    def _check(self, path: str) -> None:
        file = self._files.there.get(path)
        if file is None:
            gone = self._files.removed.get(path)
            by = "it was never written" if gone is None else f"{gone.by} removed it at event {gone.event}"
            raise Unreadable(f"the file {path} is missing: {by}")
        if not file.is_whole:
            raise Unreadable(f"the file {path} is truncated; {file.owner} wrote it")

    def _file(self, file: DataFile) -> list[Row]:
        path = file.file_path
        if path not in self._rows:
            self._check(path)
            table = pq.ParquetFile(pa.BufferReader(self._files.there[path].data)).read(use_threads=False)
            names = [self._columns[int((each.metadata or {})[b"PARQUET:field_id"])] for each in table.schema]
            values = [column.to_pylist() for column in table.columns]
            self._rows[path] = [
                {name: value for name, value in zip(names, row, strict=True) if value is not None}
                for row in zip(*values, strict=True)
            ]
            if len(self._rows[path]) != file.record_count:
                raise Unreadable(f"the file {path} has {len(self._rows[path])} rows, not {file.record_count}")
        return self._rows[path]

    def _read_deletes(self, entries: list[Entry]) -> _Deletes:
        found = _Deletes()
        for entry in entries:
            file, number = entry.file, entry.sequence_number or 0
            rows = self._file(file)
            if file.content is Content.POSITION_DELETES:
                for row in rows:
                    marked = found.positions.setdefault(row["file_path"], {})
                    marked[row["pos"]] = max(number, marked.get(row["pos"], 0))
                continue
            names = tuple(self._columns[each] for each in file.equality_ids)
            scope = (file.spec_id, file.partition) if file.partition else None
            keys = found.keys.setdefault(names, {})
            for row in rows:
                key = scope, tuple(row.get(name) for name in names)
                keys[key] = max(number, keys.get(key, 0))
        return found

    def _live(self, entry: Entry, deletes: _Deletes) -> Iterator[Row]:
        number, file = entry.sequence_number or 0, entry.file
        marked = deletes.positions.get(file.file_path, {})
        scope = (file.spec_id, file.partition)
        for position, row in enumerate(self._file(file)):
            if marked.get(position, -1) >= number:
                continue
            if deletes.keys and any(
                max(keys.get((None, key), -1), keys.get((scope, key), -1)) > number
                for names, keys in deletes.keys.items()
                for key in (tuple(row.get(name) for name in names),)
            ):
                continue
            yield row
