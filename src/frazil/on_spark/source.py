"""The Spark data source: ``spark.read.format("frazil")`` and ``df.write.format("frazil")``, batch and streaming.

    options ─▶ table ─▶ scan ─▶ partitions (files) ─▶ Arrow batches on executors
    rows on executors ─▶ files ─▶ one message a task ─▶ one commit on the driver

It uses Spark's Python Data Source API (4.0 and later). The Arrow engine reads and writes files inside Python workers,
which need Frazil installed. ``scan().to_spark()`` and the verbs need no such install and use Spark's own Parquet reader
and writer. This module is imported on demand, as its classes derive from PySpark's.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import pickle
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import chain, islice
from typing import Any

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import UUIDType
from pyspark.sql import datasource

from frazil.commit.operations import Kind, Read, RowCounts, Write
from frazil.dml.delete import delete_matching
from frazil.dml.overwrite import matching_rows
from frazil.dml.view import COPY_ON_WRITE, Settings, View
from frazil.dml.write_builder import WriteBuilder
from frazil.errors import InvalidInput, Unsupported
from frazil.expr import Filter, parse_filter
from frazil.format.metadata import MAIN, TableMetadata
from frazil.format.schemas import suggestion
from frazil.format.storage import Storage
from frazil.model import DataFile
from frazil.on_spark.session import Session, checked
from frazil.on_spark.types import spark_schema
from frazil.read.arrow import ReadContext, read_task
from frazil.read.changes import Step, difference, find_snapshot, steps_between
from frazil.read.plan import FileTask, plan
from frazil.read.scan import resolve_snapshot, select_columns
from frazil.runtime import SYSTEM
from frazil.stage.arrow import stage

FORMAT = "frazil"
Table = Any
"""A frazil.Table, which this lower layer must not import."""
OpenTable = Callable[[Mapping[str, str]], Table]
CONNECTION = ("lake", "path", "warehouse", "name", "token", "app")
PROPERTY = "property."
_READ = ("where", "columns", "snapshot", "as_of", "ref", "pushdown")
_WRITE = ("where", "branch", "commit_id", "isolation")
_STREAM = ("since", "columns", "skip_deletes", "skip_overwrites", "max_files", "max_rows")
_PARTITION_BYTES = 64 << 20
_OPENING_COSTS = 4 << 20
"""Opening a file costs as much as reading this many bytes."""
_ROWS_AT_ONCE = 10_000
arrow: Any = pa
api: Any = datasource


def register(spark: Session, open_table: OpenTable) -> None:
    """Register the format with a session."""
    # A new class for each call, as Spark takes only a class: the function is pickled with it.
    made = type("FrazilSource", (TableSource,), {"open_table": staticmethod(open_table)})
    checked(spark).dataSource.register(made)


class TableSource(api.DataSource):  # type: ignore[misc]
    """A table by its name, in the lake that an option names."""

    open_table: OpenTable

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        # Keys are not case-sensitive, and come in lower case.
        self._given = {key.lower(): value for key, value in options.items()}
        self._pinned: _PinnedRead | None = None

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> Any:
        """Spark calls this when the DataFrame is made, which pins its snapshot."""
        self._check_options((*_READ, *_STREAM))
        with self._opened() as table:
            self._pinned = _pin(table._metadata(), self._given)
        return spark_schema(self._pinned.columns)

    def reader(self, schema: Any) -> _Reader:
        self._check_options(_READ)
        kind = _PushingReader if _flag(self._given, "pushdown") else _Reader
        with self._opened() as table:
            metadata = table._metadata()
            pin = self._pinned or _pin(metadata, self._given)
            return kind(metadata, pin, _batch_schema(schema, pin), table._storage, self._given.get("where"))

    def streamReader(self, schema: Any) -> _StreamReader:  # noqa: N802 - Spark's name
        self._check_options(_STREAM)
        with self._opened() as table:
            pin = self._pinned or _pin(table._metadata(), self._given)
            options = _StreamOptions.of(self._given)
            return _StreamReader(_DriverTable(table), table._storage, pin, _batch_schema(schema, pin), options)

    def writer(self, schema: Any, overwrite: bool) -> _Writer:  # noqa: ARG002 - rows say which columns they have
        self._check_options(_WRITE)
        where = self._given.get("where")
        if where is not None and not overwrite:
            raise InvalidInput(
                "where needs mode('overwrite'): it selects the rows to replace", advice="Leave it out to append"
            )
        branch = self._given.get("branch", MAIN)
        with self._opened() as table:
            # Fail before a row is written.
            table._lake.check_writable()
            metadata = table._metadata()
            job = _Job(
                table=table.name,
                metadata=_without_history(metadata, branch),
                storage=table._storage,
                branch=branch,
                overwritten=parse_filter(where, metadata.schema()) if overwrite else None,
                commit_id=self._given.get("commit_id") or str(SYSTEM.new_uuid()),
                isolation=self._given.get("isolation"),
            )
            return _Writer(_DriverTable(table), job)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Table]:
        table = type(self).open_table(self._given)
        with table._lake:
            yield table

    def _check_options(self, known: Sequence[str]) -> None:
        for name in self._given:
            if name not in (*CONNECTION, *known) and not name.startswith(PROPERTY):
                raise InvalidInput(
                    f"The format {FORMAT} has no option {name!r} here", advice=suggestion(name, (*CONNECTION, *known))
                )


class _DriverTable:
    """A table that is pickled for workers but opened on the driver only."""

    def __init__(self, table: Table) -> None:
        self._pickled = pickle.dumps(table)

    def open(self) -> Table:
        return pickle.loads(self._pickled)  # noqa: S301 - what __init__ pickled


# Reading


@dataclass(frozen=True, slots=True, eq=False)
class _PinnedRead:
    """The snapshot and columns that a DataFrame reads, whenever it runs."""

    snapshot_id: int | None
    columns: Schema
    """The requested columns, in the requested order."""
    filtered_with: Schema


def _pin(metadata: TableMetadata, options: Mapping[str, str]) -> _PinnedRead:
    snapshot, schema = resolve_snapshot(
        metadata,
        snapshot=_number(options, "snapshot"),
        as_of=options.get("as_of"),
        ref=options.get("ref"),
    )
    names = [each.strip() for each in options["columns"].split(",")] if options.get("columns") else None
    columns = schema if names is None else select_columns(schema, names, case_sensitive=False)
    for field in columns.fields:
        if not isinstance(field.field_type, UUIDType) and "uuid" in str(field.field_type):
            raise Unsupported(
                f'The column {field.name!r} contains a uuid, which format("frazil") cannot read',
                advice="Use scan().to_spark(), or leave the column out with the option columns",
            )
    return _PinnedRead(None if snapshot is None else snapshot.snapshot_id, columns, schema)


_ARROW: dict[str, Any] = {
    "boolean": pa.bool_(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}


def _batch_schema(schema: Any, pin: _PinnedRead) -> pa.Schema:
    """The Arrow schema of batches for Spark's schema, which may differ from the table's in nullability only.

    Later releases of Spark refuse batches with any other shape, and PySpark's own function for it is not public: its
    arguments change.
    """
    given, found = (
        [f"{each.name} {each.dataType.simpleString()}" for each in it.fields]
        for it in (schema, spark_schema(pin.columns))
    )
    if given != found:
        raise InvalidInput(
            f"The schema given to Spark has the columns {', '.join(given)}, the table has {', '.join(found)}",
            advice="Leave schema() out, and choose columns with option('columns', 'a, b')",
        )
    return pa.schema([_arrow_field(each.name, each.dataType, each.nullable) for each in schema.fields])


def _arrow_field(name: str, kind: Any, nullable: bool) -> Any:
    match kind.typeName():
        case "struct":
            made = arrow.struct([_arrow_field(each.name, each.dataType, each.nullable) for each in kind.fields])
        case "array":
            made = arrow.list_(_arrow_field("element", kind.elementType, kind.containsNull))
        case "map":
            value = _arrow_field("value", kind.valueType, kind.valueContainsNull)
            made = arrow.map_(_arrow_field("key", kind.keyType, False), value)
        case "decimal":
            made = arrow.decimal128(kind.precision, kind.scale)
        case simple:
            made = _ARROW[simple]
    return arrow.field(name, made, nullable=nullable)


class _Files(api.InputPartition):  # type: ignore[misc]
    """The files of one task, and the metadata to read them."""

    def __init__(self, tasks: Sequence[FileTask], metadata: TableMetadata) -> None:
        super().__init__(None)
        self.tasks = tuple(tasks)
        self.metadata = metadata


def _partitions(tasks: Sequence[FileTask], metadata: TableMetadata) -> list[_Files]:
    """Small files are read together; a file is never split."""
    groups: list[list[FileTask]] = []
    room = 0
    for task in tasks:
        cost = task.file.file_size_in_bytes + _OPENING_COSTS
        if not groups or cost > room:
            groups.append([])
            room = _PARTITION_BYTES
        groups[-1].append(task)
        room -= cost
    return [_Files(group, metadata) for group in groups] or [_Files((), metadata)]


def _read(files: _Files, columns: Schema, shape: pa.Schema, storage: Storage) -> Iterator[pa.RecordBatch]:
    context = ReadContext.of(storage, files.metadata, columns)
    for task in files.tasks:
        for batch in read_task(task, context):
            arrays = [_for_spark(column, kind) for column, kind in zip(batch.columns, shape.types, strict=True)]
            yield arrow.RecordBatch.from_arrays(arrays, schema=shape)


def _for_spark(column: Any, kind: Any) -> Any:
    if isinstance(column.type, pa.BaseExtensionType):
        values = column.storage.to_pylist()
        return arrow.array([None if each is None else str(uuid.UUID(bytes=each)) for each in values], pa.string())
    return column if column.type == kind else column.cast(kind)


class _Reader(api.DataSourceReader):  # type: ignore[misc]
    """Planned on the driver, read by workers."""

    def __init__(
        self, metadata: TableMetadata, pin: _PinnedRead, shape: pa.Schema, storage: Storage, where: str | None
    ) -> None:
        self._pin = pin
        self._batch_schema = shape
        self._storage = storage
        self._where = where
        self._metadata = _without_history(metadata, None, pin.snapshot_id)
        if pin.snapshot_id is not None and self._metadata.snapshot(pin.snapshot_id) is None:
            raise InvalidInput(
                f"The snapshot {pin.snapshot_id} has expired since the DataFrame was made",
                advice="Create the DataFrame again",
            )

    def partitions(self) -> list[_Files]:
        metadata, pin = self._metadata, self._pin
        snapshot = None if pin.snapshot_id is None else metadata.snapshot(pin.snapshot_id)
        condition = parse_filter(self._where, pin.filtered_with)
        tasks = plan(metadata, snapshot, condition, self._storage).tasks
        return _partitions(tasks, _without_history(metadata, None))

    def read(self, partition: _Files) -> Iterator[pa.RecordBatch]:
        return _read(partition, self._pin.columns, self._batch_schema, self._storage)


class _PushingReader(_Reader):
    """Also prunes files by Spark's filters. Spark applies them to the rows again."""

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:  # noqa: N802 - Spark's name
        texts = [f"({self._where})"] if self._where is not None else []
        texts += [text for each in filters if (text := _sql(each, self._pin.filtered_with)) is not None]
        self._where = " AND ".join(texts) or None
        return filters


_COMPARISONS = {
    "EqualTo": "=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
}


def _sql(given: Any, schema: Schema) -> str | None:
    """Spark's filter as SQL; None: only Spark applies it."""
    kind = type(given).__name__
    if len(getattr(given, "attribute", ())) != 1 or "`" in given.attribute[0]:
        return None
    name = f"`{given.attribute[0]}`"
    if not any(each.name == given.attribute[0] for each in schema.fields):
        return None
    if kind in ("IsNull", "IsNotNull"):
        return f"{name} IS {'NOT ' if kind == 'IsNotNull' else ''}NULL"
    if kind == "In":
        values = [_literal(each) for each in given.value]
        return None if None in values or not values else f"{name} IN ({', '.join(map(str, values))})"
    value = _literal(given.value) if kind in _COMPARISONS else None
    return None if value is None else f"{name} {_COMPARISONS[kind]} {value}"


def _literal(value: object) -> str | None:
    match value:
        case bool():
            return str(value).lower()
        case int():
            return str(value)
        case Decimal() if value.is_finite():
            return f"{value:f}"
        case str() if not set(value) & {"'", "\\"} and value.isprintable():
            return f"'{value}'"
        case dt.datetime() if value.tzinfo is not None:
            return f"timestamp '{value.astimezone(dt.UTC).isoformat(sep=' ')}'"
        case dt.datetime():
            return None
        case dt.date():
            return f"date '{value.isoformat()}'"
    return None


# Streams of appended rows


@dataclass(frozen=True, slots=True)
class _StreamOptions:
    since: int | str | None
    skip_deletes: bool
    skip_overwrites: bool
    max_files: int | None
    max_rows: int | None

    @property
    def is_limited(self) -> bool:
        return self.max_files is not None or self.max_rows is not None

    @staticmethod
    def of(options: Mapping[str, str]) -> _StreamOptions:
        since = options.get("since")
        return _StreamOptions(
            since=int(since) if since is not None and since.strip().isdigit() else since,
            skip_deletes=_flag(options, "skip_deletes"),
            skip_overwrites=_flag(options, "skip_overwrites"),
            max_files=_number(options, "max_files", least=1),
            max_rows=_number(options, "max_rows", least=1),
        )


class _StreamReader(api.DataSourceStreamReader):  # type: ignore[misc]
    """Offsets are snapshots: {"snapshot": id}, or null before the first one. A batch has the rows that the snapshots
    after its start, up to its end, appended. Snapshots are immutable, so a repeated batch has the same rows.
    """

    def __init__(
        self, table: _DriverTable, storage: Storage, pin: _PinnedRead, shape: pa.Schema, options: _StreamOptions
    ) -> None:
        self._driver_table = table
        self._open: Table = None
        self._columns = pin.columns
        self._batch_schema = shape
        self._storage = storage
        self._options = options
        self._last: int | None = None
        """The end of the last batch, if this process has seen it."""
        self._knows_last = False

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        since = find_snapshot(self._table._metadata(), self._options.since)
        return self._set_position(None if since is None else since.snapshot_id)

    def latestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        metadata = self._table._metadata()
        head = metadata.head_snapshot(MAIN)
        if head is None or not self._options.is_limited:
            return _offset(None if head is None else head.snapshot_id)
        if not self._knows_last:
            # Spark requests the latest offset before the initial one; after a restart the last offset is known by now.
            self.initialOffset()
        steps = steps_between(metadata, find_snapshot(metadata, self._last), head)
        taken = list(self._within_limits(steps))
        # With all steps read, the head itself: snapshots after the last step only rewrote files.
        end = head.snapshot_id if len(taken) == len(steps) else taken[-1].snapshot.snapshot_id
        return _offset(end)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[_Files]:
        # On a restart Spark requests the range from the last offset to itself, which reveals the last offset.
        self._set_position(end["snapshot"])
        if start == end:
            return []
        metadata = self._table._metadata()
        first, last = (find_snapshot(metadata, each["snapshot"]) for each in (start, end))
        tasks: list[FileTask] = []
        for step in steps_between(metadata, first, last):
            if self._is_read(step):
                tasks += difference(self._storage, metadata, step).added
        return _partitions(tasks, _without_history(metadata, None)) if tasks else []

    def read(self, partition: _Files) -> Iterator[pa.RecordBatch]:
        return _read(partition, self._columns, self._batch_schema, self._storage)

    def stop(self) -> None:
        if self._open is not None:
            self._open._lake.close()

    @property
    def _table(self) -> Table:
        if self._open is None:
            self._open = self._driver_table.open()
        return self._open

    def _set_position(self, snapshot_id: int | None) -> dict[str, Any]:
        self._last, self._knows_last = snapshot_id, True
        return _offset(snapshot_id)

    def _within_limits(self, steps: Sequence[Step]) -> Iterator[Step]:
        """As many whole snapshots as the limits allow, and one at least."""
        files = rows = 0
        for at, step in enumerate(steps):
            # The first snapshot counts as a whole, so its totals are what it added.
            keys = (
                ("total-data-files", "total-records") if step.parent is None else ("added-data-files", "added-records")
            )
            files += _count(step, keys[0])
            rows += _count(step, keys[1])
            too_many = files > (self._options.max_files or files) or rows > (self._options.max_rows or rows)
            if at and too_many:
                return
            yield step

    def _is_read(self, step: Step) -> bool:
        """Whether to read the step. Raises InvalidInput for one that is not an append, unless an option skips it."""
        operation = step.snapshot.operation
        if step.parent is None or operation == "append":
            return True
        option = "skip_deletes" if operation == "delete" else "skip_overwrites"
        if getattr(self._options, option):
            return False
        raise InvalidInput(
            f"Snapshot {step.snapshot.snapshot_id} of {self._table.name} is {operation!r}, not an append: a stream of "
            "appended rows cannot show rows that were removed",
            advice=f"Set {option}=True to skip such snapshots, or use table.changes()",
        )


def _offset(snapshot_id: int | None) -> dict[str, Any]:
    return {"snapshot": snapshot_id}


def _count(step: Step, key: str) -> int:
    text = str(step.snapshot.summary.get(key, ""))
    return int(text) if text.isdigit() else 0


# Writing


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    """One write, as sent to workers."""

    table: str
    metadata: TableMetadata
    """The table when the write began, which its files are written for and its commit is based on."""
    storage: Storage
    branch: str
    overwritten: Filter | None
    """The rows to replace; None: append."""
    commit_id: str
    isolation: str | None

    @property
    def view(self) -> View:
        return View(self.storage, SYSTEM, self.metadata, self.branch, self.table)


class _Written(api.WriterCommitMessage):  # type: ignore[misc]
    def __init__(self, files: tuple[DataFile, ...]) -> None:
        self.files = files


class _Writer(getattr(api, "DataSourceArrowWriter", api.DataSourceWriter)):  # type: ignore[misc]
    """Workers write files, and the driver commits them once. Spark 4.0 passes rows, later versions Arrow batches."""

    def __init__(self, table: _DriverTable, job: _Job) -> None:
        self._driver_table = table
        self._job = job

    def write(self, iterator: Iterator[Any]) -> _Written:
        job = self._job
        batches = _batches(iterator)
        first = next(batches, None)
        if first is None:
            return _Written(())
        rows: Iterable[Any] = chain([first], batches)
        if job.overwritten is not None and not job.overwritten.is_true:
            rows = matching_rows(rows, job.overwritten, job.view)
        return _Written(stage(rows, metadata=job.metadata, storage=job.storage).files)

    def commit(self, messages: list[_Written | None]) -> None:
        job = self._job
        files = [file for message in messages if message is not None for file in message.files]
        verb = "append" if job.overwritten is None else "overwrite"
        parameters = {} if job.overwritten is None else {"where": job.overwritten.text}
        given = {"branch": job.branch, "commit_id": job.commit_id, "isolation": job.isolation, "engine": "arrow"}
        call: Any = None
        try:
            table = self._driver_table.open()
            call = table._begin(verb, given, parameters)
        finally:
            if call is None or call.found is not None:
                # The call was refused, or an earlier attempt has committed other files.
                job.storage.delete([file.file_path for file in files])
        if call.found is None:
            # Based on the table when the write began, not on the current head.
            table._run(call.on(job.metadata), lambda _view, settings: _write(files, job, settings))

    def abort(self, messages: list[_Written | None]) -> None:
        """Spark calls this when a task or ``commit`` has failed.

        A failed ``commit`` has cleaned up already, and its files must stay if its outcome is unknown.
        """
        if any(message is None for message in messages):
            files = [file.file_path for message in messages if message is not None for file in message.files]
            self._job.storage.delete(files)


def _write(files: Sequence[DataFile], job: _Job, settings: Settings) -> Write:
    view = job.view
    rows = sum(file.record_count for file in files)
    with WriteBuilder(view, settings) as builder:
        builder.adopt_rows(files)
        if job.overwritten is None:
            return builder.build(Kind.APPEND, RowCounts(inserted=rows))
        where = view.bound(job.overwritten)
        deleted = delete_matching(builder, where, COPY_ON_WRITE)
        counts = RowCounts(inserted=rows, deleted=deleted)
        return builder.build(Kind.OVERWRITE, counts, reads=(Read(where),), asked=where)


def _batches(given: Iterator[Any]) -> Iterator[pa.RecordBatch]:
    first = next(given, None)
    if first is None:
        return
    everything = chain([first], given)
    if isinstance(first, pa.RecordBatch):
        yield from everything
        return
    while rows := [row.asDict(recursive=True) for row in islice(everything, _ROWS_AT_ONCE)]:
        yield arrow.RecordBatch.from_pylist(rows)


# Shared by reading and writing


_HISTORY = ("snapshots", "snapshot-log", "metadata-log", "statistics", "partition-statistics", "refs")


def _without_history(metadata: TableMetadata, branch: str | None, *snapshot_ids: int | None) -> TableMetadata:
    """The metadata with a branch's head and these snapshots only, as every task pickles it and histories are long."""
    raw = {key: value for key, value in metadata.raw.items() if key not in _HISTORY}
    refs = {branch: metadata.refs[branch]} if branch is not None and branch in metadata.refs else {}
    wanted = {*snapshot_ids, *(int(each["snapshot-id"]) for each in refs.values())}
    found = [each for each in metadata.raw.get("snapshots") or () if each["snapshot-id"] in wanted]
    if refs.keys() != {MAIN}:
        raw.pop("current-snapshot-id", None)
    return TableMetadata({**raw, "snapshots": found, "refs": refs})


def _flag(options: Mapping[str, str], name: str) -> bool:
    text = options.get(name, "false").strip().lower()
    if text not in ("true", "false"):
        raise InvalidInput(f"The option {name} must be true or false, not {text!r}")
    return text == "true"


def _number(options: Mapping[str, str], name: str, least: int | None = None) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    try:
        number = int(text)
    except ValueError as error:
        raise InvalidInput(f"The option {name} must be a number, not {text!r}") from error
    if least is not None and number < least:
        raise InvalidInput(f"The option {name} must be {least} or more, not {number}")
    return number
