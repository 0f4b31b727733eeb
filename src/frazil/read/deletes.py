"""Applies delete files to data files.

Position deletes name a file and a row in it. Equality deletes name values: a row is deleted when all
of the listed columns are equal, and NULL equals NULL. Each delete file is read once per scan, however many data files
it applies to.
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq
from pyiceberg.types import IcebergType
from pyroaring import BitMap64

from frazil.errors import CorruptMetadata
from frazil.format.arrow_schema import to_arrow_schema
from frazil.format.metadata import TableMetadata
from frazil.format.storage import Storage
from frazil.model import PATH_FIELD, POSITION_FIELD, Content, DataFile
from frazil.read.layout import Array, FileLayout, convert, fetch, file_layout
from frazil.read.parquet import opened
from frazil.read.plan import DeleteRef

pc: Any = pyarrow.compute
arrow: Any = pa
_NO_POSITIONS = memoryview(b"").cast("q")
_MANY_MORE = 8
"""With so many times as many keys as rows, the rows are indexed and not the keys."""


class Deletes:
    """The delete files of one scan."""

    def __init__(self, storage: Storage, metadata: TableMetadata) -> None:
        self._storage = storage
        self._metadata = metadata
        self._once = _OnceCache()
        self._types: dict[int, IcebergType] = {}

    def positions(self, refs: Sequence[DeleteRef], path: str) -> Positions:
        """The rows of one data file that position deletes remove."""
        found: list[memoryview] = []
        for ref in refs:
            if ref.file.content == Content.POSITION_DELETES:
                by_path = self._once.get(ref.file.file_path, partial(self._read_positions, ref.file))
                if path in by_path:
                    found.append(by_path[path])
        return Positions.of(found)

    def rows_by_file(self, file: DataFile) -> dict[str, BitMap64]:
        """Everything that one position delete file deletes: data file → rows."""
        found = self._once.get(file.file_path, partial(self._read_positions, file))
        return {path: BitMap64(rows) for path, rows in found.items()}

    def keys(self, refs: Sequence[DeleteRef]) -> list[Keys]:
        """The keys that equality deletes remove, one set for each list of columns."""
        groups: dict[tuple[int, ...], list[DataFile]] = {}
        for ref in refs:
            if ref.file.content == Content.EQUALITY_DELETES:
                groups.setdefault(tuple(sorted(ref.file.equality_ids)), []).append(ref.file)
        return [self._keys(field_ids, files) for field_ids, files in groups.items()]

    def _keys(self, field_ids: tuple[int, ...], files: list[DataFile]) -> Keys:
        def build() -> Keys:
            parts = [
                self._once.get((file.file_path, field_ids), partial(self._read_keys, file, field_ids)) for file in files
            ]
            columns = [arrow.concat_arrays([part[i] for part in parts]) for i in range(len(field_ids))]
            return Keys.of(field_ids, columns)

        found: Keys = self._once.get((field_ids, tuple(sorted(file.file_path for file in files))), build)
        return found

    def key_type(self, field_id: int) -> Any:
        """The type in which keys of one column are compared: the widest it ever had, even if dropped since."""
        if field_id not in self._types:
            for schema in (*self._metadata.schemas().values(), self._metadata.schema()):
                if field_id in schema.field_ids:
                    self._types[field_id] = schema.find_type(field_id)
        if field_id not in self._types:
            raise CorruptMetadata(f"An equality delete compares the field {field_id}, which no schema of the table has")
        kind = to_arrow_schema(self._types[field_id])
        return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind

    def _read_positions(self, file: DataFile) -> dict[str, memoryview]:
        with opened(self._storage, file) as parquet:
            names = _position_columns(parquet, file.file_path)
            table = parquet.read(columns=list(names))
        codes = table.column(names[0]).combine_chunks().cast(pa.large_string()).dictionary_encode()
        positions = convert(
            table.column(names[1]).combine_chunks(), pa.int64(), lambda: f"The position column of {file.file_path}"
        )
        if codes.null_count or positions.null_count:
            raise CorruptMetadata(f"The position delete file {file.file_path} holds a row without file or position")
        grouped = arrow.table({"code": codes.indices, "pos": positions}).group_by("code").aggregate([("pos", "list")])
        paths = codes.dictionary.to_pylist()
        return {
            paths[code]: _sorted_positions(rows.values)
            for code, rows in zip(grouped["code"].to_pylist(), grouped["pos_list"], strict=True)
        }

    def _read_keys(self, file: DataFile, field_ids: tuple[int, ...]) -> list[Array]:
        with opened(self._storage, file) as parquet:
            layout = file_layout(parquet, file.file_path, self._metadata.name_mapping)
            missing = [field_id for field_id in field_ids if layout.find(field_id) is None]
            if missing:
                raise CorruptMetadata(f"The equality delete file {file.file_path} lacks its key column {missing[0]}")
            leaves = {leaf for field_id in field_ids for leaf in layout.leaves_of(field_id)}
            batches = list(parquet.iter_batches(columns=[layout.leaves[leaf] for leaf in sorted(leaves)]))
        return [
            arrow.concat_arrays(
                [self.key_values(layout, batch, field_id, {}) for batch in batches]
                or [arrow.array([], self.key_type(field_id))]
            )
            for field_id in field_ids
        ]

    def key_values(self, layout: FileLayout, batch: pa.RecordBatch, field_id: int, missing: dict[int, Any]) -> Array:
        """A key column of a data or delete file, in the type keys are compared in."""
        kind = self.key_type(field_id)
        array = fetch(layout, batch, field_id, missing, kind)
        return convert(array, kind, lambda: f"The key column {field_id} of the file {layout.path}")


def _position_columns(parquet: pq.ParquetFile, path: str) -> tuple[str, str]:
    by_id = {(field.metadata or {}).get(b"PARQUET:field_id"): field.name for field in parquet.schema_arrow}
    names = parquet.schema_arrow.names
    found = []
    for field_id, usual in ((PATH_FIELD, "file_path"), (POSITION_FIELD, "pos")):
        name = by_id.get(str(field_id).encode()) or (usual if usual in names else None)
        if name is None:
            raise CorruptMetadata(f"The position delete file {path} lacks the column {usual!r}")
        found.append(name)
    return found[0], found[1]


def _sorted_positions(values: Array) -> memoryview:
    array = values.take(pc.sort_indices(values))
    data = array.buffers()[1]
    return memoryview(data).cast("B")[array.offset * 8 : (array.offset + len(array)) * 8].cast("q")


@dataclass(frozen=True, slots=True, eq=False)
class Positions:
    """Sorted row numbers, possibly repeated, from any number of delete files."""

    parts: tuple[memoryview, ...]

    @staticmethod
    def of(parts: list[memoryview]) -> Positions:
        return Positions(tuple(part for part in parts if len(part)))

    def __bool__(self) -> bool:
        return bool(self.parts)

    def distinct(self, rows: int) -> int:
        """How many rows of a file with this many rows are deleted."""
        return len({position for part in self.parts for position in part if 0 <= position < rows})

    def keep(self, start: int, length: int) -> Array | None:
        """False for each deleted row, among ``length`` rows from row ``start`` on; None if none is deleted."""
        stays: bytearray | None = None
        for part in self.parts:
            low = bisect.bisect_left(part, start)
            high = bisect.bisect_left(part, start + length)
            if low == high:
                continue
            if stays is None:
                stays = bytearray(b"\x01") * length
            for position in part[low:high]:
                stays[position - start] = 0
        if stays is None:
            return None
        return arrow.Array.from_buffers(pa.uint8(), length, [None, pa.py_buffer(bytes(stays))]).cast(pa.bool_())


@dataclass(frozen=True, slots=True, eq=False)
class Keys:
    """A set of key tuples that probes whole columns at once.

    Each column's values are numbered; the numbers of the columns before and of this one together are numbered again,
    so that any number of columns ends in one integer per row. NULL is a value like any other.
    """

    field_ids: tuple[int, ...]
    steps: tuple[tuple[Array, Array | None], ...]
    """For each column its distinct values, and the distinct combinations up to it. Those of the first column are its
    values."""

    @staticmethod
    def of(field_ids: tuple[int, ...], columns: Sequence[Array]) -> Keys:
        steps: list[tuple[Array, Array | None]] = []
        running: Array | None = None
        for column in columns:
            values = pc.unique(column)
            if len(columns) == 1:
                return Keys(field_ids, ((values, None),))
            codes = pc.index_in(column, value_set=values)
            distinct: Array | None = None
            if running is not None:
                combined = _combine(running, codes, len(values))
                distinct = pc.unique(combined)
                codes = pc.index_in(combined, value_set=distinct)
            running = codes
            steps.append((values, distinct))
        return Keys(field_ids, tuple(steps))

    def widened(self, kinds: Callable[[int], Any]) -> Keys:
        """The same keys in the types that keys of these columns are compared in by now."""
        types = [kinds(field_id) for field_id in self.field_ids]
        if all(values.type == kind for (values, _), kind in zip(self.steps, types, strict=True)):
            return self
        steps = (
            # Combinations consist of the numbers of values, which do not change.
            (convert(values, kind, lambda: "A key column"), distinct)
            for (values, distinct), kind in zip(self.steps, types, strict=True)
        )
        return Keys(self.field_ids, tuple(steps))

    def holds(self, columns: Sequence[Array]) -> Array:
        """True for each row whose key is in the set."""
        return pc.is_valid(self.numbers(columns))

    def numbers(self, columns: Sequence[Array]) -> Array:
        """The number of each row's key, counted in their order from 0 on; null: it is not in the set."""
        running: Array | None = None
        for column, (values, distinct) in zip(columns, self.steps, strict=True):
            codes = _numbers_in(column, values)
            running = codes if distinct is None else _numbers_in(_combine(running, codes, len(values)), distinct)
        return running


def _combine(before: Array, codes: Array, size: int) -> Array:
    return pc.add(pc.multiply(before.cast(pa.int64()), size), codes.cast(pa.int64()))


def _numbers_in(column: Array, values: Array) -> Array:
    """The number of each row's value among these distinct values; null: it is not one of them."""
    if len(values) < _MANY_MORE * len(column):
        return pc.index_in(column, value_set=values)
    # The side that is looked up is indexed anew at each call, so the shorter one is: the values in a few rows.
    wanted = pc.unique(column)
    found = pc.index_in(values, value_set=wanted)
    places = pc.indices_nonzero(pc.is_valid(found)).cast(pa.int32())
    numbers = pc.index_in(pc.index_in(column, value_set=wanted), value_set=found.take(places))
    return places.take(numbers)


class _OnceCache:
    """Computes each value once, even when several threads request it at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[Any, Future[Any]] = {}

    def get(self, key: Any, compute: Callable[[], Any]) -> Any:
        with self._lock:
            future = self._found.get(key)
            mine = future is None
            if future is None:
                future = self._found[key] = Future()
        if mine:
            try:
                future.set_result(compute())
            except BaseException as error:
                future.set_exception(error)
                raise
        return future.result()
