"""The changes of a write by key, read from its staged files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from pyiceberg.schema import Schema
from pyroaring import BitMap64

from frazil.catalog.base import Head
from frazil.commit.operations import Kind, Write
from frazil.errors import FrazilError
from frazil.expr import parse_filter
from frazil.format.storage import Storage
from frazil.model import DataFile
from frazil.read.arrow import ReadContext, read_task
from frazil.read.plan import FileTask, plan
from frazil.read.positions import rows_with_positions
from frazil.verify.recording.columns import Named

Change = list[Any]
"""[kind, key, value], as the log has it."""
_OTHER: tuple[list[Change], list[Any]] = ([["other", None, None]], [])


def changes_of(
    write: Write, load: Callable[[], Head], storage: Storage, named: Named | None
) -> tuple[list[Change], list[Any]]:
    """The changes by key, and the keys of existing rows that the write depends on.

    Where the columns are not named, or the files do not have them, the change is ``other``: unknown rows.
    """
    if write.is_empty or write.kind is Kind.REWRITE:
        return [], []
    if named is None or write.on_deleted == "drop":
        return _OTHER
    head = load()
    ids = named.ids(head.metadata.schema())
    if ids is None:
        return _OTHER
    by_key = write.has_equality_deletes
    if by_key and (write.kind is not Kind.UPSERT or set(write.keys) != set(ids[:-1])):
        return _OTHER
    reader = _Reader(write, head, storage, named, ids)
    try:
        gone = [] if write.kind in (Kind.UPSERT, Kind.APPEND) else list(reader.gone())
        added = list(reader.added())
    except FrazilError:
        # The base has expired, or one of its files lacks these columns.
        return _OTHER
    whole_keys = bool(write.reads) and all(read.where.field_ids <= set(ids[:-1]) for read in write.reads)
    if write.kind is Kind.UPSERT or (whole_keys and write.kind in (Kind.OVERWRITE, Kind.REPLACE_PARTITIONS)):
        return _put(added, [key for key, _ in gone]), []
    changes: list[Change] = [["take", key, value] for key, value in gone]
    changes += [["add", key, value] for key, value in added]
    # An update by key depends on the key's values. A row that is found by other columns, or only deleted, does not.
    depends = whole_keys and write.kind in (Kind.UPDATE, Kind.MERGE)
    return changes, [key for key, _ in gone] if depends else []


def _put(added: list[tuple[Any, Any]], gone: list[Any]) -> list[Change]:
    """Rows that replace the values of their keys, and keys that are emptied."""
    kept: set[str] = set()
    changes: list[Change] = []
    for key, value in added:
        # The first row of a key replaces the old ones; further ones are added.
        changes.append(["add" if repr(key) in kept else "put", key, value])
        kept.add(repr(key))
    emptied = {repr(key): ["remove", key, None] for key in gone if repr(key) not in kept}
    return [*emptied.values(), *changes]


class _Reader:
    """Reads the named columns of the files that a write adds and of the rows that it deletes."""

    def __init__(self, write: Write, head: Head, storage: Storage, named: Named, ids: Sequence[int]) -> None:
        self._write = write
        self._metadata = head.metadata
        self._storage = storage
        self._named = named
        schema = head.metadata.schema()
        self._both = Schema(*(schema.find_field(each) for each in ids))

    def added(self) -> Iterator[tuple[Any, Any]]:
        """(key, value) of the rows that are new or have new values."""
        reading = self._reading(self._both)
        for file in self._write.added:
            if file.file_path not in self._write.copies:
                for batch in read_task(FileTask(file, 0, None), reading):
                    yield from self._named.pairs(batch)

    def gone(self) -> Iterator[tuple[Any, Any]]:
        """(key, value) of the live rows that are deleted."""
        write = self._write
        copied: dict[str, BitMap64] = {}
        for runs in write.copies.values():
            for run in runs:
                copied.setdefault(run.source, BitMap64()).add_range(run.first, run.first + run.length)
        files = {file.file_path: file for file in (*write.removed, *write.touched.values())}
        if not files:
            return
        reading = self._reading(self._both)
        for path, task in self._tasks(files).items():
            for batch, numbers in rows_with_positions(task, reading):
                for pair, number in zip(self._named.pairs(batch), numbers.to_pylist(), strict=True):
                    assert number is not None
                    out = write.positions.get(path)
                    if number in out if out is not None else number not in copied.get(path, ()):
                        yield pair

    def _tasks(self, files: dict[str, DataFile]) -> dict[str, FileTask]:
        """The files with the deletes that apply to them in the write's base."""
        base = self._write.base.snapshot
        found: dict[str, FileTask] = {}
        if base is not None:
            everything = parse_filter(None, self._metadata.schema())
            planned = plan(self._metadata, base, everything, self._storage).tasks
            found = {each.file.file_path: each for each in planned if each.file.file_path in files}
        # A transaction may delete rows that it inserted itself.
        own = {path: FileTask(file, 0, None) for path, file in files.items() if path not in found}
        return {path: replace(task, residual=None) for path, task in {**found, **own}.items()}

    def _reading(self, schema: Schema) -> ReadContext:
        return ReadContext.of(self._storage, self._metadata, schema)
