"""A scan: one snapshot of one table, pinned when it is made, with a filter, columns and a limit.

Nothing is read before rows, files or a count are asked for. Rows come in the order of the plan.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.types import DateType, NestedField, StructType, TimestampType, TimestamptzType

from frazil.errors import InvalidInput, Unsupported
from frazil.expr import Filter, did_you_mean
from frazil.format.metadata import MAIN, TableMetadata
from frazil.format.storage import Storage
from frazil.format.times import iso, milliseconds
from frazil.model import Snapshot
from frazil.read.arrow import ReadContext, count_task, read_task
from frazil.read.plan import Counts, FileTask, ScanPlan, plan
from frazil.read.prefetch import in_order

_SHOWN = 20
_NAME_PART = re.compile(r"`([^`]+)`|([^.`]+)")


@dataclass(frozen=True, slots=True)
class ScannedFile:
    """A data file of a scan."""

    path: str
    partition: dict[str, Any]
    rows: int
    bytes: int
    sequence_number: int
    deletes: int
    """How many delete files apply to it."""


SparkReader = Callable[["Scan", Any], Any]
"""Makes a DataFrame of a scan and a session; injected, as this module does not import Spark."""


class Scan:
    """Rows of one snapshot. Any number of reads of one scan see the same rows."""

    def __init__(
        self,
        storage: Storage,
        metadata: TableMetadata,
        snapshot: Snapshot | None,
        schema: Schema,
        filter: Filter,  # noqa: A002 - the usual word
        columns: Iterable[str] | None,
        limit: int | None,
        case_sensitive: bool,
        table: str,
        spark_reader: SparkReader | None = None,
    ) -> None:
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
            raise InvalidInput(f"limit={limit!r} is not a number of rows", advice="Pass an integer from 0 on, or None")
        self._storage = storage
        self._metadata = metadata
        self._filter = filter
        self._limit = limit
        self._table = table
        self._spark_reader = spark_reader
        self._all_columns = columns is None
        self._wanted = schema if columns is None else select_columns(schema, columns, case_sensitive)
        self.snapshot = snapshot
        self._planned: ScanPlan | None = None

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the rows."""
        return self._context().arrow_schema

    @property
    def snapshot_id(self) -> int | None:
        """None: the table had no snapshot when the scan was made."""
        return None if self.snapshot is None else self.snapshot.snapshot_id

    # Rows

    def to_arrow(self) -> pa.Table:
        """All rows, in memory."""
        return pa.Table.from_batches(list(self.to_batches()), schema=self.schema)

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """The rows a batch at a time; memory stays bounded. Closing the iterator stops reading."""
        context = self._context()
        left = self._limit
        if left == 0:
            return
        # A limited scan does not read files ahead.
        ahead = 1 if left is not None else None
        batches = in_order(self._plan().tasks, lambda task: read_task(task, context), ahead=ahead)
        try:
            for batch in batches:
                if left is not None and batch.num_rows >= left:
                    yield batch.slice(0, left)
                    return
                yield batch
                left = None if left is None else left - batch.num_rows
        finally:
            batches.close()

    def to_pandas(self, **options: Any) -> Any:
        """All rows as a pandas DataFrame; ``options`` go to pyarrow's ``Table.to_pandas``."""
        require("pandas")
        return self.to_arrow().to_pandas(**options)

    def to_polars(self) -> Any:
        """All rows as a polars DataFrame."""
        return require("polars").from_arrow(self.to_arrow())

    def to_spark(self, spark: Any = None) -> Any:
        """The rows as a DataFrame of a Spark session: the one given, else the lake's, else the one that is active.

        The files are fixed by the scan: put filters into ``where``, they prune files; a filter on the DataFrame only
        prunes inside them.
        """
        if self._spark_reader is None:
            raise Unsupported("This scan was made without a lake", advice="Use to_arrow() or to_batches()")
        return self._spark_reader(self, spark)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        reader: Any = pa.RecordBatchReader.from_batches(self.schema, self.to_batches())
        return reader.__arrow_c_stream__(requested_schema)

    def count(self) -> int:
        """How many rows there are. Files are opened only where metadata does not say it exactly."""
        if self._limit == 0:
            return 0
        context = self._context(Schema())
        total = 0
        for task in self._plan().tasks:
            total += count_task(task, context)
            if self._limit is not None and total >= self._limit:
                return self._limit
        return total

    # Looking at the plan

    def files(self) -> list[ScannedFile]:
        """The data files that may hold rows of the scan."""
        readers = {
            spec_id: _partition_readers(spec, self._metadata) for spec_id, spec in self._metadata.specs().items()
        }
        return [
            ScannedFile(
                path=task.file.file_path,
                partition={
                    name: read(value)
                    for (name, read), value in zip(readers[task.file.spec_id], task.file.partition, strict=False)
                },
                rows=task.file.record_count,
                bytes=task.file.file_size_in_bytes,
                sequence_number=task.sequence_number,
                deletes=len(task.deletes),
            )
            for task in self._plan().tasks
        ]

    def tasks(self) -> tuple[FileTask, ...]:
        """The plan itself."""
        return self._plan().tasks

    def explain(self) -> str:
        """What will be read and what was ruled out, and by which step."""
        planned = self._plan()
        counts = planned.counts
        names = "all" if self._all_columns else ", ".join(field.name for field in self._wanted.fields)
        lines = [
            f"Scan of {self._table}",
            f"  snapshot   {self._snapshot_text()}",
            f"  filter     {self._filter.text}",
            f"  columns    {names}",
            f"  limit      {'none' if self._limit is None else self._limit}",
            *_explain_counts(counts, planned),
        ]
        return "\n".join(lines)

    def __repr__(self) -> str:
        parts = [self._table, "empty" if self.snapshot is None else f"snapshot={self.snapshot.snapshot_id}"]
        if not self._filter.is_true:
            parts.append(f"where={self._filter.text!r}")
        if not self._all_columns:
            parts.append(f"columns={[field.name for field in self._wanted.fields]}")
        if self._limit is not None:
            parts.append(f"limit={self._limit}")
        return f"Scan({', '.join(parts)})"

    def _snapshot_text(self) -> str:
        if self.snapshot is None:
            return "none: the table is empty"
        return f"{self.snapshot.snapshot_id} ({self.snapshot.operation}, {iso(self.snapshot.timestamp_ms)})"

    def _context(self, schema: Schema | None = None) -> ReadContext:
        return ReadContext.of(self._storage, self._metadata, self._wanted if schema is None else schema)

    def _plan(self) -> ScanPlan:
        # The snapshot is pinned and immutable, so its plan is too.
        if self._planned is None:
            self._planned = plan(self._metadata, self.snapshot, self._filter, self._storage)
        return self._planned


def _partition_readers(spec: PartitionSpec, metadata: TableMetadata) -> list[tuple[str, Callable[[Any], Any]]]:
    """For each partition field its name, and how to show its values: days as dates, microseconds as timestamps."""
    schema = metadata.schema()
    found: list[tuple[str, Callable[[Any], Any]]] = []
    for field in spec.fields:
        known = field.source_id in schema.field_ids
        kind = field.transform.result_type(schema.find_type(field.source_id)) if known else None
        found.append((field.name, _SHOWN_AS.get(type(kind), lambda value: value)))
    return found


def _since(start: Any, unit: str) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        try:
            return None if value is None else start + dt.timedelta(**{unit: value})
        except OverflowError:
            # Beyond Python's calendar: the number itself.
            return value

    return read


_SHOWN_AS: dict[type, Callable[[Any], Any]] = {
    DateType: _since(dt.date(1970, 1, 1), "days"),
    TimestampType: _since(dt.datetime(1970, 1, 1, tzinfo=None), "microseconds"),  # noqa: DTZ001 - the type has no zone
    TimestamptzType: _since(dt.datetime(1970, 1, 1, tzinfo=dt.UTC), "microseconds"),
}


def _explain_counts(counts: Counts, planned: ScanPlan) -> list[str]:
    kept = len(planned.tasks)
    rows = sum(task.file.record_count for task in planned.tasks)
    size = sum(task.file.file_size_in_bytes for task in planned.tasks)
    deletes = len({ref.file.file_path for task in planned.tasks for ref in task.deletes})
    manifests = (
        f"{counts.manifests} of data, {counts.manifests_pruned} ruled out by partition; "
        f"{counts.delete_manifests} of deletes, {counts.delete_manifests_pruned} ruled out"
    )
    files = (
        f"{counts.files} considered, {counts.files_pruned_by_partition} ruled out by partition, "
        f"{counts.files_pruned_by_bounds} by column bounds, {kept} to read ({rows} rows, {size} bytes)"
    )
    return [
        f"  manifests  {manifests}",
        f"  files      {files}",
        f"  rows       {counts.files_matching_whole} of {kept} files match whole, the others are filtered row by row",
        f"  deletes    {deletes} of {counts.delete_files} delete files apply",
    ]


def require(library: str) -> Any:
    import importlib

    try:
        return importlib.import_module(library)
    except ImportError as error:
        raise Unsupported(
            f"{library} is not installed", advice=f"Run: pip install {library}; or use to_arrow(), which needs nothing"
        ) from error


# Columns


def select_columns(schema: Schema, columns: Iterable[str], case_sensitive: bool) -> Schema:
    """The schema of the named columns, in that order. ``a.b`` is the struct ``a`` with only ``b`` in it."""
    if isinstance(columns, str | bytes) or not isinstance(columns, Iterable):
        listed = f"columns=[{columns!r}]" if isinstance(columns, str) else "columns=['id', 'ts']"
        raise InvalidInput(f"columns must be a list of names, not {columns!r}", advice=f"Write {listed}")
    names = list(columns)
    if not names:
        raise InvalidInput("columns is empty", advice="Name at least one column, leave it out for all, or use count()")
    chosen: dict[int, list[tuple[NestedField, ...]]] = {}
    for name in names:
        path = _find_path(schema, name, case_sensitive)
        others = chosen.setdefault(path[0].field_id, [])
        if any(path[: len(other)] == other[: len(path)] for other in others):
            raise InvalidInput(f"The column {name!r} is listed twice")
        others.append(path)
    fields = [_narrowed(paths[0][0], [path[1:] for path in paths]) for paths in chosen.values()]
    return Schema(*fields, schema_id=schema.schema_id)


def _find_path(schema: Schema, name: str, case_sensitive: bool) -> tuple[NestedField, ...]:
    if not isinstance(name, str) or not name:
        raise InvalidInput(f"{name!r} is not a column name")
    whole = _match(schema.fields, name, case_sensitive)
    if whole is not None:
        return (whole,)
    fields = schema.fields
    path: list[NestedField] = []
    for quoted, plain in _NAME_PART.findall(name):
        found = _match(fields, quoted or plain, case_sensitive)
        if found is None:
            known = [field.name for field in fields]
            raise InvalidInput(f"There is no column {name!r}", advice=did_you_mean(quoted or plain, known))
        path.append(found)
        fields = found.field_type.fields if isinstance(found.field_type, StructType) else ()
    return tuple(path)


def _match(fields: tuple[NestedField, ...], name: str, case_sensitive: bool) -> NestedField | None:
    exact = next((field for field in fields if field.name == name), None)
    if exact is not None or case_sensitive:
        return exact
    loose = [field for field in fields if field.name.lower() == name.lower()]
    if len(loose) > 1:
        raise InvalidInput(f"The name {name!r} matches several columns: {', '.join(field.name for field in loose)}")
    return loose[0] if loose else None


def _narrowed(field: NestedField, paths: list[tuple[NestedField, ...]]) -> NestedField:
    if any(not path for path in paths) or not isinstance(field.field_type, StructType):
        return field
    below: dict[int, list[tuple[NestedField, ...]]] = {}
    for path in paths:
        below.setdefault(path[0].field_id, []).append(path)
    kept = [_narrowed(inner[0][0], [path[1:] for path in inner]) for inner in below.values()]
    return field.model_copy(update={"field_type": StructType(*kept)})


# Which snapshot


def resolve_snapshot(
    metadata: TableMetadata,
    *,
    snapshot: int | None = None,
    as_of: dt.datetime | str | int | None = None,
    ref: str | None = None,
) -> tuple[Snapshot | None, Schema]:
    """The snapshot to read and the schema to read it with; None is a table without rows yet.

    A branch is read with the table's current schema, a tag or a snapshot with the schema of its time.
    """
    given = [name for name, value in (("snapshot", snapshot), ("as_of", as_of), ("ref", ref)) if value is not None]
    if len(given) > 1:
        raise InvalidInput(f"{' and '.join(given)} each name a snapshot", advice="Pass only one of them")
    if snapshot is not None:
        found = _by_id(metadata, snapshot)
        return found, _schema_of(metadata, found)
    if as_of is not None:
        found = _by_time(metadata, as_of)
        return found, _schema_of(metadata, found)
    return _by_ref(metadata, MAIN if ref is None else ref)


def _by_id(metadata: TableMetadata, snapshot_id: int) -> Snapshot:
    if isinstance(snapshot_id, bool) or not isinstance(snapshot_id, int):
        raise InvalidInput(f"snapshot={snapshot_id!r} is not a snapshot id", advice="Pass a number from history()")
    found = metadata.snapshot(snapshot_id)
    if found is None:
        known = [str(each.snapshot_id) for each in metadata.snapshots()]
        raise InvalidInput(
            f"The table has no snapshot {snapshot_id}. It never existed or has expired",
            advice=f"The latest are {', '.join(known[-_SHOWN:])}" if known else "The table has no snapshot yet",
        )
    return found


def _by_ref(metadata: TableMetadata, ref: str) -> tuple[Snapshot | None, Schema]:
    details = metadata.refs.get(ref)
    if details is None:
        if ref == MAIN:
            return None, metadata.schema()
        known = ", ".join(sorted(metadata.refs)[:_SHOWN])
        raise InvalidInput(
            f"The table has no branch or tag {ref!r}", advice=f"It has {known}" if known else "It has none yet"
        )
    found = _by_id(metadata, int(details["snapshot-id"]))
    return found, _schema_of(metadata, found) if details.get("type") == "tag" else metadata.schema()


def _by_time(metadata: TableMetadata, as_of: dt.datetime | str | int) -> Snapshot:
    moment = milliseconds(as_of, "as_of")
    log = metadata.snapshot_log()
    earlier = [snapshot_id for at, snapshot_id in log if at <= moment]
    if not earlier:
        first = f"The oldest known snapshot is from {iso(log[0][0])}" if log else "The table has no snapshot yet"
        raise InvalidInput(f"The table has no snapshot as of {iso(moment)}", evidence=first)
    found = metadata.snapshot(earlier[-1])
    if found is None:
        raise InvalidInput(f"The snapshot that was current at {iso(moment)} has expired", advice="See history()")
    return found


def _schema_of(metadata: TableMetadata, snapshot: Snapshot) -> Schema:
    known = metadata.schemas()
    return known[snapshot.schema_id] if snapshot.schema_id in known else metadata.schema()
