"""What executors run on existing files: write position deletes, and copy the remaining rows.

Pickled by value, like executor.py, so that executors need only pyarrow: import nothing here but the standard library,
pyarrow and executor.py.
"""

from __future__ import annotations

import array
import bisect
import os
import pickle
import secrets
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from frazil.on_spark.executor import open_file_system

arrow: Any = pa
compute: Any = pc
parquet: Any = pq
_ID = b"PARQUET:field_id"
MARK = -1
"""A position that no row has. It announces a file to copy and sorts before all positions."""
MARKED = "file int, path string, rows bigint, repeated bigint, size bigint, first bigint, last bigint, footer binary"
COPIED = (
    "first_file int, path string, rows bigint, size bigint, footer binary, observed binary, "
    "sources binary, firsts binary, lengths binary"
)


# Files


class _FileSystems:
    """File systems of one task, opened once."""

    def __init__(self, s3: dict[str, Any]) -> None:
        self._s3 = s3
        self._open: dict[str, pafs.FileSystem] = {}

    def find(self, path: str) -> tuple[pafs.FileSystem, str]:
        scheme, separator, inside = path.partition("://")
        if not separator:
            # Iceberg Java writes file:/a, with one slash.
            scheme, inside = "", path.removeprefix("file:")
        if scheme not in self._open:
            self._open[scheme], inside = open_file_system(path, self._s3)
        return self._open[scheme], inside

    def create(self, path: str) -> Any:
        system, inside = self.find(path)
        if isinstance(system, pafs.LocalFileSystem):
            os.makedirs(os.path.dirname(inside), exist_ok=True)
        return system.open_output_stream(inside)

    def open(self, path: str) -> Any:
        system, inside = self.find(path)
        return system.open_input_file(inside)


# Deleted rows


def write_positions(job: dict[str, Any], batches: Iterable[Any]) -> Iterator[Any]:
    """One position delete file for each data file. The batches hold (file, position), sorted, all of one file in one
    task; a position that comes twice is written once and counted.
    """
    file_systems = _FileSystems(job["s3"])
    schema = pa.schema(
        [
            arrow.field(
                "file_path", arrow.dictionary(pa.int32(), pa.string()), nullable=False, metadata={_ID: job["path_id"]}
            ),
            arrow.field("pos", pa.int64(), nullable=False, metadata={_ID: job["position_id"]}),
        ]
    )
    for number, positions in _by_file(batches):
        rows = compute.unique(positions)
        path = f"{job['folder']}/{number:05d}-{secrets.token_hex(16)}-deletes.parquet"
        codes = arrow.repeat(arrow.scalar(0, pa.int32()), len(rows))
        named = arrow.DictionaryArray.from_arrays(codes, arrow.array([job["paths"][number]], pa.string()))
        footers: list[Any] = []
        with file_systems.create(path) as out:
            writer: Any = parquet.ParquetWriter(
                out, schema, metadata_collector=footers, use_dictionary=["file_path"], **job["writer"]
            )
            writer.write_batch(arrow.RecordBatch.from_arrays([named, rows], schema=schema))
            writer.close()
            size = out.tell()
        yield _row(
            MARKED,
            file=number,
            path=path,
            rows=len(rows),
            repeated=len(positions) - len(rows),
            size=size,
            first=rows[0].as_py(),
            last=rows[len(rows) - 1].as_py(),
            footer=pickle.dumps(footers[0]),
        )


def _field(name: str, kind: Any, field_id: str) -> Any:
    return arrow.field(name, kind, nullable=False, metadata={_ID: field_id})


def _by_file(batches: Iterable[Any]) -> Iterator[tuple[int, Any]]:
    """Each file's positions together, which may come in several batches."""
    current: int | None = None
    parts: list[Any] = []
    for batch in batches:
        runs = compute.run_end_encode(batch.column(0))
        start = 0
        for end, number in zip(runs.run_ends.to_pylist(), runs.values.to_pylist(), strict=True):
            if number != current:
                if current is not None:
                    yield current, arrow.concat_arrays(parts)
                current, parts = number, []
            parts.append(batch.column(1).slice(start, end - start))
            start = end
    if current is not None:
        yield current, arrow.concat_arrays(parts)


def _row(ddl: str, **values: Any) -> Any:
    kinds = {"int": pa.int32(), "bigint": pa.int64(), "string": pa.string(), "binary": pa.binary()}
    columns = [each.split() for each in ddl.split(", ")]
    return arrow.RecordBatch.from_arrays(
        [arrow.array([values[name]], kinds[kind]) for name, kind in columns], names=[name for name, _ in columns]
    )


# Copied rows


def write_copies(job: dict[str, Any], batches: Iterable[Any]) -> Iterator[Any]:
    """Copy files without some rows. The batches hold (file, position) of rows to leave out, sorted, each file
    introduced by ``MARK``; files of one group have neighbouring numbers and come in one task.
    """
    file_systems = _FileSystems(job["s3"])
    output: _Output | None = None
    group: int | None = None
    for number, positions in _by_file(batches):
        source = job["files"][number]
        if output is None or source["group"] != group:
            if output is not None:
                yield from output.finish()
            output, group = _Output(job, file_systems, number), source["group"]
        gone = [positions.slice(1), *(_positions_in(file_systems, path, source["path"]) for path in source["deletes"])]
        with file_systems.open(source["path"]) as stream:
            yield from _copy(job, source, pq.ParquetFile(stream), arrow.concat_arrays(gone), number, output)
    if output is not None:
        yield from output.finish()


def _positions_in(file_systems: _FileSystems, deletes: str, path: str) -> Any:
    """The rows of one data file that a position delete file deletes."""
    with file_systems.open(deletes) as stream:
        file = pq.ParquetFile(stream)
        names = _position_columns(file)
        table = file.read(columns=list(names))
    mine = compute.equal(table.column(names[0]).cast(pa.string()), path)
    return arrow.concat_arrays(
        [arrow.array([], pa.int64()), *table.column(names[1]).filter(mine).cast(pa.int64()).chunks]
    )


def _position_columns(file: Any) -> tuple[str, str]:
    ids = {(field.metadata or {}).get(_ID): field.name for field in file.schema_arrow}
    return ids.get(b"2147483546", "file_path"), ids.get(b"2147483545", "pos")


def _copy(
    job: dict[str, Any], source: dict[str, Any], file: Any, gone: Any, number: int, output: _Output
) -> Iterator[Any]:
    gone = compute.unique(gone)
    gone = gone.take(compute.sort_indices(gone))
    positions = memoryview(gone.buffers()[1] or b"").cast("B").cast("q")[: len(gone)]
    at = 0
    found = _with_ids(file.schema_arrow, job["mapping"])
    for batch in file.iter_batches(batch_size=job["batch_rows"], use_threads=False):
        length = batch.num_rows
        low, high = bisect.bisect_left(positions, at), bisect.bisect_left(positions, at + length)
        left_out = [position - at for position in positions[low:high]]
        rows = _project(batch, found, job["schema"], source["constants"])
        if left_out:
            keep = bytearray(b"\x01") * length
            for position in left_out:
                keep[position] = 0
            mask = arrow.Array.from_buffers(pa.uint8(), length, [None, pa.py_buffer(bytes(keep))]).cast(pa.bool_())
            rows = rows.filter(mask)
        yield from output.add(rows, number, at, left_out)
        at += length


class _Output:
    """The output files of one group of sources, written one after the other."""

    def __init__(self, job: dict[str, Any], file_systems: _FileSystems, first_file: int) -> None:
        self._job = job
        self._places = file_systems
        self._first_file = first_file
        self._writer: Any = None

    def _open(self) -> None:
        self.path = f"{self._job['folder']}/{self._first_file:05d}-{secrets.token_hex(16)}.parquet"
        self._out = self._places.create(self.path)
        self._footers: list[Any] = []
        self._writer = pq.ParquetWriter(
            self._out, self._job["schema"], metadata_collector=self._footers, **self._job["writer"]
        )
        self._waiting: list[Any] = []
        self._waiting_rows = 0
        self._rows = 0
        self._nans = dict.fromkeys(self._job["floats"], 0)
        self._signs: dict[int, set[tuple[bool, bool]]] = {each: set() for each in self._job["uuids"]}
        self._sources, self._firsts, self._lengths = array.array("q"), array.array("q"), array.array("q")

    def add(self, rows: Any, source: int, at: int, left_out: list[int]) -> Iterator[Any]:
        """Rows of a source from its row ``at`` on, without those left out (counted from ``at``)."""
        if not rows.num_rows:
            return
        if self._writer is None:
            self._open()
        self._note_runs(source, at, rows.num_rows + len(left_out), left_out)
        self._observe(rows)
        self._waiting.append(rows)
        self._waiting_rows += rows.num_rows
        self._rows += rows.num_rows
        if self._waiting_rows >= self._job["row_group_rows"]:
            self._flush()
            if self._out.tell() >= self._job["target_bytes"]:
                yield from self.finish()

    def _note_runs(self, source: int, at: int, length: int, left_out: list[int]) -> None:
        start = 0
        for stop in (*left_out, length):
            if stop > start:
                self._note_run(source, at + start, stop - start)
            start = stop + 1

    def _note_run(self, source: int, first: int, length: int) -> None:
        same = len(self._sources) > 0 and self._sources[-1] == source
        if same and self._firsts[-1] + self._lengths[-1] == first:
            self._lengths[-1] += length
            return
        self._sources.append(source)
        self._firsts.append(first)
        self._lengths.append(length)

    def _observe(self, rows: Any) -> None:
        for field_id, path in self._job["floats"].items():
            self._nans[field_id] += compute.sum(compute.is_nan(_at(rows, path)), min_count=0).as_py()
        for field_id, path in self._job["uuids"].items():
            values = _at(rows, path)
            values = values.storage if isinstance(values.type, pa.BaseExtensionType) else values
            halves = [
                compute.greater_equal(compute.binary_slice(values, at, at + 1).cast(pa.binary()), pa.scalar(b"\x80"))
                for at in (0, 8)
            ]
            pairs = arrow.table({"a": halves[0], "b": halves[1]}).group_by(["a", "b"]).aggregate([]).to_pylist()
            self._signs[field_id] |= {(each["a"], each["b"]) for each in pairs if each["a"] is not None}

    def _flush(self) -> None:
        if self._waiting:
            table = arrow.Table.from_batches(self._waiting, schema=self._job["schema"])
            self._writer.write_table(table, row_group_size=self._job["row_group_rows"])
        self._waiting, self._waiting_rows = [], 0

    def finish(self) -> Iterator[Any]:
        if self._writer is None:
            return
        self._flush()
        self._writer.close()
        size = self._out.tell()
        self._out.close()
        self._writer = None
        yield _row(
            COPIED,
            first_file=self._first_file,
            path=self.path,
            rows=self._rows,
            size=size,
            footer=pickle.dumps(self._footers[0]),
            observed=pickle.dumps((self._nans, self._signs)),
            sources=self._sources.tobytes(),
            firsts=self._firsts.tobytes(),
            lengths=self._lengths.tobytes(),
        )


def _at(rows: Any, path: tuple[int, ...]) -> Any:
    found = rows.column(path[0])
    for position in path[1:]:
        found = compute.struct_field(found, [position])
    return found


# From the columns a file has to those the table has now, by field id


def _project(batch: Any, found: Any, wanted: Any, constants: dict[int, Any]) -> Any:
    """``constants``: columns that the file lacks and that have one value in all of it, as arrays of one row."""
    positions = {_field_id(field): index for index, field in enumerate(found)}
    arrays = []
    for field in wanted:
        index = positions.get(_field_id(field))
        if index is not None:
            arrays.append(_converted(batch.column(index), found.field(index), field))
        elif _field_id(field) in constants:
            one = constants[_field_id(field)]
            arrays.append(one.take(arrow.repeat(arrow.scalar(0, pa.int32()), batch.num_rows)))
        else:
            arrays.append(arrow.nulls(batch.num_rows, field.type))
    return arrow.RecordBatch.from_arrays(arrays, schema=wanted)


def _field_id(field: Any) -> int:
    return int((field.metadata or {}).get(_ID, -1))


def _with_ids(found: Any, mapping: list[dict[str, Any]]) -> Any:
    """The schema of a file; one without field ids gets those of the table's name mapping."""
    if any(_has_id(field) for field in found):
        return found
    return pa.schema([_mapped(field, field.name, mapping) for field in found])


def _has_id(field: Any) -> bool:
    return _field_id(field) >= 0 or any(_has_id(each) for each in _inner(field.type))


def _inner(kind: Any) -> list[Any]:
    if pa.types.is_struct(kind):
        return [kind.field(i) for i in range(kind.num_fields)]
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    return [kind.value_field] if pa.types.is_list(kind) or pa.types.is_large_list(kind) else []


def _mapped(field: Any, name: str, mapping: list[dict[str, Any]]) -> Any:
    known = next((each for each in mapping if name in each["names"]), {})
    kind, inner = field.type, known.get("fields") or []
    if pa.types.is_struct(kind):
        kind = arrow.struct([_mapped(each, each.name, inner) for each in _inner(kind)])
    elif pa.types.is_map(kind):
        # The specification fixes these names, whatever the file calls them.
        key, item = _mapped(kind.key_field, "key", inner), _mapped(kind.item_field, "value", inner)
        kind = arrow.map_(key, item)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        element = _mapped(kind.value_field, "element", inner)
        kind = arrow.large_list(element) if pa.types.is_large_list(kind) else arrow.list_(element)
    metadata = {_ID: str(known["field-id"]).encode()} if "field-id" in known else {}
    return field.with_type(kind).with_metadata(metadata)


def _converted(values: Any, found: Any, wanted: Any) -> Any:
    kind = wanted.type
    if values.type == kind and not pa.types.is_nested(kind):
        return values
    if pa.types.is_struct(kind) and pa.types.is_struct(values.type):
        return _struct(values, found, kind)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _list(values, found, kind)
    if pa.types.is_map(kind):
        return _map(values, found, kind)
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    if isinstance(kind, pa.BaseExtensionType):
        return arrow.ExtensionArray.from_storage(kind, values.cast(kind.storage_type))
    if pa.types.is_timestamp(kind):
        # Files count from 1970 in UTC, with a zone or without; only the label differs.
        return values.cast(arrow.timestamp(kind.unit, values.type.tz), safe=False).view(pa.int64()).view(kind)
    return values.cast(kind)


def _struct(values: Any, found: Any, kind: Any) -> Any:
    positions = {_field_id(found.type.field(i)): i for i in range(found.type.num_fields)}
    children = []
    for i in range(kind.num_fields):
        field = kind.field(i)
        index = positions.get(_field_id(field))
        if index is None:
            children.append(arrow.nulls(len(values), field.type))
        else:
            children.append(_converted(values.field(index), found.type.field(index), field))
    mask = values.is_null() if values.null_count else None
    return arrow.StructArray.from_arrays(children, fields=list(kind), mask=mask)


def _from_zero(values: Any) -> Any:
    return values if values.offset == 0 else arrow.concat_arrays([values, values.slice(0, 0)])


def _list(values: Any, found: Any, kind: Any) -> Any:
    values = _from_zero(values)
    inner = _converted(values.values, found.type.value_field, kind.value_field)
    mask = values.is_null() if values.null_count else None
    maker, offset = (
        (arrow.LargeListArray, pa.int64()) if pa.types.is_large_list(kind) else (arrow.ListArray, pa.int32())
    )
    return maker.from_arrays(values.offsets.cast(offset), inner, type=kind, mask=mask)


def _map(values: Any, found: Any, kind: Any) -> Any:
    values = _from_zero(values)
    keys = _converted(values.keys, found.type.key_field, kind.key_field)
    items = _converted(values.items, found.type.item_field, kind.item_field)
    mask = values.is_null() if values.null_count else None
    return arrow.MapArray.from_arrays(values.offsets, keys, items, type=kind, mask=mask)
