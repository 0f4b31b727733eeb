"""What executors run for a write: Arrow's Parquet writer, reading of footers, exact decimal arithmetic.

Pickled by value, so that executors need only pyarrow: import nothing else here but the standard library.
"""

from __future__ import annotations

import contextlib
import pickle
import secrets
from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute
import pyarrow.fs as pafs
import pyarrow.parquet as pq

arrow: Any = pa
compute: Any = pyarrow.compute

WRITTEN = "path string, partition string, rows bigint, size bigint, footer binary, observed binary"
FOOTERS = "path string, footer binary"


# Files


def open_file_system(path: str, s3: dict[str, Any]) -> tuple[Any, str]:
    """The file system of a path in the table's metadata, and the path within it."""
    scheme, separator, rest = path.partition("://")
    if not separator or scheme == "file":
        local = rest if separator else path[5:] if path.startswith("file:") else path
        return pafs.LocalFileSystem(), local
    if scheme in ("s3", "s3a", "s3n"):
        return pafs.S3FileSystem(**s3), rest
    return pafs.FileSystem.from_uri(path)


def _batch(ddl: str, rows: list[tuple[Any, ...]]) -> Any:
    kinds = {"bigint": pa.int64(), "string": pa.string(), "binary": pa.binary()}
    columns = [each.split() for each in ddl.split(", ")]
    arrays = [arrow.array([row[at] for row in rows], kinds[kind]) for at, (_, kind) in enumerate(columns)]
    return arrow.RecordBatch.from_arrays(arrays, names=[name for name, _ in columns])


def read_footers(s3: dict[str, Any], batches: Iterable[Any]) -> Iterator[Any]:
    """The footers of the files with these paths."""
    for batch in batches:
        found = []
        for path in batch.column(0).to_pylist():
            system, inside = open_file_system(path, s3)
            with system.open_input_file(inside) as stream:
                found.append((path, pickle.dumps(pq.read_metadata(stream))))
        yield _batch(FOOTERS, found)


# Rows into files


def write_rows(job: dict[str, Any], batches: Iterable[Any]) -> Iterator[Any]:
    """Write the rows of a task. They come sorted by partition, whose text is the last column if the table has any.

    A failed task leaves files behind; the driver deletes every file that no task returned.
    """
    writer = _Writer(job)
    try:
        for batch in batches:
            for partition, rows in _by_partition(batch, job["partitioned"]):
                writer.add(partition, rows)
        writer.finish()
    except BaseException:
        writer.abandon()
        raise
    if writer.done:
        yield _batch(WRITTEN, writer.done)


def _by_partition(batch: Any, partitioned: bool) -> Iterator[tuple[str, Any]]:
    if not partitioned:
        yield "", batch
        return
    last = batch.num_columns - 1
    runs = compute.run_end_encode(batch.column(last))
    rows = arrow.RecordBatch.from_arrays(batch.columns[:last], names=batch.schema.names[:last])
    start = 0
    for end, partition in zip(runs.run_ends.to_pylist(), runs.values.to_pylist(), strict=True):
        yield partition, rows.slice(start, end - start)
        start = end


class _Writer:
    """The files of one task, one at a time."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.done: list[tuple[Any, ...]] = []
        self._job = job
        self._system, self._folder = open_file_system(job["folder"], job["s3"])
        self._partition: str | None = None
        self._writer: Any = None
        self._out: Any = None
        self._waiting: list[Any] = []
        self._bytes = 0
        self._rows = 0

    def add(self, partition: str, rows: Any) -> None:
        if partition != self._partition:
            self.finish()
            self._partition = partition
        if not rows.num_rows:
            return
        if self._writer is None:
            self._open()
        fitting = self._fitting(rows)
        self._observe(fitting)
        self._waiting.append(fitting)
        self._rows += fitting.num_rows
        self._bytes += fitting.nbytes
        if self._bytes >= self._job["flush_bytes"] or self._rows >= self._job["row_group_rows"]:
            self._flush()
            if self._out.tell() >= self._job["target_bytes"]:
                self.finish()

    def _open(self) -> None:
        # Random, so that attempts of one task never share a name.
        self._name = f"{secrets.token_hex(16)}{self._job['suffix']}.parquet"
        # The driver made the folder. If it is gone, the write has failed, and a late task must not create it again.
        self._out = self._system.open_output_stream(f"{self._folder}/{self._name}")
        self._footers: list[Any] = []
        self._nans = dict.fromkeys(self._job["floats"], 0)
        self._signs: dict[int, set[Any]] = {field_id: set() for field_id in self._job["uuids"]}
        self._nulls: dict[str, int] = {}
        self._writer = pq.ParquetWriter(
            self._out, self._job["schema"], metadata_collector=self._footers, **self._job["writer"]
        )

    def _fitting(self, rows: Any) -> Any:
        arrays = []
        for field, name, values in zip(self._job["schema"], self._job["names"], rows.columns, strict=True):
            arrays.append(convert(values, field.type, name, self._nulls))
            if is_required(field):
                count_nulls(self._nulls, name, arrays[-1].null_count)
        return arrow.RecordBatch.from_arrays(arrays, schema=self._job["schema"])

    def _observe(self, rows: Any) -> None:
        for field_id, path in self._job["floats"].items():
            self._nans[field_id] += compute.sum(compute.is_nan(_at(rows, path)), min_count=0).as_py()
        for field_id, path in self._job["uuids"].items():
            values = _at(rows, path)
            values = values.storage if isinstance(values.type, pa.BaseExtensionType) else values
            tops = [compute.binary_slice(values, at, at + 1).cast(pa.binary()) for at in (0, 8)]
            high, low = (compute.greater_equal(top, pa.scalar(b"\x80")) for top in tops)
            pairs = arrow.table({"high": high, "low": low}).group_by(["high", "low"]).aggregate([]).to_pylist()
            self._signs[field_id] |= {(pair["high"], pair["low"]) for pair in pairs if pair["high"] is not None}

    def _flush(self) -> None:
        if self._waiting:
            table = arrow.Table.from_batches(self._waiting, schema=self._job["schema"]).combine_chunks()
            self._writer.write_table(table, row_group_size=self._job["row_group_rows"])
        self._waiting, self._bytes, self._rows = [], 0, 0

    def finish(self) -> None:
        if self._writer is None:
            return
        self._flush()
        self._writer.close()
        size = self._out.tell()
        self._out.close()
        self._writer = None
        footer = self._footers[0]
        observed = pickle.dumps((self._nans, self._signs, self._nulls))
        # The driver's own form of the folder, as the table's metadata has it.
        path = f"{self._job['folder']}/{self._name}"
        self.done.append((path, self._partition or "", footer.num_rows, size, pickle.dumps(footer), observed))

    def abandon(self) -> None:
        if self._writer is None:
            return
        with contextlib.suppress(Exception):
            self._writer.close()
        # Otherwise the writer would try again when it is collected.
        self._writer.is_open = False
        with contextlib.suppress(Exception):
            self._out.close()


def _at(rows: Any, path: tuple[int, ...]) -> Any:
    column = rows.column(path[0])
    return compute.struct_field(column, list(path[1:])) if len(path) > 1 else column


# From the types that Spark gives to those of the files


def convert(values: Any, kind: Any, name: str, nulls: dict[str, int]) -> Any:
    """Values in a type of the files. Nulls in required fields are counted into ``nulls``.

    A field that takes no null has the metadata ``required``: in the files everything may be null, as Arrow's writer
    refuses each null in a required field, even under a struct that is null itself.
    """
    if isinstance(kind, pa.BaseExtensionType):
        return arrow.ExtensionArray.from_storage(kind, _uuids(values))
    if pa.types.is_struct(kind):
        return _struct(values, kind, name, nulls)
    if pa.types.is_large_list(kind) or pa.types.is_list(kind):
        return _list(values, kind, name, nulls)
    if pa.types.is_map(kind):
        return _map(values, kind, name, nulls)
    if pa.types.is_time(kind) and pa.types.is_int64(values.type):
        return values.cast(pa.int64()).view(kind)
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        # Spark does not check that strings are valid UTF-8, and readers in other languages fail on them.
        values.validate(full=True)
    return values.cast(kind)


def count_nulls(nulls: dict[str, int], name: str, found: int) -> None:
    if found:
        nulls[name] = nulls.get(name, 0) + found


def is_required(field: Any) -> bool:
    return bool(field.metadata) and field.metadata.get(b"required") == b"true"


def _uuids(values: Any) -> Any:
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        digits = compute.replace_substring(values, "-", "").to_pylist()
        return arrow.array([None if each is None else bytes.fromhex(each) for each in digits], arrow.binary(16))
    return values.cast(arrow.binary(16))


def _struct(values: Any, kind: Any, name: str, nulls: dict[str, int]) -> Any:
    # Flattening puts the struct's own nulls onto its fields.
    hidden = values.null_count
    children = []
    for position, child in enumerate(values.flatten()):
        field = kind.field(position)
        inner = f"{name}.{field.name}"
        children.append(convert(child, field.type, inner, nulls))
        if is_required(field):
            count_nulls(nulls, inner, children[-1].null_count - hidden)
    return arrow.StructArray.from_arrays(children, fields=list(kind), mask=values.is_null() if hidden else None)


def _offsets(values: Any) -> Any:
    """From 0, for the values that ``flatten`` gives: without those of null lists and of rows sliced away."""
    lengths = compute.fill_null(compute.list_value_length(values).cast(pa.int64()), 0)
    return arrow.concat_arrays([arrow.array([0], pa.int64()), compute.cumulative_sum(lengths)])


def _list(values: Any, kind: Any, name: str, nulls: dict[str, int]) -> Any:
    elements = convert(values.flatten(), kind.value_type, f"{name}.element", nulls)
    if is_required(kind.value_field):
        count_nulls(nulls, f"{name}.element", elements.null_count)
    mask = values.is_null() if values.null_count else None
    if pa.types.is_large_list(kind):
        return arrow.LargeListArray.from_arrays(_offsets(values), elements, type=kind, mask=mask)
    return arrow.ListArray.from_arrays(_offsets(values).cast(pa.int32()), elements, type=kind, mask=mask)


def _map(values: Any, kind: Any, name: str, nulls: dict[str, int]) -> Any:
    given = values.type
    pair = arrow.struct([given.key_field.with_name("key"), given.item_field.with_name("value")])
    pairs = values.cast(arrow.large_list(pair))
    given_keys, given_items = pairs.flatten().flatten()
    keys = convert(given_keys, kind.key_type, f"{name}.key", nulls)
    items = convert(given_items, kind.item_type, f"{name}.value", nulls)
    if is_required(kind.item_field):
        count_nulls(nulls, f"{name}.value", items.null_count)
    mask = values.is_null() if values.null_count else None
    return arrow.MapArray.from_arrays(_offsets(pairs).cast(pa.int32()), keys, items, type=kind, mask=mask)


# Decimals


def unscaled(value: Decimal, scale: int) -> int:
    """The unscaled value, exactly: decimal contexts round to 28 digits."""
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    number = int("".join(map(str, digits)) or "0")
    shift = scale + exponent
    number = number * int(10**shift) if shift >= 0 else number // int(10**-shift)
    return -number if sign else number


def scaled(number: int, scale: int) -> Decimal:
    return Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -scale))


def truncated_decimal(value: Decimal, width: int, scale: int) -> str:
    number = unscaled(value, scale)
    return str(scaled(number - number % width, scale))


def decimal_bucket(value: Decimal, buckets: int, scale: int) -> int:
    number = unscaled(value, scale)
    bits = (number if number >= 0 else ~number).bit_length()
    return (murmur3(number.to_bytes(bits // 8 + 1, "big", signed=True)) & 0x7FFFFFFF) % buckets


def murmur3(data: bytes, seed: int = 0) -> int:
    """Unsigned."""
    mask = 0xFFFFFFFF
    result = seed
    for start in range(0, len(data), 4):
        block = data[start : start + 4]
        mixed = int.from_bytes(block, "little") * 0xCC9E2D51 & mask
        mixed = ((mixed << 15 | mixed >> 17) & mask) * 0x1B873593 & mask
        result ^= mixed
        if len(block) == 4:
            result = ((result << 13 | result >> 19) & mask) * 5 + 0xE6546B64 & mask
    result ^= len(data)
    result = (result ^ result >> 16) * 0x85EBCA6B & mask
    result = (result ^ result >> 13) * 0xC2B2AE35 & mask
    return result ^ result >> 16
