"""Rows to immutable Parquet files with their statistics: written once, durable when ``stage`` returns.

```
 rows ─▶ batches ─▶ conform ─▶ split by partition ─▶ a sink each: buffer ─▶ row group ─▶ file ─▶ DataFile
```
A sink gathers its partition's rows until they make a row group, so that memory is bounded by bytes and not by the
number of partitions, and a partition with few rows opens its file only to write it whole.
"""

from __future__ import annotations

import contextlib
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema, sanitize_column_names
from pyiceberg.transforms import VoidTransform
from pyiceberg.types import PrimitiveType

from frazil.errors import FrazilError, InvalidInput, StorageError, Unsupported
from frazil.format import statistics
from frazil.format.metadata import UPGRADE, WRITTEN_VERSION, TableMetadata
from frazil.format.partitions import arrow_transform, column_at, partition_identity, partition_key, source_path
from frazil.format.schemas import IdentityKey, arrow_schema, suggestion
from frazil.format.storage import Storage, storage_error
from frazil.model import DataFile, Run
from frazil.runtime import SYSTEM, Runtime
from frazil.stage.conform import conform_to
from frazil.stage.rows import to_reader

if TYPE_CHECKING:
    from pyiceberg.table.locations import LocationProvider
    from pyiceberg.table.sorting import SortField, SortOrder

MIB = 1024 * 1024
SORT_BUFFER_BYTES = 128 * MIB
"""Rows are sorted in memory, one file at a time, so this also bounds the size of sorted files."""
BUFFER_BYTES = 256 * MIB
SMALL_BYTES = 1 << 20
"""Of all partitions together."""
OPEN_FILES = 64
_SPLIT_ROWS = 128 * 1024
"""Small batches are joined to about this many rows before they are split by partition."""


@dataclass(frozen=True, slots=True)
class StagedFiles:
    """Durable files that no snapshot refers to yet."""

    files: tuple[DataFile, ...]
    rows: int
    bytes: int
    schema_id: int
    spec_id: int


def stage(
    rows: object,
    *,
    metadata: TableMetadata,
    storage: Storage,
    runtime: Runtime = SYSTEM,
    options: Mapping[str, str] | None = None,
) -> StagedFiles:
    """Write rows as data files of a table, under its current schema, default spec and default sort order.

    On any failure every file is removed again. The first batch is checked before any file is created.
    Raises SchemaMismatch, InvalidInput, Unsupported, StorageError, PermissionDenied.
    """
    layout = _layout_of(metadata, options or {})
    reader = to_reader(rows, layout.schema)
    staging = Staging(layout, storage, runtime)
    with staging.durable_or_gone():
        for batch in _conformed(reader, layout):
            staging.add(batch)
    files = tuple(staging.done)
    return StagedFiles(
        files,
        rows=sum(file.record_count for file in files),
        bytes=sum(file.file_size_in_bytes for file in files),
        schema_id=metadata.current_schema_id,
        spec_id=layout.spec.spec_id,
    )


@dataclass(frozen=True, slots=True, eq=False)
class CopiedFiles:
    """Durable files with unchanged rows of other files, and the source of each row."""

    files: tuple[DataFile, ...]
    runs: Mapping[str, tuple[Run, ...]]
    """New file → the source runs of all its rows, in order."""


def stage_copies(
    pieces: Iterable[tuple[str, pa.RecordBatch, pa.Int64Array]],
    *,
    metadata: TableMetadata,
    storage: Storage,
    spec_id: int,
    partition: tuple[Any, ...],
    sort_order_id: int | None = None,
    runtime: Runtime = SYSTEM,
    options: Mapping[str, str] | None = None,
) -> CopiedFiles:
    """Copy rows of existing files, in the given order, under their existing spec and partition.

    ``pieces``: the file the rows are from, the rows in the table's current schema, and their positions in that file. On
    any failure, including one of ``pieces``, every file is removed again.
    """
    layout = _layout_of(metadata, options or {}, spec_id=spec_id, purpose="copies")
    staging = Staging(layout, storage, runtime)
    runs: list[Run] = []
    with staging.durable_or_gone():
        for source, batch, numbers in pieces:
            if batch.num_rows:
                _extend(runs, source, numbers)
                staging.add_to(partition, conform_to(batch, layout.schema, layout.target))
    files = tuple(replace(file, sort_order_id=sort_order_id) for file in staging.done)
    return CopiedFiles(files, _runs_by_file(files, runs))


def stage_reordered(
    rows: pa.Table,
    runs: Sequence[Run],
    *,
    metadata: TableMetadata,
    storage: Storage,
    spec_id: int,
    partition: tuple[Any, ...],
    sort_order_id: int | None = None,
    runtime: Runtime = SYSTEM,
    options: Mapping[str, str] | None = None,
) -> CopiedFiles:
    """Copy rows of existing files in another order. ``runs``: where they came from; without any, that is not recorded
    (``Write.copies``). On any failure every file is removed again.
    """
    layout = _layout_of(metadata, options or {}, spec_id=spec_id, purpose="copies")
    staging = Staging(layout, storage, runtime)
    with staging.durable_or_gone():
        for batch in rows.to_batches():
            if batch.num_rows:
                staging.add_to(partition, conform_to(batch, layout.schema, layout.target))
    files = tuple(replace(file, sort_order_id=sort_order_id) for file in staging.done)
    by_file = _runs_by_file(files, runs) if runs else {file.file_path: () for file in files}
    return CopiedFiles(files, by_file)


def _extend(runs: list[Run], source: str, numbers: pa.Int64Array) -> None:
    """Append rows to the runs: consecutive positions extend a run, a gap starts another."""
    steps = pc.subtract(numbers.slice(1), numbers.slice(0, len(numbers) - 1))
    gaps: list[Any] = pc.indices_nonzero(pc.not_equal(steps, pa.scalar(1, pa.int64()))).to_pylist()
    starts = [0, *(gap + 1 for gap in gaps)]
    ends = [*starts[1:], len(numbers)]
    for start, end in zip(starts, ends, strict=True):
        first = numbers[start].as_py()
        last = runs[-1] if runs else None
        if last is not None and last.source == source and last.first + last.length == first:
            runs[-1] = Run(source, last.first, last.length + end - start)
        else:
            runs.append(Run(source, first, end - start))


def _runs_by_file(files: Sequence[DataFile], runs: Sequence[Run]) -> dict[str, tuple[Run, ...]]:
    """The runs of each file: rows fill one file after the other, so the files' row counts divide the runs."""
    found: dict[str, tuple[Run, ...]] = {}
    waiting = iter(runs)
    rest: Run | None = None
    for file in files:
        mine: list[Run] = []
        room = file.record_count
        while room:
            run = next(waiting) if rest is None else rest
            taken = min(room, run.length)
            mine.append(Run(run.source, run.first, taken))
            rest = Run(run.source, run.first + taken, run.length - taken) if taken < run.length else None
            room -= taken
        found[file.file_path] = tuple(mine)
    return found


# What depends on the table only, cached


@dataclass(frozen=True, slots=True)
class _WriterSettings:
    target_bytes: int
    row_group_bytes: int
    row_group_rows: int
    writer: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Source:
    """A source column and its transform; ``path`` None: a void partition field whose column was dropped."""

    path: tuple[int, ...] | None
    transform: Callable[[Any], Any]
    is_uuid: bool


@dataclass(frozen=True, slots=True)
class WriteLayout:
    """How files of one purpose are written: schema, spec, sort order, statistics, settings and paths."""

    schema: Schema
    spec: PartitionSpec
    order: SortOrder
    target: pa.Schema
    plan: statistics.Plan
    settings: _WriterSettings
    locations: LocationProvider
    partition: tuple[_Source, ...]
    sort: tuple[tuple[_Source, SortField], ...]


Purpose = Literal["rows", "copies", "keys"]
"""New rows are split by partition and sorted, keys are only split; copies keep their partition and order."""


def check_writable(metadata: TableMetadata) -> None:
    """Raises Unsupported for a table that this version can only read."""
    if metadata.format_version != WRITTEN_VERSION:
        raise Unsupported(
            f"The table at {metadata.location} has format version {metadata.format_version}, which is read only",
            advice=UPGRADE,
        )


def _layout_of(
    metadata: TableMetadata, options: Mapping[str, str], *, spec_id: int | None = None, purpose: Purpose = "rows"
) -> WriteLayout:
    spec_id = metadata.default_spec_id if spec_id is None else spec_id
    return layout_for(metadata, metadata.schema(), spec_id, options, purpose)


def layout_for(
    metadata: TableMetadata, schema: Schema, spec_id: int, options: Mapping[str, str], purpose: Purpose
) -> WriteLayout:
    """How files with these columns are written under a spec of the table."""
    check_writable(metadata)
    return _cached_write_layout(
        IdentityKey(schema),
        IdentityKey(metadata.spec(spec_id)),
        metadata.sort_order().model_dump_json() if metadata.default_sort_order_id else "",
        metadata.location,
        tuple(sorted(metadata.properties.items())),
        tuple(sorted(options.items())),
        purpose,
    )


@lru_cache(maxsize=64)
def _cached_write_layout(
    schema_key: IdentityKey,
    spec_key: IdentityKey,
    order_json: str,
    location: str,
    properties: tuple[tuple[str, str], ...],
    options: tuple[tuple[str, str], ...],
    purpose: Purpose,
) -> WriteLayout:
    from pyiceberg.table.locations import load_location_provider
    from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder

    schema, spec = schema_key.value, spec_key.value
    order = SortOrder.model_validate_json(order_json) if order_json and purpose != "keys" else UNSORTED_SORT_ORDER
    settings = _settings(dict(properties), dict(options))
    in_files = file_schema(schema)
    # Equality deletes are pruned by the bounds of their keys, so key columns always have bounds.
    bounded = schema.field_ids if purpose == "keys" else {each.source_id for each in order.fields}
    try:
        locations = load_location_provider(location, dict(properties))
    except (ValueError, AttributeError) as error:
        raise InvalidInput(f"The table's location provider cannot be used: {error}") from error
    split_by = spec.fields if purpose != "copies" else ()
    sort_by = order.fields if purpose == "rows" else ()
    return WriteLayout(
        schema,
        spec,
        order,
        target=arrow_schema(in_files),
        plan=statistics.plan(in_files, {**dict(properties), **dict(options)}, bounded),
        settings=settings,
        locations=locations,
        partition=tuple(_source(schema, each.source_id, each.transform) for each in split_by),
        sort=tuple((_source(schema, each.source_id, each.transform), each) for each in sort_by),
    )


def file_schema(schema: Schema) -> Schema:
    """Column names in files are made safe as Iceberg's other writers do; readers go by field id."""
    try:
        return sanitize_column_names(schema)
    except ValueError:
        # Sanitizing made two names equal.
        return schema


def _source(schema: Schema, source_id: int, transform: Any) -> _Source:
    path = source_path(schema, source_id)
    if path is None and isinstance(transform, VoidTransform):
        return _Source(None, lambda _: None, is_uuid=False)
    kind = schema.find_type(source_id) if path is not None else None
    if not isinstance(kind, PrimitiveType):
        raise Unsupported(f"The table's partitioning or sort order names the column id {source_id}, which is not there")
    made = arrow_transform(transform, kind)
    return _Source(path, made, is_uuid=str(transform) == "identity" and str(kind) == "uuid")


_OPTIONS = {
    "target-file-size-bytes": "write.target-file-size-bytes",
    "compression-codec": "write.parquet.compression-codec",
    "compression-level": "write.parquet.compression-level",
}
# Iceberg's names, then Arrow's.
_CODECS = {"zstd": "zstd", "gzip": "gzip", "snappy": "snappy", "lz4": "lz4", "brotli": "brotli", "uncompressed": "none"}


def _settings(properties: dict[str, str], options: Mapping[str, str]) -> _WriterSettings:
    for name, value in options.items():
        if name.startswith(statistics.COLUMN_MODE):
            continue
        if name not in _OPTIONS:
            raise InvalidInput(f"The write option {name!r} is unknown", advice=suggestion(name, _OPTIONS))
        properties[_OPTIONS[name]] = str(value)
    if (wanted := properties.get("write.format.default", "parquet").lower()) != "parquet":
        raise Unsupported(
            f"The table's default file format is {wanted}, and only Parquet can be written",
            advice="Set write.format.default to parquet",
        )
    codec = properties.get("write.parquet.compression-codec", "zstd").lower()
    if codec not in _CODECS:
        raise InvalidInput(f"The Parquet compression codec {codec!r} is unknown", advice=suggestion(codec, _CODECS))
    level = _whole(properties, "write.parquet.compression-level", None)
    writer = {
        "compression": _CODECS[codec],
        "compression_level": level if codec in ("zstd", "gzip", "brotli") else None,
        "data_page_size": _positive(properties, "write.parquet.page-size-bytes", MIB),
        "dictionary_pagesize_limit": _positive(properties, "write.parquet.dict-size-bytes", 2 * MIB),
        "store_decimal_as_integer": True,
        # Readers get types and ids from the Parquet schema; Arrow's own copy of it would double a small file's footer.
        "store_schema": False,
    }
    return _WriterSettings(
        target_bytes=_positive(properties, "write.target-file-size-bytes", 512 * MIB),
        row_group_bytes=_positive(properties, "write.parquet.row-group-size-bytes", 128 * MIB),
        row_group_rows=_positive(properties, "write.parquet.row-group-limit", 1024 * 1024),
        writer=writer,
    )


def _positive(properties: Mapping[str, str], name: str, default: int) -> int:
    number = _whole(properties, name, default)
    if number is None or number < 1:
        raise InvalidInput(f"{name} is {properties[name]!r}", advice="Give a whole number of at least 1")
    return number


def _whole(properties: Mapping[str, str], name: str, default: int | None) -> int | None:
    text = properties.get(name)
    if text is None:
        return default
    try:
        return int(text)
    except ValueError as error:
        raise InvalidInput(f"{name} is {text!r}, which is not a whole number") from error


# Reading


def _conformed(reader: pa.RecordBatchReader, layout: WriteLayout) -> Iterator[pa.RecordBatch]:
    """Non-empty batches in the files' types; for partitioned tables, small ones joined."""
    waiting: list[pa.RecordBatch] = []
    for batch in _read(reader):
        fitting = conform_to(batch, layout.schema, layout.target)
        if not fitting.num_rows:
            continue
        if not layout.partition:
            yield fitting
            continue
        waiting.append(fitting)
        if sum(each.num_rows for each in waiting) >= _SPLIT_ROWS:
            yield from _joined(waiting)
            waiting = []
    if waiting:
        yield from _joined(waiting)


def _joined(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    return batches if len(batches) == 1 else pa.Table.from_batches(batches).combine_chunks().to_batches()


def _read(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    """The caller's batches. Errors of the caller's stream are distinguished from those of the storage."""
    while True:
        try:
            batch = reader.read_next_batch()
        except StopIteration:
            return
        except OSError as error:
            raise StorageError(f"The rows could not be read: {error}") from error
        except pa.ArrowException as error:
            raise InvalidInput(f"The rows could not be read: {error}") from error
        yield batch


# Splitting by partition


def _split(batch: pa.RecordBatch, sources: tuple[_Source, ...]) -> Iterator[tuple[tuple[Any, ...], pa.RecordBatch]]:
    """The batch's rows by partition, each part copied: a slice would keep the whole batch in memory."""
    for values, mine in _parts(batch, sources):
        yield values, (batch if mine is None or len(mine) == batch.num_rows else batch.take(mine))


def rows_by_partition(
    rows: pa.Table, metadata: TableMetadata, spec_id: int
) -> Iterator[tuple[tuple[Any, ...], pa.Int64Array | None]]:
    """Which rows belong to which partition of a spec, in their order; None: all of them."""
    layout = _layout_of(metadata, {}, spec_id=spec_id, purpose="rows")
    batches = rows.combine_chunks().to_batches()
    assert len(batches) <= 1, "the rows are in one piece"
    for batch in batches:
        yield from _parts(conform_to(batch, layout.schema, layout.target), layout.partition)


def _parts(
    batch: pa.RecordBatch, sources: tuple[_Source, ...]
) -> Iterator[tuple[tuple[Any, ...], pa.Int64Array | None]]:
    """The partitions of a batch and the numbers of their rows; None: all rows."""
    if not sources:
        yield (), None
        return
    encoded = [_encoded(batch, source) for source in sources]
    codes = encoded[0].indices
    for each in encoded[1:]:
        # Re-encoded after each field, so that the product of the cardinalities cannot overflow.
        codes = pc.add(pc.multiply(codes.cast(pa.int64()), len(each.dictionary)), each.indices.cast(pa.int64()))
        codes = codes.dictionary_encode().indices
    order = pc.sort_indices(codes)
    runs = pc.call_function("run_end_encode", [codes.take(order)])
    start = 0
    for end in runs.run_ends.to_pylist():
        mine = order.slice(start, end - start)
        first = mine[0].as_py()
        values = tuple(
            _value(each.dictionary[each.indices[first].as_py()], source)
            for each, source in zip(encoded, sources, strict=True)
        )
        yield values, mine
        start = end


def _encoded(batch: pa.RecordBatch, source: _Source) -> Any:
    if source.path is None:
        values: Any = pa.nulls(batch.num_rows, pa.int32())
    else:
        values = source.transform(column_at(batch, source.path))
    return values.dictionary_encode(null_encoding="encode")


def _value(scalar: Any, source: _Source) -> Any:
    value = scalar.as_py()
    return uuid.UUID(bytes=value) if source.is_uuid and value is not None else value


# Sorting


def _sorted(rows: pa.Table, sort: tuple[tuple[_Source, SortField], ...]) -> pa.Table:
    """The rows in the table's order."""
    order = _sort_indices(rows, sort)
    return rows if order is None else rows.take(order)


def sort_indices(rows: pa.Table, schema: Schema, order: SortOrder) -> pa.UInt64Array | None:
    """The numbers of the rows in this order; None: the order has no columns. ``rows`` have the schema's columns."""
    return _sort_indices(rows, sort_columns(schema, order))


def sort_columns(schema: Schema, order: SortOrder) -> tuple[tuple[_Source, SortField], ...]:
    """The columns of an order with their transforms, as a layout has those of the table's order."""
    return tuple((_source(schema, each.source_id, each.transform), each) for each in order.fields)


def _sort_indices(rows: pa.Table, sort: tuple[tuple[_Source, SortField], ...]) -> pa.UInt64Array | None:
    """Nulls and NaN get separate sort keys, as Arrow orders them differently."""
    from pyiceberg.table.sorting import NullOrder, SortDirection

    batch = rows.combine_chunks().to_batches()[0]
    keys: dict[str, Any] = {}
    directions: list[tuple[str, Any]] = []
    for position, (source, each) in enumerate(sort):
        if source.path is None:
            continue
        values = source.transform(column_at(batch, source.path))
        direction = "ascending" if each.direction == SortDirection.ASC else "descending"
        nulls_first = each.null_order == NullOrder.NULLS_FIRST
        keys[f"null{position}"] = values.is_null()
        directions.append((f"null{position}", "descending" if nulls_first else "ascending"))
        if pa.types.is_floating(values.type):
            # The specification puts NaN above every number.
            keys[f"nan{position}"] = pc.fill_null(pc.is_nan(values), False)
            directions.append((f"nan{position}", direction))
        keys[f"value{position}"] = values
        directions.append((f"value{position}", direction))
    return pc.sort_indices(pa.table(keys), sort_keys=directions) if keys else None


# Writing


@dataclass(slots=True)
class OpenFile:
    path: str
    out: Any
    """A stream to the file, or to memory."""
    writer: Any
    footers: list[Any]
    observed: statistics.Observed = field(default_factory=statistics.Observed)


@dataclass(slots=True)
class _Sink:
    """The buffered rows and the open file of one partition."""

    partition: tuple[Any, ...]
    waiting: list[pa.RecordBatch] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0
    file: OpenFile | None = None


class Staging:
    """All files of one call. Not thread-safe."""

    def __init__(self, layout: WriteLayout, storage: Storage, runtime: Runtime, suffix: str = "") -> None:
        self._suffix = suffix
        self.paths: list[str] = []
        self.done: list[DataFile] = []
        self._durable: set[str] = set()
        """Those of ``paths`` that were written by ``Storage.write`` and are durable already."""
        self.layout = layout
        self._storage = storage
        self._runtime = runtime
        self._sinks: dict[tuple[Any, ...], _Sink] = {}
        self._open: OrderedDict[tuple[Any, ...], _Sink] = OrderedDict()
        self._buffered = 0
        settings = layout.settings
        # A file's size is checked after each row group, so a file of several row groups stays near its target.
        self._flush_bytes = (
            min(SORT_BUFFER_BYTES, settings.target_bytes)
            if layout.sort
            else min(settings.row_group_bytes, max(1, settings.target_bytes // 4))
        )

    @contextlib.contextmanager
    def durable_or_gone(self) -> Iterator[None]:
        """After the block every file is complete and durable; on an error every file is removed."""
        try:
            yield
            self.finish()
            self._storage.sync([path for path in self.paths if path not in self._durable])
        except FrazilError:
            self.abort()
            raise
        except OSError as error:
            self.abort()
            raise storage_error(error, f"Cannot write rows to {self.layout.locations.table_location}") from error
        except pa.ArrowException as error:
            self.abort()
            raise InvalidInput(f"The rows cannot be written: {str(error).partition(chr(10))[0]}") from error
        except BaseException:
            self.abort()
            raise

    def add(self, batch: pa.RecordBatch) -> None:
        """Rows of any partition, in the files' types."""
        for partition, part in _split(batch, self.layout.partition):
            self.add_to(partition, part)

    def add_to(self, partition: tuple[Any, ...], part: pa.RecordBatch) -> None:
        """Rows of one partition, in the files' types."""
        key = partition_identity(partition)
        sink = self._sinks.get(key)
        if sink is None:
            sink = self._sinks[key] = _Sink(partition)
        self._fill(key, sink, part)

    def finish(self) -> None:
        for key, sink in self._sinks.items():
            self._flush(key, sink, is_last=True)
            self._close(key, sink)

    def abort(self) -> None:
        for sink in self._open.values():
            if sink.file is not None:
                discard(sink.file)
        self._open.clear()
        self._storage.delete(self.paths)

    def _fill(self, key: tuple[Any, ...], sink: _Sink, part: pa.RecordBatch) -> None:
        """Buffer rows, a row group's worth at a time."""
        row_bytes = max(1.0, part.nbytes / part.num_rows)
        while part.num_rows:
            room = int((self._flush_bytes - sink.bytes) / row_bytes)
            taken = part.slice(0, max(1, min(room, self.layout.settings.row_group_rows - sink.rows)))
            part = part.slice(taken.num_rows)
            size = int(taken.num_rows * row_bytes)
            sink.waiting.append(taken)
            sink.rows += taken.num_rows
            sink.bytes += size
            self._buffered += size
            if sink.bytes + row_bytes > self._flush_bytes or sink.rows >= self.layout.settings.row_group_rows:
                self._flush(key, sink)
        while self._buffered > BUFFER_BYTES:
            largest = max(self._sinks, key=lambda each: self._sinks[each].bytes)
            self._flush(largest, self._sinks[largest])

    def _flush(self, key: tuple[Any, ...], sink: _Sink, *, is_last: bool = False) -> None:
        if not sink.rows:
            return
        # A small, complete file is buffered in memory and written by a single request.
        in_memory = is_last and sink.bytes <= SMALL_BYTES
        rows = pa.Table.from_batches(_joined(sink.waiting), schema=self.layout.target)
        if self.layout.sort:
            rows = _sorted(rows, self.layout.sort)
        self._buffered -= sink.bytes
        sink.waiting, sink.rows, sink.bytes = [], 0, 0
        if sink.file is None:
            sink.file = self._create(key, sink, in_memory=in_memory)
        self._open.move_to_end(key)
        statistics.observe(self.layout.plan, rows, sink.file.observed)
        sink.file.writer.write_table(rows, row_group_size=self.layout.settings.row_group_rows)
        # A sorted file holds one sorted buffer; other files grow to their target size on disk.
        if self.layout.sort or sink.file.out.tell() >= self.layout.settings.target_bytes:
            self._close(key, sink)

    def _create(self, key: tuple[Any, ...], sink: _Sink, *, in_memory: bool) -> OpenFile:
        while len(self._open) >= OPEN_FILES:
            oldest = next(iter(self._open))
            self._close(oldest, self._open[oldest])
        layout = self.layout
        # Fresh randomness for each file, never a commit's id (rule P13): a repeated call must not overwrite.
        name = f"{len(self.paths):05d}-{self._runtime.new_uuid()}{self._suffix}.parquet"
        path = layout.locations.new_data_location(name, partition_key(layout.spec, layout.schema, sink.partition))
        self.paths.append(path)
        out = pa.BufferOutputStream() if in_memory else self._storage.open_output(path)
        footers: list[Any] = []
        try:
            writer = pq.ParquetWriter(out, layout.target, metadata_collector=footers, **layout.settings.writer)
        except BaseException:
            with contextlib.suppress(Exception):
                out.close()
            raise
        opened = OpenFile(path, out, writer, footers)
        self._open[key] = sink
        return opened

    def _close(self, key: tuple[Any, ...], sink: _Sink) -> None:
        opened = sink.file
        if opened is None:
            return
        opened.writer.close()
        size = opened.out.tell()
        if isinstance(opened.out, pa.BufferOutputStream):
            self._storage.write(opened.path, opened.out.getvalue().to_pybytes())
            self._durable.add(opened.path)
        else:
            opened.out.close()
        sink.file = None
        del self._open[key]
        self.done.append(data_file(opened.path, size, opened.footers[0], opened.observed, self.layout, sink.partition))


def data_file(
    path: str, size: int, footer: Any, observed: statistics.Observed, layout: WriteLayout, partition: tuple[Any, ...]
) -> DataFile:
    """The manifest's description of a file written with this layout."""
    found = statistics.file_statistics(footer, layout.plan, observed)
    return DataFile(
        file_path=path,
        record_count=footer.num_rows,
        file_size_in_bytes=size,
        spec_id=layout.spec.spec_id,
        partition=partition,
        column_sizes=found.column_sizes,
        value_counts=found.value_counts,
        null_value_counts=found.null_value_counts,
        nan_value_counts=found.nan_value_counts,
        lower_bounds=found.lower_bounds,
        upper_bounds=found.upper_bounds,
        split_offsets=found.split_offsets,
        sort_order_id=layout.order.order_id if layout.sort else 0,
    )


def discard(opened: OpenFile) -> None:
    """Close a file that will be deleted. Errors are ignored: the disk may be full."""
    with contextlib.suppress(Exception):
        opened.writer.close()
    # Otherwise the writer would try again when it is collected.
    opened.writer.is_open = False
    with contextlib.suppress(Exception):
        opened.out.close()
