"""Builds a ``Write``: stages new rows, deletes and copies; a failure removes every file that was staged."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import TracebackType
from typing import Any, Self, cast

import pyarrow as pa
import pyarrow.compute
from pyiceberg.schema import Schema
from pyroaring import BitMap64

from frazil.commit.operations import Kind, Read, RowCounts, Write
from frazil.dml.view import MERGE_ON_READ, Mode, Settings, View
from frazil.expr import Filter, parse_filter
from frazil.model import Content, DataFile, Entry, Predicate, Run
from frazil.read.arrow import ReadContext, count_task
from frazil.read.deletes import Keys
from frazil.read.plan import FileTask, has_deletes, named_file, plan
from frazil.read.positions import bitmap, rows_with_matches, rows_with_positions
from frazil.stage.arrow import StagedFiles, check_writable, stage, stage_copies, stage_reordered
from frazil.stage.deletes import stage_keys, stage_positions

pc: Any = pyarrow.compute
Pieces = Iterator[tuple[str, pa.RecordBatch, pa.Int64Array]]
Rows = Mapping[str, BitMap64]
"""Data file → rows of it."""


@dataclass(slots=True)
class _Parts:
    added: list[DataFile] = field(default_factory=list)
    copies: dict[str, tuple[Run, ...]] = field(default_factory=dict)
    removed: list[DataFile] = field(default_factory=list)
    removed_deletes: dict[str, DataFile] = field(default_factory=dict)
    unneeded: dict[str, int] = field(default_factory=dict)
    deletes: list[DataFile] = field(default_factory=list)
    positions: dict[str, BitMap64] = field(default_factory=dict)
    touched: dict[str, DataFile] = field(default_factory=dict)
    moved: dict[str, BitMap64] = field(default_factory=dict)
    staged_positions: list[Rows] = field(default_factory=list)
    staged_moved: list[Rows] = field(default_factory=list)


class WriteBuilder:
    """``with WriteBuilder(view, settings) as builder: …; return builder.build(…)``.

    An error in the block removes the files staged so far.
    """

    def __init__(self, view: View, settings: Settings) -> None:
        self.view = view
        self._settings = settings
        self._kept = None if view.kept is None else view.kept.write
        self._parts = _Parts() if self._kept is None else _parts_of(self._kept)
        self._staged_before = frozenset() if self._kept is None else frozenset(self._kept.staged_paths)
        self._since_ms = view.runtime.now_ms()

    def __enter__(self) -> Self:
        check_writable(self.view.metadata)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            staged = (file.file_path for file in (*self._parts.added, *self._parts.deletes))
            self.view.storage.delete([path for path in staged if path not in self._staged_before])

    # Added rows

    @property
    def own_rows(self) -> list[DataFile]:
        """The files staged so far that are not copies; with those of an earlier evaluation of the statement."""
        return [file for file in self._parts.added if file.file_path not in self._parts.copies]

    def add_rows(self, rows: object) -> StagedFiles:
        """New rows, or rows with new values, under the table's current schema, spec and sort order."""
        view = self.view
        staged = stage(
            rows, metadata=view.metadata, storage=view.storage, runtime=view.runtime, options=self._settings.options
        )
        self._parts.added += staged.files
        return staged

    def discard_rows(self, files: Sequence[DataFile]) -> None:
        """Leave out rows that an earlier evaluation of the statement staged."""
        left_out = {file.file_path for file in files}
        self._parts.added = [file for file in self._parts.added if file.file_path not in left_out]

    # Deleted rows

    def delete_rows(self, task: FileTask, rows: BitMap64, mode: Mode, keys: Keys | None = None) -> None:
        """Delete these live rows of a file: those that match the task's filter and have one of the keys."""
        if not rows:
            return
        if len(rows) == self.live_rows(task):
            self.remove(task)
        elif mode == MERGE_ON_READ:
            self.mark(task.file, rows)
        else:
            self.remove(task)
            self.copy(_remaining_rows(task, self.read_context, keys), task.file)

    def take_out(self, task: FileTask, rows: BitMap64, mode: Mode) -> None:
        """Delete these live rows of a file, whatever its filter."""
        if not rows:
            return
        if len(rows) == self.live_rows(task):
            self.remove(task)
        elif mode == MERGE_ON_READ:
            self.mark(task.file, rows)
        else:
            self.remove(task)
            self.copy(_other_rows(task, self.read_context, rows), task.file)

    def live_rows(self, task: FileTask) -> int:
        """The number of rows that no delete removes. The file is opened only where equality deletes apply."""
        return count_task(replace(task, residual=None), self.key_context)

    def remove(self, task: FileTask) -> None:
        """Remove the whole file, and the delete files that apply to it alone."""
        self._parts.removed.append(task.file)
        for ref in task.deletes:
            deletes = ref.file
            if deletes.content == Content.POSITION_DELETES and named_file(deletes) == task.file.file_path:
                self._parts.removed_deletes[deletes.file_path] = deletes

    def mark(self, file: DataFile, rows: BitMap64) -> None:
        """Keep the file, with position deletes for these rows."""
        self._parts.positions[file.file_path] = rows
        self._parts.touched[file.file_path] = file

    def move(self, path: str, rows: BitMap64) -> None:
        """Record that these rows of a file have new versions among the added rows."""
        self._parts.moved[path] = rows

    def copy(self, pieces: Pieces, like: DataFile, *, is_sorted: bool = True) -> None:
        """Write rows of removed files again, under the spec and partition of one of them."""
        view = self.view
        copied = stage_copies(
            pieces,
            metadata=view.metadata,
            storage=view.storage,
            spec_id=like.spec_id,
            partition=like.partition,
            sort_order_id=like.sort_order_id if is_sorted else 0,
            runtime=view.runtime,
            options=self._settings.options,
        )
        self._parts.added += copied.files
        self._parts.copies.update(copied.runs)

    def copy_reordered(
        self, rows: pa.Table, runs: Sequence[Run], *, spec_id: int, partition: tuple[Any, ...], sort_order_id: int
    ) -> None:
        """Write rows of removed files again, in another order. ``runs``: where they came from, if that is recorded."""
        view = self.view
        copied = stage_reordered(
            rows,
            runs,
            metadata=view.metadata,
            storage=view.storage,
            spec_id=spec_id,
            partition=partition,
            sort_order_id=sort_order_id,
            runtime=view.runtime,
            options=self._settings.options,
        )
        self.adopt_copies(copied.files, copied.runs)

    def drop_unneeded_deletes(self) -> None:
        """Remove delete files that apply to no remaining file. Call it after the last ``remove``.

        They slow down every reader, and readers without equality deletes refuse the table because of them (P36).
        """
        view, parts = self.view, self._parts
        if not has_deletes(view.snapshot, view.storage):
            return
        whole = plan(view.metadata, view.snapshot, parse_filter(None, view.schema), view.storage)
        gone = {file.file_path for file in parts.removed}
        needed = {ref.file.file_path for task in whole.tasks if task.file.file_path not in gone for ref in task.deletes}
        for entry in whole.deletes:
            path = entry.file.file_path
            if path not in needed and path not in parts.removed_deletes:
                parts.removed_deletes[path] = entry.file
                parts.unneeded[path] = entry.sequence_number or 0

    def drop_deletes(self, entries: Sequence[Entry]) -> None:
        """Remove delete files whose work is done otherwise. One that reaches an older file, which another writer adds
        meanwhile, is kept.
        """
        for entry in entries:
            path = entry.file.file_path
            self._parts.removed_deletes[path] = entry.file
            self._parts.unneeded[path] = entry.sequence_number or 0

    def add_keys(self, keys: Sequence[pa.RecordBatch], field_ids: Sequence[int], spec_id: int) -> None:
        """Delete every older row with one of these keys."""
        view = self.view
        self._parts.deletes += stage_keys(
            keys, field_ids, spec_id, metadata=view.metadata, storage=view.storage, runtime=view.runtime
        )

    # What the caller has staged already

    def adopt_rows(self, files: Sequence[DataFile]) -> None:
        """Data files with added rows."""
        self._parts.added += files

    def adopt_copies(self, files: Sequence[DataFile], runs: Mapping[str, tuple[Run, ...]]) -> None:
        """Data files with rows of removed files, and where each of them came from."""
        self._parts.added += files
        self._parts.copies.update(runs)

    def adopt_marks(self, deletes: Sequence[DataFile], touched: Mapping[str, DataFile], rows: Rows) -> None:
        """Position delete files, one for each of these data files. ``rows`` may be read lazily."""
        self._parts.deletes += deletes
        self._parts.touched.update(touched)
        self._parts.staged_positions.append(rows)

    def adopt_keys(self, deletes: Sequence[DataFile]) -> None:
        """Equality delete files."""
        self._parts.deletes += deletes

    def adopt_moves(self, rows: Rows) -> None:
        """Record that these rows, all of them deleted here, have new versions among the added rows."""
        self._parts.staged_moved.append(rows)

    # Reading

    @cached_property
    def read_context(self) -> ReadContext:
        """For all columns of the current schema. Delete files are read once for the whole write."""
        return self.view.read_context()

    @cached_property
    def key_context(self) -> ReadContext:
        """For no columns but those that deletes and filters compare."""
        return self.narrowed(Schema())

    def narrowed(self, schema: Schema) -> ReadContext:
        """For other columns."""
        return replace(self.read_context, schema=schema)

    # The result

    def build(
        self,
        kind: Kind,
        rows: RowCounts,
        *,
        reads: tuple[Read, ...] = (),
        asked: Filter | None = None,
        keys: tuple[int, ...] = (),
        key_spec_id: int | None = None,
    ) -> Write:
        """The write. ``asked``: the delete's condition, checked against rows appended concurrently (P23)."""
        view, parts = self.view, self._parts
        parts.deletes += stage_positions(
            parts.positions, parts.touched, metadata=view.metadata, storage=view.storage, runtime=view.runtime
        )
        schema = view.schema
        added = [file for file in parts.added if file.file_path not in self._staged_before]
        write = Write(
            kind=kind,
            table_uuid=view.metadata.uuid,
            base=view.base,
            branch=view.branch,
            isolation=self._settings.isolation,
            added=tuple(parts.added),
            copies=parts.copies,
            removed=tuple(parts.removed),
            removed_deletes=tuple(parts.removed_deletes.values()),
            unneeded=parts.unneeded,
            deletes=tuple(parts.deletes),
            positions=_joined(parts.positions, parts.staged_positions),
            touched=parts.touched,
            moved=_joined(parts.moved, parts.staged_moved),
            reads=reads,
            keys=keys,
            key_spec_id=key_spec_id,
            predicate=None if asked is None else _predicate(asked),
            on_deleted=self._settings.on_deleted,
            schema_id=view.metadata.current_schema_id,
            written_ids=columns_with_values(added, schema),
            nullable_ids=columns_with_nulls(added, schema),
            staged_since_ms=self._since_ms,
            rows=rows,
            snapshot_properties=self._settings.snapshot_properties,
        )
        return write if self._kept is None else _with_kept(write, self._kept)


def _parts_of(kept: Write) -> _Parts:
    return _Parts(
        added=list(kept.added),
        copies=dict(kept.copies),
        removed=list(kept.removed),
        removed_deletes={file.file_path: file for file in kept.removed_deletes},
        deletes=list(kept.deletes),
        touched=dict(kept.touched),
        staged_positions=[kept.positions],
        staged_moved=[kept.moved],
    )


def _with_kept(write: Write, kept: Write) -> Write:
    """The totals of what was evaluated now and of what was kept."""
    rows = RowCounts(
        kept.rows.inserted + write.rows.inserted,
        kept.rows.updated + write.rows.updated,
        kept.rows.deleted + write.rows.deleted,
    )
    since = [each.staged_since_ms for each in (write, kept) if each.staged_since_ms is not None]
    return replace(
        write,
        written_ids={**write.written_ids, **kept.written_ids},
        nullable_ids=write.nullable_ids | kept.nullable_ids,
        staged_since_ms=min(since, default=None),
        rows=rows,
    )


def _joined(own: Rows, others: list[Rows]) -> Rows:
    # ChainMap looks files up lazily; nothing writes to it.
    return ChainMap(*(cast("dict[str, BitMap64]", each) for each in (own, *others))) if others else own


def _remaining_rows(task: FileTask, context: ReadContext, keys: Keys | None) -> Pieces:
    """The live rows of a file that the delete does not match."""
    for batch, numbers, matching in rows_with_matches(task, context, keys):
        stay = pc.invert(matching)
        yield task.file.file_path, batch.filter(stay), numbers.filter(stay)


def _other_rows(task: FileTask, context: ReadContext, rows: BitMap64) -> Pieces:
    """The live rows of a file without these."""
    for batch, numbers in rows_with_positions(replace(task, residual=None), context):
        gone = pa.array(list(rows & bitmap(numbers)), pa.int64())
        stay = pc.invert(pc.is_in(numbers, value_set=gone))
        yield task.file.file_path, batch.filter(stay), numbers.filter(stay)


def _predicate(where: Filter) -> Predicate | None:
    text = where.literal_text
    if text is None:
        return None
    return Predicate(text, (where.parsed_with or where.schema).schema_id, where.case_sensitive)


def columns_with_values(files: Sequence[DataFile], schema: Schema) -> Mapping[int, str]:
    """The columns in which a file has or may have a value. Dropping any other column concurrently loses nothing."""
    if not files:
        return {}
    empty = {
        each.field_id
        for each in schema.fields
        if each.field_type.is_primitive
        and all(file.null_value_counts.get(each.field_id) == file.record_count for file in files)
    }
    return {field_id: str(schema.find_column_name(field_id)) for field_id in schema.field_ids if field_id not in empty}


def columns_with_nulls(files: Sequence[DataFile], schema: Schema) -> frozenset[int]:
    """The optional columns in which some file has, or may have, a null."""
    optional = [field_id for field_id in schema.field_ids if schema.find_field(field_id).optional]
    return frozenset(
        field_id for field_id in optional if any(file.null_value_counts.get(field_id) != 0 for file in files)
    )
