"""Writes delete files: position deletes and equality deletes. Files are durable when a function returns."""

from __future__ import annotations

import array
import contextlib
import itertools
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.schema import Schema, prune_columns
from pyiceberg.types import StructType
from pyroaring import BitMap64

from frazil.format.metadata import TableMetadata
from frazil.format.partitions import partition_key
from frazil.format.schemas import IdentityKey
from frazil.format.storage import Storage, storage_error
from frazil.model import PATH_FIELD, POSITION_FIELD, Content, DataFile
from frazil.runtime import SYSTEM, Runtime
from frazil.stage.arrow import OpenFile, Staging, WriteLayout, discard, layout_for
from frazil.stage.conform import conform_to

arrow: Any = pa
_GROUP_ROWS = 1 << 20
_SUFFIX = "-deletes"


def _column(name: str, field_id: int, kind: Any) -> Any:
    return arrow.field(name, kind, nullable=False, metadata={"PARQUET:field_id": str(field_id)})


_POSITIONS = pa.schema(
    [
        # One path, repeated: as a dictionary it takes four bytes a row in memory.
        _column("file_path", PATH_FIELD, arrow.dictionary(pa.int32(), pa.string())),
        _column("pos", POSITION_FIELD, pa.int64()),
    ]
)


# Position deletes


def stage_positions(
    by_file: Mapping[str, BitMap64],
    data_files: Mapping[str, DataFile],
    *,
    metadata: TableMetadata,
    storage: Storage,
    runtime: Runtime = SYSTEM,
) -> tuple[DataFile, ...]:
    """Write one position delete file per data file, under the data file's spec and partition (rule P15).

    ``data_files`` has the files that ``by_file`` names. A file without deleted rows gets no delete file. On any
    failure every file is removed again.
    """
    staging = _Positions(metadata, storage, runtime)
    try:
        for path, rows in by_file.items():
            if rows:
                staging.add(data_files[path], rows)
        storage.sync(staging.paths)
    except OSError as error:
        storage.delete(staging.paths)
        raise storage_error(error, f"Cannot write delete files to {metadata.location}") from error
    except BaseException:
        storage.delete(staging.paths)
        raise
    return tuple(staging.done)


class _Positions:
    """The position delete files of one call."""

    def __init__(self, metadata: TableMetadata, storage: Storage, runtime: Runtime) -> None:
        self.paths: list[str] = []
        self.done: list[DataFile] = []
        self._metadata = metadata
        self._storage = storage
        self._runtime = runtime

    def add(self, file: DataFile, rows: BitMap64) -> None:
        layout = layout_for(self._metadata, self._metadata.schema(), file.spec_id, {}, "copies")
        opened = self._create(file, layout)
        try:
            for batch in _batches(file.file_path, rows):
                opened.writer.write_batch(batch)
            opened.writer.close()
            size = opened.out.tell()
            opened.out.close()
        except BaseException:
            discard(opened)
            raise
        self.done.append(position_deletes(opened.path, size, opened.footers[0], file, rows.min(), rows.max()))

    def _create(self, file: DataFile, layout: WriteLayout) -> OpenFile:
        name = f"{len(self.paths):05d}-{self._runtime.new_uuid()}{_SUFFIX}.parquet"
        partition = partition_key(layout.spec, layout.schema, file.partition)
        path = layout.locations.new_data_location(name, partition)
        self.paths.append(path)
        out = self._storage.open_output(path)
        footers: list[Any] = []
        # Positions are all distinct, so a dictionary would be useless.
        settings = {**layout.settings.writer, "use_dictionary": ["file_path"]}
        try:
            writer = pq.ParquetWriter(out, _POSITIONS, metadata_collector=footers, **settings)
        except BaseException:
            with contextlib.suppress(Exception):
                out.close()
            raise
        return OpenFile(path, out, writer, footers)


def _batches(path: str, rows: BitMap64) -> Iterator[pa.RecordBatch]:
    """The rows in order, a row group at a time, so that memory does not grow with their number."""
    numbers = iter(rows)
    while len(some := array.array("q", itertools.islice(numbers, _GROUP_ROWS))):
        positions = arrow.Array.from_buffers(pa.int64(), len(some), [None, pa.py_buffer(some)])
        codes = arrow.repeat(arrow.scalar(0, pa.int32()), len(some))
        paths = arrow.DictionaryArray.from_arrays(codes, arrow.array([path], pa.string()))
        yield arrow.RecordBatch.from_arrays([paths, positions], schema=_POSITIONS)


def position_deletes(path: str, size: int, footer: Any, file: DataFile, first: int, last: int) -> DataFile:
    """The manifest's description of a position delete file for the rows ``first`` to ``last`` of one data file."""
    groups = [footer.row_group(position) for position in range(footer.num_row_groups)]
    count = footer.num_rows
    # Never truncated: equal bounds show a reader that the deletes apply to one file only.
    named = file.file_path.encode()
    return DataFile(
        file_path=path,
        record_count=count,
        file_size_in_bytes=size,
        spec_id=file.spec_id,
        partition=file.partition,
        content=Content.POSITION_DELETES,
        column_sizes={
            PATH_FIELD: sum(group.column(0).total_compressed_size for group in groups),
            POSITION_FIELD: sum(group.column(1).total_compressed_size for group in groups),
        },
        value_counts={PATH_FIELD: count, POSITION_FIELD: count},
        null_value_counts={PATH_FIELD: 0, POSITION_FIELD: 0},
        lower_bounds={PATH_FIELD: named, POSITION_FIELD: struct.pack("<q", first)},
        upper_bounds={PATH_FIELD: named, POSITION_FIELD: struct.pack("<q", last)},
        split_offsets=tuple(sorted(_start(group.column(0)) for group in groups)),
        referenced_data_file=file.file_path,
    )


def _start(column: Any) -> int:
    offset = column.dictionary_page_offset
    return int(column.data_page_offset if offset is None else min(offset, column.data_page_offset))


# Equality deletes


def key_schema(schema: Schema, field_ids: Sequence[int]) -> Schema:
    """The columns of a key alone; a field inside a struct brings the struct with only that field in it."""
    return _key_schema(IdentityKey(schema), frozenset(field_ids))


@lru_cache(maxsize=64)
def _key_schema(schema: IdentityKey, field_ids: frozenset[int]) -> Schema:
    return prune_columns(schema.value, set(field_ids))


def stage_keys(
    rows: pa.Table | Iterable[pa.RecordBatch],
    field_ids: Sequence[int],
    spec_id: int,
    *,
    metadata: TableMetadata,
    storage: Storage,
    runtime: Runtime = SYSTEM,
    options: Mapping[str, str] | None = None,
) -> tuple[DataFile, ...]:
    """Write equality delete files for every older row with one of these keys (rule P21).

    They apply to the whole table under an unpartitioned spec, or are split by partition under a spec whose source
    columns all belong to the key.

    ``rows`` have the table's current names, at least for the columns of the key. Raises SchemaMismatch.
    """
    schema = key_schema(metadata.schema(), field_ids)
    staging = Staging(layout_for(metadata, schema, spec_id, options or {}, "keys"), storage, runtime, _SUFFIX)
    target = staging.layout.target
    with staging.durable_or_gone():
        for batch in rows.to_batches() if isinstance(rows, pa.Table) else rows:
            if batch.num_rows:
                staging.add(conform_to(pick(batch, schema), schema, target))
    ids = tuple(sorted(field_ids))
    return tuple(replace(file, content=Content.EQUALITY_DELETES, equality_ids=ids) for file in staging.done)


def pick(batch: pa.RecordBatch, schema: Schema) -> pa.RecordBatch:
    """The columns that a narrower schema has, found by name, also inside structs."""
    arrays = [_picked(batch.column(each.name), each.field_type) for each in schema.fields]
    return arrow.RecordBatch.from_arrays(arrays, names=[each.name for each in schema.fields])  # type: ignore[no-any-return]


def _picked(array: Any, kind: Any) -> Any:
    if not isinstance(kind, StructType) or array.type.num_fields == len(kind.fields):
        return array
    children = [_picked(array.field(each.name), each.field_type) for each in kind.fields]
    mask = array.is_null() if array.null_count else None
    return arrow.StructArray.from_arrays(children, names=[each.name for each in kind.fields], mask=mask)
