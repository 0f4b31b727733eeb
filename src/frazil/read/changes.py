"""Which rows were inserted and deleted between two snapshots.

    snapshots ─▶ the files in which each differs from its parent ─▶ rows of these files ─▶ Arrow batches

Copy-on-write rewrites rows that it does not change, and these are not reported. Frazil's snapshots keep a record of
which rows were copied (rule P26). For snapshots of other engines a deleted and an inserted row with the same values
cancel each other, as in Iceberg's changelog views.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute
from pyiceberg.schema import Schema
from pyroaring import BitMap64

from frazil.errors import InvalidInput, Unsupported
from frazil.format.arrow_schema import to_arrow_schema
from frazil.format.manifests import DATA_MANIFEST, read_manifest_list
from frazil.format.metadata import TableMetadata
from frazil.format.storage import Storage
from frazil.model import Entry, Lineage, Manifest, Snapshot
from frazil.read.arrow import FileReader, ReadContext, count_task, read_task
from frazil.read.deletes import Positions
from frazil.read.layout import Array
from frazil.read.parquet import opened
from frazil.read.plan import DeleteIndex, FileTask, live_files
from frazil.read.positions import matching_positions, rows_with_positions
from frazil.read.prefetch import in_order
from frazil.read.scan import require, resolve_snapshot

pc: Any = pyarrow.compute
arrow: Any = pa

INSERT, DELETE = "INSERT", "DELETE"
"""Iceberg's change types."""
TYPE, ORDINAL, SNAPSHOT = "_change_type", "_change_ordinal", "_commit_snapshot_id"
"""Iceberg's metadata columns of a changelog."""
_SAME_ROWS = "replace"
Moment = int | str | dt.datetime
LineageOf = Callable[[Snapshot], Lineage | None]
"""Which rows a snapshot copied, and where to; None: unknown, as another engine made the snapshot."""
SparkReader = Callable[["Changes", Any], Any]


# Snapshots


@dataclass(frozen=True, slots=True)
class Step:
    """One snapshot, and the one to compare it with."""

    snapshot: Snapshot
    parent: Snapshot | None
    """None: it is the first snapshot, or its parent has expired."""
    ordinal: int


def steps_between(metadata: TableMetadata, since: Snapshot | None, until: Snapshot | None) -> tuple[Step, ...]:
    """The snapshots after ``since``, up to ``until``, oldest first, without those that only rewrote files.

    Raises InvalidInput when the way back from ``until`` does not lead to ``since``.
    """
    passed: list[Snapshot] = []
    for snapshot in metadata.ancestors(None if until is None else until.snapshot_id):
        if since is not None and snapshot.snapshot_id == since.snapshot_id:
            break
        passed.append(snapshot)
    else:
        if since is not None:
            raise _no_way_back(metadata, since, until, passed)
    pairs = zip(reversed(passed), [since, *reversed(passed)], strict=False)
    # The oldest snapshot left in the history counts as a whole: its parent has expired.
    changing = [(each, parent) for each, parent in pairs if parent is None or each.operation != _SAME_ROWS]
    return tuple(Step(each, parent, ordinal) for ordinal, (each, parent) in enumerate(changing))


def _no_way_back(
    metadata: TableMetadata, since: Snapshot, until: Snapshot | None, passed: Sequence[Snapshot]
) -> InvalidInput:
    if until is None:
        return InvalidInput(f"The table's main branch is empty, so it has no changes since {since.snapshot_id}")
    oldest = passed[-1]
    parent = oldest.parent_snapshot_id
    if parent is not None and not metadata.has_snapshot(parent):
        evidence = f"Snapshot {parent}, the parent of {oldest.snapshot_id}, has expired"
    elif until.sequence_number < since.sequence_number:
        evidence = f"{until.snapshot_id} is older than {since.snapshot_id}"
    else:
        evidence = f"{since.snapshot_id} was rolled back or is on another branch"
    return InvalidInput(
        f"Snapshot {until.snapshot_id} is not a descendant of snapshot {since.snapshot_id}",
        evidence=evidence,
        advice="Take a snapshot that history() shows with is_current_ancestor, or since=None for everything",
    )


def find_snapshot(metadata: TableMetadata, moment: Moment | None) -> Snapshot | None:
    """By id, or the one that was current at a time; None: none. Raises InvalidInput for one that is not there."""
    if moment is None:
        return None
    if isinstance(moment, int):
        return resolve_snapshot(metadata, snapshot=moment)[0]
    return resolve_snapshot(metadata, as_of=moment)[0]


# Files


@dataclass(frozen=True, slots=True, eq=False)
class Difference:
    """The files in which a snapshot differs from its parent."""

    step: Step
    removed: tuple[FileTask, ...] = ()
    """Removed files, with the deletes that applied in the parent."""
    added: tuple[FileTask, ...] = ()
    kept: tuple[tuple[FileTask, FileTask], ...] = ()
    """Files in both snapshots whose deletes differ: before and after."""


def difference(storage: Storage, metadata: TableMetadata, step: Step) -> Difference:
    """Manifests that both snapshots share are read only if their delete manifests differ."""
    before, after = _manifests(storage, step.parent), _manifests(storage, step.snapshot)
    old_deletes, new_deletes = (_of_kind(each, is_data=False) for each in (before, after))
    old_data, new_data = (_of_kind(each, is_data=True) for each in (before, after))
    old_index = DeleteIndex(list(live_files(storage, list(old_deletes.values())).values()), metadata)
    if old_deletes.keys() == new_deletes.keys():
        new_index, shared = old_index, []
    else:
        new_index = DeleteIndex(list(live_files(storage, list(new_deletes.values())).values()), metadata)
        shared = [each for path, each in old_data.items() if path in new_data]
    stats = old_index.equality_ids | new_index.equality_ids
    both = live_files(storage, shared, stats)
    old = both | live_files(storage, [each for path, each in old_data.items() if path not in new_data], stats)
    new = both | live_files(storage, [each for path, each in new_data.items() if path not in old_data], stats)
    kept = ((_task(old[path], old_index), _task(new[path], new_index)) for path in new if path in old)
    return Difference(
        step,
        removed=tuple(_task(entry, old_index) for path, entry in old.items() if path not in new),
        added=tuple(_task(entry, new_index) for path, entry in new.items() if path not in old),
        kept=tuple(pair for pair in kept if _delete_paths(pair[0]) != _delete_paths(pair[1])),
    )


def _manifests(storage: Storage, snapshot: Snapshot | None) -> tuple[Manifest, ...]:
    if snapshot is None:
        return ()
    if snapshot.manifest_list is None:
        raise Unsupported(
            f"The snapshot {snapshot.snapshot_id} lists its manifests in the metadata file, as early format v1 does",
            advice="Ask for the changes since a later snapshot",
        )
    return read_manifest_list(storage, snapshot.manifest_list)


def _of_kind(manifests: Iterable[Manifest], *, is_data: bool) -> dict[str, Manifest]:
    return {each.manifest_path: each for each in manifests if (each.content == DATA_MANIFEST) == is_data}


def _task(entry: Entry, index: DeleteIndex) -> FileTask:
    number = entry.sequence_number or 0
    return FileTask(entry.file, number, entry.snapshot_id, index.applying_to(entry.file, number))


def _delete_paths(task: FileTask) -> frozenset[str]:
    return frozenset(ref.file.file_path for ref in task.deletes)


# Rows


@dataclass(frozen=True, slots=True, eq=False)
class ChangedRows:
    """Rows of one file that were inserted or deleted."""

    kind: str
    task: FileTask
    positions: BitMap64 | None = None
    """Their positions; None: all live rows of the file."""


def changed_rows(found: Difference, lineage: Lineage | None, context: ReadContext) -> list[ChangedRows]:
    """The changed rows, deleted ones first. Files are opened only where positions alone do not suffice."""
    live = _LivePositions(context)
    stayed: Mapping[str, BitMap64] = {}
    if lineage is not None:
        stayed = _copied(found, lineage, live)
    elif found.removed and found.added:
        stayed = _cancelled(found, context)
    marked = [(after, live.of(before), live.of(after)) for before, after in found.kept]
    rows = [
        *(_without_copied(DELETE, task, stayed, live) for task in found.removed),
        *(ChangedRows(DELETE, _without_deletes(task), before - after) for task, before, after in marked),
        # When a delete file is removed, rows reappear.
        *(ChangedRows(INSERT, _without_deletes(task), after - before) for task, before, after in marked),
        *(_without_copied(INSERT, task, stayed, live) for task in found.added),
    ]
    return [each for each in rows if each.positions is None or each.positions]


class _LivePositions:
    """The positions of the live rows of files."""

    def __init__(self, context: ReadContext) -> None:
        self._context = replace(context, schema=Schema())

    def of(self, task: FileTask) -> BitMap64:
        return matching_positions(task, self._context)


def _without_copied(kind: str, task: FileTask, stayed: Mapping[str, BitMap64], live: _LivePositions) -> ChangedRows:
    copied = stayed.get(task.file.file_path)
    return ChangedRows(kind, task) if not copied else ChangedRows(kind, _without_deletes(task), live.of(task) - copied)


def _without_deletes(task: FileTask) -> FileTask:
    """The same file without its deletes, for callers that select rows by position."""
    return replace(task, deletes=())


def _copied(found: Difference, lineage: Lineage, live: _LivePositions) -> dict[str, BitMap64]:
    """The positions of rows that were only copied, by removed and added file."""
    sources = {task.file.file_path: task for task in found.removed}
    outputs = {task.file.file_path: task for task in found.added}
    wanted = {path: runs for path, runs in lineage.outputs.items() if path in outputs}
    named = {run.source for runs in wanted.values() for run in runs}
    before = {path: live.of(task) for path, task in sources.items() if path in named}
    stayed: dict[str, BitMap64] = {}
    for path, runs in wanted.items():
        after = live.of(outputs[path])
        mine = stayed.setdefault(path, BitMap64())
        at = 0
        for run in runs:
            if run.source in before:
                same = (_range(run.first, run.length) & before[run.source]).shift(at - run.first) & after
                mine |= same
                stayed.setdefault(run.source, BitMap64()).update(same.shift(run.first - at))
            at += run.length
    return stayed


def _range(first: int, length: int) -> BitMap64:
    rows = BitMap64()
    rows.add_range(first, first + length)
    return rows


# Rows of other engines, by their values


def _cancelled(found: Difference, context: ReadContext) -> dict[str, BitMap64]:
    """Pairs of equal rows, one of a removed and one of an added file. Memory grows with the rows of removed files."""
    waiting: dict[bytes, list[tuple[str, int]]] = {}
    for task in found.removed:
        for digest, position in _digests(task, context):
            waiting.setdefault(digest, []).append((task.file.file_path, position))
    stayed: dict[str, BitMap64] = {}
    for task in found.added:
        for digest, position in _digests(task, context):
            places = waiting.get(digest)
            if places:
                path, source = places.pop()
                stayed.setdefault(path, BitMap64()).add(source)
                stayed.setdefault(task.file.file_path, BitMap64()).add(position)
    return stayed


def _digests(task: FileTask, context: ReadContext) -> Iterator[tuple[bytes, int]]:
    for batch, numbers in rows_with_positions(task, context):
        columns = [_plain_values(column) for column in batch.columns]
        places: Any = numbers.to_pylist()
        for position, row in zip(places, zip(*columns, strict=True), strict=True):
            yield hashlib.blake2b(repr(row).encode(errors="surrogatepass"), digest_size=16).digest(), position


_BITS = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}


def _plain_values(column: Array) -> list[Any]:
    """Values that are equal when their bits are; times as numbers, which have no end of the calendar."""
    kind = column.type
    if pa.types.is_floating(kind) or pa.types.is_temporal(kind):
        column = column.view(_BITS[kind.bit_width])
    found: list[Any] = column.to_pylist()
    return found


# Reading


def read_rows(rows: ChangedRows, context: ReadContext) -> Iterator[pa.RecordBatch]:
    """The rows, as the requested columns."""
    if rows.positions is None:
        yield from read_task(rows.task, context)
        return
    with opened(context.storage, rows.task.file) as parquet:
        reader = FileReader(rows.task, context, parquet)
        projection = reader.projection()
        leaves = reader.layout.leaves_for(context.schema)
        columns = [reader.layout.leaves[leaf] for leaf in sorted(leaves)]
        named = Positions.of([memoryview(rows.positions.to_array()).cast("B").cast("q")])
        for group, at in _groups_with(parquet, rows.positions):
            for batch in parquet.iter_batches(batch_size=context.batch_rows, row_groups=[group], columns=columns):
                others = named.keep(at, batch.num_rows)
                if others is not None:
                    yield projection.rows(batch.filter(pc.invert(others)))
                at += batch.num_rows


def _groups_with(parquet: Any, positions: BitMap64) -> Iterator[tuple[int, int]]:
    """The row groups that hold one of these rows, each with the number of its first row."""
    first = 0
    for group in range(parquet.metadata.num_row_groups):
        rows = _range(first, parquet.metadata.row_group(group).num_rows)
        if positions.intersect(rows):
            yield group, first
        first += len(rows)


def count_rows(rows: ChangedRows, context: ReadContext) -> int:
    return count_task(rows.task, context) if rows.positions is None else len(rows.positions)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Changes:
    """The rows inserted and deleted between two snapshots of a table, pinned when it is made.

    Columns: those of the table's current schema, then ``_change_type`` ('INSERT' or 'DELETE'), ``_change_ordinal``
    (from 0 on, one for each snapshot that changed rows) and ``_commit_snapshot_id``. Snapshots come in their order, and
    within each of them deleted rows come first.
    """

    table: str
    steps: tuple[Step, ...]
    columns: Schema
    storage: Storage
    metadata: TableMetadata
    lineage_of: LineageOf
    spark_reader: SparkReader | None = field(default=None)

    def __post_init__(self) -> None:
        taken = next((each.name for each in self.columns.fields if each.name in (TYPE, ORDINAL, SNAPSHOT)), None)
        if taken is not None:
            raise InvalidInput(
                f"The table {self.table} has a column {taken!r}, which is reserved for the changes",
                advice="Rename the column",
            )

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the rows."""
        made = to_arrow_schema(self.columns, include_field_ids=False)
        for name, kind in ((TYPE, pa.string()), (ORDINAL, pa.int32()), (SNAPSHOT, pa.int64())):
            made = made.append(pa.field(name, kind, nullable=False))
        return made

    @property
    def snapshots(self) -> tuple[int, ...]:
        """The snapshots that changed rows, in their order: a row's ordinal is its snapshot's place here."""
        return tuple(each.snapshot.snapshot_id for each in self.steps)

    def differences(self) -> Iterator[tuple[Difference, Lineage | None]]:
        """The files that changed, snapshot by snapshot, and where copied rows went."""
        for step in self.steps:
            found = difference(self.storage, self.metadata, step)
            yield found, self.lineage_of(step.snapshot) if found.removed and found.added else Lineage()

    def to_arrow(self) -> pa.Table:
        """All rows, in memory."""
        return pa.Table.from_batches(list(self.to_batches()), schema=self.schema)

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """The rows a batch at a time. Closing the iterator stops reading."""
        schema = self.schema
        for found, lineage in self.differences():
            context = self._context()
            rows = changed_rows(found, lineage, context)
            pieces = in_order(rows, lambda each, context=context: _tagged(each, context))  # type: ignore[misc]
            try:
                for kind, batch in pieces:
                    yield _with_facts(batch, kind, found.step, schema)
            finally:
                pieces.close()

    def to_pandas(self, **options: Any) -> Any:
        """All rows as a pandas DataFrame; ``options`` go to pyarrow's ``Table.to_pandas``."""
        require("pandas")
        return self.to_arrow().to_pandas(**options)

    def to_polars(self) -> Any:
        """All rows as a polars DataFrame."""
        return require("polars").from_arrow(self.to_arrow())

    def to_spark(self, spark: Any = None) -> Any:
        """The rows as a DataFrame of a Spark session: the one given, else the lake's, else the one that is active."""
        if self.spark_reader is None:
            raise Unsupported("These changes were requested without a lake", advice="Use to_arrow() or to_batches()")
        return self.spark_reader(self, spark)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        reader: Any = pa.RecordBatchReader.from_batches(self.schema, self.to_batches())
        return reader.__arrow_c_stream__(requested_schema)

    def count(self) -> int:
        """How many rows there are. Files are opened only where metadata and row numbers do not say it exactly."""
        total = 0
        for found, lineage in self.differences():
            context = self._context()
            nothing = replace(context, schema=Schema())
            total += sum(count_rows(each, nothing) for each in changed_rows(found, lineage, context))
        return total

    def __repr__(self) -> str:
        return f"Changes({self.table}, {len(self.steps)} snapshots)"

    def _context(self) -> ReadContext:
        # A new one for each snapshot, so that its cached deletes are released with it.
        return ReadContext.of(self.storage, self.metadata, self.columns)


def _tagged(rows: ChangedRows, context: ReadContext) -> Iterator[tuple[str, pa.RecordBatch]]:
    return ((rows.kind, batch) for batch in read_rows(rows, context))


def _with_facts(batch: pa.RecordBatch, kind: str, step: Step, schema: pa.Schema) -> pa.RecordBatch:
    count = batch.num_rows
    facts = [
        arrow.repeat(arrow.scalar(kind, pa.string()), count),
        arrow.repeat(arrow.scalar(step.ordinal, pa.int32()), count),
        arrow.repeat(arrow.scalar(step.snapshot.snapshot_id, pa.int64()), count),
    ]
    made: pa.RecordBatch = arrow.RecordBatch.from_arrays([*batch.columns, *facts], schema=schema)
    return made
