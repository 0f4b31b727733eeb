"""A DataFrame's rows to immutable Parquet files with their statistics: durable when a function returns.

```
 frame ─▶ conform ─▶ + partition as text ─▶ distribute, sort ─┬─▶ Spark's writer ─▶ listing, footers ────┬─▶ DataFile
                                                              └─▶ Arrow on executors ─▶ files as rows ───┘
```
Spark's own writer is faster. It is not used where it cannot write what Iceberg requires (ids inside lists, uuid), where
its committer is unknown (rule P33), and on object stores, where renames are copies.
"""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.transforms import TruncateTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DecimalType,
    DoubleType,
    FixedType,
    IcebergType,
    ListType,
    LongType,
    MapType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from frazil.errors import InvalidInput, SchemaMismatch, StorageError, Unsupported
from frazil.expr import Filter
from frazil.format import statistics
from frazil.format.metadata import TableMetadata
from frazil.format.partitions import column_at, source_path
from frazil.format.storage import Storage, is_local, local_path, make_folder
from frazil.model import Content, DataFile
from frazil.on_spark import executor
from frazil.on_spark.columns import condition
from frazil.on_spark.connector import check_reachable
from frazil.on_spark.fitting import fitted_columns
from frazil.on_spark.placing import by_value, s3_options
from frazil.on_spark.session import Frame, Session, cached, session_of, setting, translated, with_settings
from frazil.on_spark.transforms import decode_partition, transformed, with_partition
from frazil.on_spark.types import FIELD_ID, needs_arrow_writer, spark_type
from frazil.runtime import SYSTEM, Runtime
from frazil.stage.arrow import StagedFiles, WriteLayout, data_file, file_schema, layout_for
from frazil.stage.deletes import key_schema

SparkColumn = Any
arrow: Any = pa

DISTRIBUTION = "write.distribution-mode"
_MODES = ("none", "hash", "range")
_FOOTERS_ON_DRIVER = 64
_READERS = 8
_CLEANINGS = 5
_LONGEST_SHOWN = 300
_RENAMES_CHEAPLY = ("hdfs://", "viewfs://")

# Settings that affect the files and have no write option. The footers are checked nevertheless.
_HELD = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.fieldId.write.enabled": "true",
    "spark.sql.parquet.writeLegacyFormat": "false",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    # INT96 is never written, but other values would add a marker to the footer.
    "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
}
_COMMITTERS = {
    "spark.sql.sources.commitProtocolClass": (
        "org.apache.spark.sql.execution.datasources.SQLHadoopMapReduceCommitProtocol"
    ),
    "spark.sql.parquet.output.committer.class": "org.apache.parquet.hadoop.ParquetOutputCommitter",
    "spark.sql.sources.outputCommitterClass": "",
}
_COMMIT = {
    # Files become visible when the job commits, not when a task does (rule P33).
    "mapreduce.fileoutputcommitter.algorithm.version": "1",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "true",
}
_CODECS = {"zstd": "zstd", "snappy": "snappy", "gzip": "gzip", "lz4": "lz4_raw", "none": "uncompressed"}
_SHOWS_NAN = re.compile(r"parquet-mr version 1\.1[0-7]\.")
"""Writers whose chunks with a NaN have the upper bound NaN or none: any other bound proves that there is no NaN. Later
versions are untested.
"""
_NULLS_OBSERVED = (StructType, StringType, BinaryType)
"""Nulls in required columns of these types are counted by Spark: footers lack structs, and long values."""
_LEGACY = frozenset({b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96"})


def stage_rows(
    frame: Frame,
    *,
    metadata: TableMetadata,
    storage: Storage,
    runtime: Runtime = SYSTEM,
    options: Mapping[str, str] | None = None,
    where: Filter | None = None,
    table: str,
) -> StagedFiles:
    """Write a frame's rows as data files of a table, under its current schema, default spec and default sort order.

    ``where``: every row must match it. On any failure every file is removed again.
    Raises SchemaMismatch, InvalidInput, Unsupported, StorageError, SparkFailed.
    """
    layout = layout_for(metadata, metadata.schema(), metadata.default_spec_id, options or {}, "rows")
    job = WriteJob(session_of(frame), layout, metadata, storage, runtime, _native_at_all(layout, session_of(frame)))
    with translated(f"write to {table}"):
        files = _staged(frame, job, where)
    return StagedFiles(
        files,
        rows=sum(file.record_count for file in files),
        bytes=sum(file.file_size_in_bytes for file in files),
        schema_id=metadata.current_schema_id,
        spec_id=layout.spec.spec_id,
    )


def stage_keys(
    frame: Frame,
    field_ids: Sequence[int],
    spec_id: int,
    *,
    metadata: TableMetadata,
    storage: Storage,
    runtime: Runtime = SYSTEM,
) -> tuple[DataFile, ...]:
    """Write equality delete files for every older row with one of these keys (rule P21).

    They apply to the whole table under an unpartitioned spec, or are split by partition under a spec whose source
    columns all belong to the key.

    The frame has the columns of the key, a field inside a struct as the struct with only that field in it.
    """
    layout = layout_for(metadata, key_schema(metadata.schema(), field_ids), spec_id, {}, "keys")
    native = _native_at_all(layout, session_of(frame))
    job = WriteJob(session_of(frame), layout, metadata, storage, runtime, native, keys=True)
    with translated("write of deletes by key"):
        files = _staged(frame, job, None)
    ids = tuple(sorted(field_ids))
    return tuple(replace(file, content=Content.EQUALITY_DELETES, equality_ids=ids) for file in files)


@dataclass(frozen=True, slots=True, eq=False)
class WriteJob:
    """One write of one frame."""

    spark: Session
    layout: WriteLayout
    metadata: TableMetadata
    storage: Storage
    runtime: Runtime
    native: bool
    keys: bool = False

    @property
    def spec(self) -> PartitionSpec:
        return self.layout.spec

    @property
    def partitioned(self) -> bool:
        return bool(self.spec.fields)

    @property
    def hidden(self) -> str:
        """The name of the column with the partition's text, which is in no file."""
        name = "__frazil_partition"
        taken = {each.lower() for each in self.layout.target.names}
        while name in taken:
            name += "_"
        return name

    def at(self, field_id: int) -> SparkColumn:
        """A field of the table by its name in the files."""
        from pyspark.sql import functions as F

        path = source_path(self.layout.schema, field_id)
        assert path is not None
        field = self.layout.target.field(path[0])
        column = F.col(_quoted(field.name))
        for position in path[1:]:
            field = field.type.field(position)
            column = column.getField(field.name)
        return column


@dataclass(frozen=True, slots=True, eq=False)
class _File:
    """One written file, as reported by its writer."""

    path: str
    partition: str
    size: int
    footer: Any
    observed: statistics.Observed
    nulls: Mapping[str, int]


def _staged(frame: Frame, job: WriteJob, where: Filter | None) -> tuple[DataFile, ...]:
    from pyspark.sql import Observation

    metrics = _metrics(job, where)
    observation = Observation()
    ready = _distributed(_physical(frame, job), job)
    # After the shuffle, whose tasks may run twice, and before the sort, whose order the writer must see.
    ready = _sorted(ready.observe(observation, *metrics.columns), job)
    with _new_folder(job) as folder:
        written = (_write_natively if job.native else _write_with_arrow)(ready, folder, job)
        found = observation.get
        metrics.check(found)
        files = [each for each in written if each.footer.num_rows]
        _check_rows(files, found.get("rows") or 0)
        _check_nulls(files, job)
        described = tuple(_described(each, job) for each in files)
        folder.accept([each.path for each in files])
    return described


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


# The frame that is written


def _physical(frame: Frame, job: WriteJob) -> Frame:
    """The columns of the files, and the row's partition as a string."""
    key = ("physical", frame.schema, str(job.layout.schema), job.native)
    names, columns = cached(job.spark, key, lambda: file_columns(frame, job))
    made = frame.toDF(*names).select(*columns)
    if job.partitioned:
        made = with_partition(made, job.hidden, job.spec, job.layout.schema, job.at)
    return made


def file_columns(frame: Frame, job: WriteJob) -> tuple[list[str], list[SparkColumn]]:
    names, fitted = fitted_columns(frame, job.layout.schema)
    columns = []
    for column, field in zip(fitted, file_schema(job.layout.schema).fields, strict=True):
        if not isinstance(field.field_type, PrimitiveType):
            # Fields inside structs get their names and ids by this cast.
            column = column.cast(_nullable(spark_type(field.field_type, ids=job.native)))
        columns.append(column.alias(field.name, metadata={FIELD_ID: field.field_id} if job.native else {}))
    return names, columns


def _nullable(kind: Any) -> Any:
    """The type with nulls allowed everywhere: a cast cannot forbid them, so the written files are checked."""
    from pyspark.sql import types

    match kind.typeName():
        case "struct":
            fields = [
                types.StructField(each.name, _nullable(each.dataType), True, each.metadata) for each in kind.fields
            ]
            return types.StructType(fields)
        case "array":
            return types.ArrayType(_nullable(kind.elementType), True)
        case "map":
            return types.MapType(_nullable(kind.keyType), _nullable(kind.valueType), True)
    return kind


def _distributed(frame: Frame, job: WriteJob) -> Frame:
    """Distribute rows as ``write.distribution-mode`` says, so that few tasks write one partition."""
    mode = job.metadata.properties.get(DISTRIBUTION, "hash" if job.partitioned else "none").lower()
    if mode not in _MODES:
        raise InvalidInput(f"{DISTRIBUTION} is {mode!r}", advice=f"Set it to one of {', '.join(_MODES)}")
    if job.keys:
        # Delete files slow down every reader: write few, whatever the frame's partitioning.
        return frame.hint("rebalance", *([job.hidden] if job.partitioned else []))
    if mode == "range" and (keys := sort_keys(job)):
        return frame.repartitionByRange(*keys)
    if mode == "hash" and job.partitioned:
        # Adaptive execution may split a large partition over several tasks and join small ones.
        return frame.hint("rebalance", job.hidden)
    return frame


def _sorted(frame: Frame, job: WriteJob) -> Frame:
    keys = sort_keys(job)
    return frame.sortWithinPartitions(*keys) if keys else frame


def sort_keys(job: WriteJob) -> list[SparkColumn]:
    """The partition first, so that a task has one file open at a time. Like Iceberg, Spark sorts NaN last."""
    from pyiceberg.table.sorting import NullOrder, SortDirection
    from pyspark.sql import functions as F

    keys = [F.col(job.hidden).asc()] if job.partitioned else []
    for source, field in job.layout.sort:
        if source.path is None:
            continue
        kind = job.layout.schema.find_type(field.source_id)
        assert isinstance(kind, PrimitiveType)
        column = transformed(field.transform, kind, job.at(field.source_id))
        if isinstance(field.transform, TruncateTransform) and isinstance(kind, DecimalType):
            column = column.try_cast(f"decimal(38,{kind.scale})")
        first = field.null_order == NullOrder.NULLS_FIRST
        if field.direction == SortDirection.ASC:
            keys.append(column.asc_nulls_first() if first else column.asc_nulls_last())
        else:
            keys.append(column.desc_nulls_first() if first else column.desc_nulls_last())
    return keys


# Observed metrics


@dataclass(frozen=True, slots=True, eq=False)
class _Metrics:
    columns: tuple[SparkColumn, ...]
    where: Filter | None
    nulls: Mapping[str, NestedField]
    """Name of the metric → required field whose nulls footers do not show."""
    texts: Mapping[str, str]

    def check(self, found: Mapping[str, Any]) -> None:
        if self.where is not None and found.get("stray"):
            text = str(found.get("stray_row"))
            shown = text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "…"
            raise InvalidInput(
                f"A row does not match where={self.where.text!r}: {shown}",
                advice="Remove such rows, or widen where: every new row must match it",
            )
        lines = [
            _null_line(name.partition(" ")[2], each, found[name])
            for name, each in self.nulls.items()
            if found.get(name)
        ]
        lines += [
            f"{path!r} is string: {_counted(found[name])} not valid UTF-8 (Decode the bytes first)"
            for name, path in self.texts.items()
            if found.get(name)
        ]
        _raise_misfits(lines)


def _metrics(job: WriteJob, where: Filter | None) -> _Metrics:
    from pyspark.sql import functions as F

    columns = [F.count(F.lit(1)).alias("rows")]
    if where is not None and not where.is_true:
        stray = ~F.coalesce(condition(where, lambda column: job.at(column.field_id)), F.lit(False))
        shown = F.to_json(F.struct(*(F.col(_quoted(name)) for name in job.layout.target.names)))
        columns.append(F.count_if(stray).alias("stray"))
        columns.append(
            F.first(F.when(stray, F.substring(shown, 1, 2 * _LONGEST_SHOWN)), ignorenulls=True).alias("stray_row")
        )
    nulls: dict[str, NestedField] = {}
    texts: dict[str, str] = {}
    if job.native:
        for path, field, parent in _fields(job.layout.schema.as_struct()):
            if field.required and (parent is not None or isinstance(field.field_type, _NULLS_OBSERVED)):
                nulls[f"null {path}"] = field
                missing = job.at(field.field_id).isNull()
                is_there = F.lit(True) if parent is None else job.at(parent).isNotNull()
                columns.append(F.count_if(missing & is_there).alias(f"null {path}"))
            if isinstance(field.field_type, StringType):
                texts[f"text {path}"] = path
                columns.append(F.count_if(~F.is_valid_utf8(job.at(field.field_id))).alias(f"text {path}"))
    return _Metrics(tuple(columns), where, nulls, texts)


def _fields(
    struct: StructType, path: str = "", parent: int | None = None
) -> Iterator[tuple[str, NestedField, int | None]]:
    """All fields but those in lists and maps, with the id of the struct around them."""
    for field in struct.fields:
        name = f"{path}.{field.name}" if path else field.name
        yield name, field, parent
        if isinstance(field.field_type, StructType):
            yield from _fields(field.field_type, name, field.field_id)


def _counted(count: int) -> str:
    return f"{count} {'value is' if count == 1 else 'values are'}"


def _null_line(path: str, field: NestedField, count: int) -> str:
    return f"{path!r} is {field.field_type}: {_counted(count)} null, and the column is required (Fill or drop them)"


def _raise_misfits(lines: Sequence[str]) -> None:
    if lines:
        raise SchemaMismatch("The rows do not fit the table:" + "".join(f"\n  - {line}" for line in lines))


# The folder of a write


class _Folder:
    """A fresh folder for one write. Only accepted files remain in it."""

    def __init__(self, path: str, storage: Storage) -> None:
        self.path = path
        self._storage = storage

    def files(self) -> dict[str, int]:
        """Size by path, with the folder spelled as in the table's metadata."""
        listed = local_path(self.path) if is_local(self.path) else self.path
        return {self.path + info.path[len(listed) :]: info.size for info in self._storage.list(self.path)}

    def accept(self, paths: Sequence[str]) -> None:
        """Make these files durable. Delete files of failed and repeated tasks, and Spark's marker files."""
        known = set(paths)
        self._storage.delete([path for path in self.files() if path not in known])
        self._storage.sync(paths)
        self._prune()
        if is_local(self.path) and os.path.isdir(local_path(self.path)):
            _sync_folder(local_path(self.path))

    def remove(self, runtime: Runtime) -> None:
        """Remove everything, repeatedly: other tasks of a failed job may write until they are killed."""
        for _ in range(_CLEANINGS):
            with contextlib.suppress(Exception):
                self._storage.delete(list(self.files()))
                self._prune()
            if not is_local(self.path) or not os.path.exists(local_path(self.path)):
                return
            runtime.sleep(0.1)

    def _prune(self) -> None:
        """Remove empty local folders; object stores have none."""
        if is_local(self.path):
            for folder, _, _ in os.walk(local_path(self.path), topdown=False):
                # Only empty ones can be removed.
                with contextlib.suppress(OSError):
                    os.rmdir(folder)


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _new_folder(job: WriteJob) -> Iterator[_Folder]:
    # A fresh random name for each write (rule P13), chosen by the table's location provider.
    path = job.layout.locations.new_data_location(job.runtime.new_hex(), None)
    check_reachable(job.spark, path, job.storage)
    if path.startswith("memory:"):
        raise Unsupported(
            "Spark's executors cannot reach the files of a memory:// lake", advice="Write Arrow rows to it"
        )
    if is_local(path):
        make_folder(local_path(path))
    folder = _Folder(path, job.storage)
    try:
        yield folder
    except BaseException:
        folder.remove(job.runtime)
        raise


# Spark's own writer


def _native_at_all(layout: WriteLayout, spark: Session) -> bool:
    location = layout.locations.data_path if hasattr(layout.locations, "data_path") else layout.locations.table_location
    writer = layout.settings.writer
    return (
        not needs_arrow_writer(layout.schema)
        and (is_local(location) or location.startswith(_RENAMES_CHEAPLY))
        and writer["compression"] in _CODECS
        and (writer["compression_level"] is None or writer["compression"] == "zstd")
        and all(setting(spark, name, known) == known for name, known in _COMMITTERS.items())
    )


def _write_natively(frame: Frame, folder: _Folder, job: WriteJob) -> list[_File]:
    writer = frame.write.mode("append").options(**_write_options(job))
    if job.partitioned:
        writer = writer.partitionBy(job.hidden)
    # Unlike a reader's path, a writer's path is not a pattern.
    target = f"file://{local_path(folder.path)}" if is_local(folder.path) else folder.path
    with with_settings(job.spark, _HELD):
        writer.parquet(target)
    found = folder.files()
    if f"{folder.path}/_SUCCESS" not in found:
        raise StorageError(
            f"Spark's write to {folder.path} finished without the file _SUCCESS; nothing was committed",
            advice="See that the driver and the executors reach the same file system",
        )
    paths = {path: size for path, size in found.items() if _is_written(path[len(folder.path) + 1 :])}
    footers = _footers(list(paths), job)
    for path, footer in footers.items():
        _check_types(path, footer, job)
    return [
        _File(path, _folder_text(path, job), size, footers[path], statistics.Observed(), _leaf_nulls(footers[path]))
        for path, size in sorted(paths.items())
    ]


def _is_written(inside: str) -> bool:
    folder, _, name = inside.rpartition("/")
    return name.startswith("part-") and name.endswith(".parquet") and not folder.startswith("_temporary")


def _folder_text(path: str, job: WriteJob) -> str:
    return path.rsplit("/", 2)[1].removeprefix(f"{job.hidden}=") if job.partitioned else ""


def _write_options(job: WriteJob) -> dict[str, str]:
    settings = job.layout.settings
    options = {
        **_COMMIT,
        "compression": _CODECS[settings.writer["compression"]],
        "maxRecordsPerFile": str(max(1, int(settings.target_bytes / _row_bytes(job)))),
        "parquet.block.size": str(settings.row_group_bytes),
        "parquet.block.row.count.limit": str(settings.row_group_rows),
        "parquet.page.size": str(settings.writer["data_page_size"]),
        "parquet.dictionary.page.size": str(settings.writer["dictionary_pagesize_limit"]),
    }
    if settings.writer["compression_level"] is not None:
        options["parquet.compression.codec.zstd.level"] = str(settings.writer["compression_level"])
    return options


def _row_bytes(job: WriteJob) -> float:
    """The estimated size of a row: the table's average so far, or a guess by type."""
    head = None if job.keys else job.metadata.head_snapshot()
    if head is not None:
        rows, size = (head.summary.get(name, "") for name in ("total-records", "total-files-size"))
        if rows.isdigit() and size.isdigit() and int(rows) and int(size):
            return int(size) / int(rows)
    return max(1.0, float(sum(_width(each.field_type) for each in job.layout.schema.fields)))


_EIGHT_BYTES = (LongType, DoubleType, TimeType, TimestampType, TimestamptzType)


def _width(kind: IcebergType) -> float:
    """The estimated bytes of a value, about half of them compressed away; strings and lists are guesses."""
    match kind:
        case StructType():
            return sum(_width(each.field_type) for each in kind.fields)
        case ListType():
            return 4 * _width(kind.element_type)
        case MapType():
            return 4 * (_width(kind.key_type) + _width(kind.value_type))
        case BooleanType():
            return 0.2
        case UUIDType():
            return 16
        case FixedType():
            return len(kind)
        case DecimalType():
            return math.ceil(kind.precision / 4)
    return 5 if isinstance(kind, _EIGHT_BYTES) else 10 if not _is_short(kind) else 2.5


def _is_short(kind: IcebergType) -> bool:
    return str(kind) in ("int", "float", "date")


# Footers


def _footers(paths: list[str], job: WriteJob) -> dict[str, Any]:
    if len(paths) <= _FOOTERS_ON_DRIVER:
        with ThreadPoolExecutor(_READERS) as pool:
            return dict(zip(paths, pool.map(partial(_read_footer, job.storage), paths), strict=True))
    frame = job.spark.createDataFrame([(path,) for path in paths], "path string")
    read = by_value(partial(executor.read_footers, s3_options(job.storage, paths[0])))
    found = frame.mapInArrow(read, executor.FOOTERS).collect()
    return {row["path"]: pickle.loads(row["footer"]) for row in found}  # noqa: S301 - pickled by Frazil's functions


def _read_footer(storage: Storage, path: str) -> Any:
    with storage.open_input(path) as stream:
        return pq.read_metadata(stream)


def _check_types(path: str, footer: Any, job: WriteJob) -> None:
    """Another thread may change settings for types and ids while Spark writes (rule P38)."""
    legacy = _LEGACY & set(footer.metadata or {})
    found = footer.schema.to_arrow_schema()
    wrong = [] if legacy else list(_differences(found, job.layout.target, ""))
    if legacy or wrong or found.names != job.layout.target.names:
        raise StorageError(
            f"The file {path} does not match the requested schema or encoding; nothing was committed",
            evidence="; ".join(wrong) or f"the file has the columns {found.names}, {sorted(legacy)}",
            advice=f"Let no other thread of this session change {', '.join(_HELD)} while rows are written",
        )


def _differences(found: Any, wanted: Any, path: str) -> Iterator[str]:
    for mine, theirs in zip(found, wanted, strict=False):
        name = f"{path}.{theirs.name}" if path else theirs.name
        ids = [(each.metadata or {}).get(b"PARQUET:field_id") for each in (mine, theirs)]
        if ids[0] != ids[1]:
            yield f"{name!r} has the field id {ids[0]} instead of {ids[1]}"
        if pa.types.is_struct(theirs.type) and pa.types.is_struct(mine.type):
            yield from _differences(mine.type, theirs.type, name)
        elif _plain(mine.type) != _plain(theirs.type):
            yield f"{name!r} has the type {mine.type} instead of {theirs.type}"


def _plain(kind: Any) -> Any:
    if pa.types.is_large_string(kind):
        return pa.string()
    return pa.binary() if pa.types.is_large_binary(kind) else kind


# The Arrow writer


def _write_with_arrow(frame: Frame, folder: _Folder, job: WriteJob) -> list[_File]:
    work = by_value(partial(executor.write_rows, arrow_job(folder.path, job)))
    rows = frame.mapInArrow(work, executor.WRITTEN).collect()
    return [returned(row) for row in rows]


def arrow_job(folder: str, job: WriteJob) -> dict[str, Any]:
    """What ``executor.write_rows`` needs to know."""
    layout, settings = job.layout, job.layout.settings
    return {
        "folder": folder,
        "s3": s3_options(job.storage, folder),
        "partitioned": job.partitioned,
        "schema": pa.schema([_relaxed(field) for field in layout.target]),
        "names": [each.name for each in layout.schema.fields],
        "floats": {each.field_id: each.path for each in layout.plan.floats},
        "uuids": {each.field_id: each.path for each in layout.plan.uuids},
        "writer": dict(settings.writer),
        "row_group_rows": settings.row_group_rows,
        # A file's size is checked after each row group, so a file of several row groups stays near its target.
        "flush_bytes": min(settings.row_group_bytes, max(1, settings.target_bytes // 4)),
        "target_bytes": settings.target_bytes,
        "suffix": "-deletes" if job.keys else "",
    }


def _relaxed(field: Any) -> Any:
    """The field with nulls allowed at all levels; its metadata has the original requirement."""
    required = {} if field.nullable else {b"required": b"true"}
    return arrow.field(field.name, _relaxed_type(field.type), metadata={**(field.metadata or {}), **required})


def _relaxed_type(kind: Any) -> Any:
    if pa.types.is_struct(kind):
        return arrow.struct([_relaxed(field) for field in kind])
    if pa.types.is_large_list(kind):
        return arrow.large_list(_relaxed(kind.value_field))
    if pa.types.is_list(kind):
        return arrow.list_(_relaxed(kind.value_field))
    if pa.types.is_map(kind):
        return arrow.map_(_relaxed(kind.key_field).with_nullable(False), _relaxed(kind.item_field))
    return kind


def returned(row: Any) -> _File:
    nans, signs, nulls = pickle.loads(row["observed"])  # noqa: S301 - pickled by Frazil's functions
    observed = statistics.Observed(nans=nans, uuid_signs=signs)
    footer = pickle.loads(row["footer"])  # noqa: S301
    return _File(row["path"], row["partition"], row["size"], footer, observed, nulls)


# Checking the files


def _check_rows(files: Sequence[_File], expected: int) -> None:
    """The files must hold exactly the rows that Spark processed (rule P38)."""
    written = sum(each.footer.num_rows for each in files)
    if written != expected:
        raise StorageError(
            f"Spark processed {expected} rows, but the files it wrote hold {written}; nothing was committed",
            advice="See that the driver and the executors reach the same file system, then call again",
        )


def _leaf_nulls(footer: Any) -> dict[str, int]:
    nulls: dict[str, int] = {}
    for group in range(footer.num_row_groups):
        for index in range(footer.num_columns):
            chunk = footer.row_group(group).column(index)
            known = chunk.statistics is not None and chunk.statistics.has_null_count
            # Without a count every value may be null, and a required column is refused.
            found = chunk.statistics.null_count if known else chunk.num_values
            nulls[chunk.path_in_schema] = nulls.get(chunk.path_in_schema, 0) + found
    return nulls


def _check_nulls(files: Sequence[_File], job: WriteJob) -> None:
    totals: dict[str, int] = {}
    for file in files:
        for name, count in file.nulls.items():
            totals[name] = totals.get(name, 0) + count
    lines = []
    if job.native:
        for field, in_files in zip(job.layout.schema.fields, job.layout.target.names, strict=True):
            if isinstance(field.field_type, _NULLS_OBSERVED):
                continue
            if field.required and totals.get(in_files):
                lines.append(_null_line(field.name, field, totals[in_files]))
    else:
        for name, count in sorted(totals.items()):
            lines.append(_null_line(name, job.layout.schema.find_field(name), count))
    _raise_misfits(lines)


def _described(file: _File, job: WriteJob) -> DataFile:
    partition = decode_partition(file.partition, job.spec, job.layout.schema) if job.partitioned else ()
    if partition is None:
        partition = _partition_of_first_row(file, job)
    if not job.native:
        return data_file(file.path, file.size, file.footer, file.observed, job.layout, partition)
    floats = {each.field_id for each in job.layout.plan.floats}
    uncertain = _with_nan(file.footer, job.layout.plan)
    # The count is known only where it is zero.
    none = floats - uncertain if _SHOWS_NAN.match(file.footer.created_by or "") else ()
    observed = statistics.Observed(nans=dict.fromkeys(none, 0))
    made = data_file(file.path, file.size, file.footer, observed, job.layout, partition)
    lower = {each: bound for each, bound in made.lower_bounds.items() if each not in uncertain}
    upper = {each: bound for each, bound in made.upper_bounds.items() if each not in uncertain}
    for field_id in floats & lower.keys():
        # Some readers distinguish -0.0 from 0.0 in bounds but not in rows.
        lower[field_id] = _zero(lower[field_id], negative=True)
        upper[field_id] = _zero(upper[field_id], negative=False)
    return replace(made, lower_bounds=lower, upper_bounds=upper)


def _zero(bound: bytes, *, negative: bool) -> bytes:
    """The bound; a zero gets the given sign."""
    if bound[:-1].strip(b"\x00") or bound[-1] not in (0x00, 0x80):
        return bound
    return bound[:-1] + (b"\x80" if negative else b"\x00")


def _with_nan(footer: Any, plan: statistics.Plan) -> set[int]:
    """Columns with unreliable bounds: Java's writer treats NaN as the largest number, or writes no bounds."""
    floats = {each.field_id for each in plan.floats}
    found = set()
    for index in range(footer.num_columns):
        column = plan.columns[footer.schema.column(index).path]
        if column.field_id in floats and any(
            _is_uncertain(footer.row_group(group).column(index)) for group in range(footer.num_row_groups)
        ):
            found.add(column.field_id)
    return found


def _is_uncertain(chunk: Any) -> bool:
    known = chunk.statistics
    if known is None or not known.has_min_max:
        return known is None or known.null_count < chunk.num_values
    return math.isnan(known.min_raw) or math.isnan(known.max_raw)


def _partition_of_first_row(file: _File, job: WriteJob) -> tuple[Any, ...]:
    import uuid

    with job.storage.open_input(file.path) as stream:
        row = next(pq.ParquetFile(stream).iter_batches(batch_size=1))
    values = []
    for source in job.layout.partition:
        value = None if source.path is None else source.transform(column_at(row, source.path))[0].as_py()
        values.append(uuid.UUID(bytes=value) if source.is_uuid and value is not None else value)
    return tuple(values)
