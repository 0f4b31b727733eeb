"""A Parquet file's columns by field id, and their projection to the table's (specification, "Column projection").

A file is never read by name: its columns are found by the ids in its own schema, or, in files without ids, by the
table's name mapping. Renames, reorderings, dropped and added columns and widened types all follow from that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType

from frazil.errors import CorruptMetadata, InvalidInput
from frazil.format.arrow_schema import to_arrow_schema

if TYPE_CHECKING:
    from pyiceberg.table.name_mapping import MappedField, NameMapping

# The stubs of pyarrow have no type for "an array of any kind" that its functions take.
Array = Any
pc: Any = pyarrow.compute
arrow: Any = pa
_ID = b"PARQUET:field_id"


@dataclass(frozen=True, slots=True, eq=False)
class FileColumn:
    """One column of a file, top-level or nested. Its leaf columns are ``first`` (inclusive) to ``last`` (exclusive)."""

    field_id: int | None
    name: str
    type: Any
    children: tuple[FileColumn, ...]
    first: int
    last: int

    def child(self, field_id: int) -> FileColumn | None:
        return next((each for each in self.children if each.field_id == field_id), None)


@dataclass(frozen=True, slots=True, eq=False)
class FileLayout:
    """A file's columns."""

    path: str
    columns: tuple[FileColumn, ...]
    leaves: tuple[str, ...]
    """The dotted path of every leaf column, as Parquet names it."""

    def top(self, field_id: int) -> FileColumn | None:
        return next((each for each in self.columns if each.field_id == field_id), None)

    def find(self, field_id: int) -> tuple[FileColumn, ...] | None:
        """The columns from the top down to the one with this id, through structs only; None if the file lacks it."""
        return _descend(self.columns, field_id)

    def leaves_for(self, schema: Schema) -> set[int]:
        """The leaf columns that reading these fields needs."""
        found: set[int] = set()
        for field in schema.fields:
            column = self.top(field.field_id)
            if column is not None:
                found |= _leaves(column, field.field_type)
        return found

    def leaves_of(self, field_id: int) -> set[int]:
        """The leaf columns that ``fetch`` needs for one field."""
        path = self.find(field_id)
        if path is None:
            return set()
        last = path[-1]
        # A struct's own NULLs show in any one of its leaves.
        return {last.first} if last.children else set(range(last.first, last.last))


def _descend(columns: tuple[FileColumn, ...], field_id: int) -> tuple[FileColumn, ...] | None:
    for column in columns:
        if column.field_id == field_id:
            return (column,)
        if pa.types.is_struct(column.type):
            below = _descend(column.children, field_id)
            if below is not None:
                return (column, *below)
    return None


def _leaves(column: FileColumn, kind: IcebergType) -> set[int]:
    everything = set(range(column.first, column.last))
    if isinstance(kind, StructType) and pa.types.is_struct(column.type):
        found: set[int] = set()
        for field in kind.fields:
            child = column.child(field.field_id)
            if child is not None:
                found |= _leaves(child, field.field_type)
        # The file has none of the requested fields: one leaf still shows where the struct itself is NULL.
        return found or {column.first}
    if isinstance(kind, ListType) and len(column.children) == 1:
        return _leaves(column.children[0], kind.element_type)
    return everything


def file_layout(file: pq.ParquetFile, path: str, mapping: NameMapping | None) -> FileLayout:
    """The file's columns with their ids. Raises InvalidInput for a file without ids when there is no name mapping."""
    columns = columns_of(file.schema_arrow, path, mapping)
    return FileLayout(path, columns, tuple(file.schema.column(i).path for i in range(len(file.schema))))


def columns_of(schema: pa.Schema, path: str, mapping: NameMapping | None) -> tuple[FileColumn, ...]:
    """A file's columns with their ids, from its schema as Arrow has it."""
    counter = _Counter()
    columns = tuple(_column(field, counter) for field in schema)
    if not _has_ids(columns):
        if mapping is None:
            raise InvalidInput(
                f"The file {path} has no field ids, and the table has no name mapping",
                advice="Set the table property schema.name-mapping.default, which says what each name stands for",
            )
        columns = tuple(_mapped(column, mapping.root) for column in columns)
    return columns


class _Counter:
    def __init__(self) -> None:
        self.next = 0


def _column(field: Any, counter: _Counter) -> FileColumn:
    first = counter.next
    children = tuple(_column(each, counter) for each in _inner_fields(field.type))
    if not children:
        counter.next += 1
    raw = (field.metadata or {}).get(_ID)
    return FileColumn(None if raw is None else int(raw), field.name, field.type, children, first, counter.next)


def _inner_fields(kind: Any) -> list[Any]:
    if pa.types.is_struct(kind):
        return [kind.field(i) for i in range(kind.num_fields)]
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return [kind.value_field]
    return []


def _has_ids(columns: Iterable[FileColumn]) -> bool:
    return any(column.field_id is not None or _has_ids(column.children) for column in columns)


def _mapped(column: FileColumn, mapping: list[MappedField], name: str | None = None) -> FileColumn:
    name = column.name if name is None else name
    found = next((each for each in mapping if name in each.names), None)
    inner = found.fields if found is not None else []
    children = tuple(_mapped(child, inner, _mapped_name(column, i)) for i, child in enumerate(column.children))
    field_id = None if found is None else found.field_id
    return FileColumn(field_id, column.name, column.type, children, column.first, column.last)


def _mapped_name(parent: FileColumn, position: int) -> str | None:
    # The specification fixes these names, whatever the file calls them.
    if pa.types.is_map(parent.type):
        return ("key", "value")[position]
    return None if pa.types.is_struct(parent.type) else "element"


# From the file's arrays to the table's


Missing = Mapping[int, Any]
"""Values of fields that files may lack, by field id: identity partition values in internal form."""


class Projection:
    """Turns batches of one file into rows of the wanted schema."""

    def __init__(self, layout: FileLayout, schema: Schema, missing: Missing) -> None:
        self._layout = layout
        self._schema = schema
        self._arrow = to_arrow_schema(schema, include_field_ids=False)
        self._missing = missing

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        arrays = []
        for field, target in zip(self._schema.fields, self._arrow, strict=True):
            column = self._layout.top(field.field_id)
            position = -1 if column is None else batch.schema.get_field_index(column.name)
            if column is None or position < 0:
                arrays.append(self._absent(field, target.type, batch.num_rows))
            else:
                arrays.append(self._project(batch.column(position), column, field, target.type))
        return arrow.RecordBatch.from_arrays(arrays, schema=self._arrow)  # type: ignore[no-any-return]

    def _absent(self, field: NestedField, target: Any, length: int) -> Array:
        if field.field_id in self._missing:
            return constant(self._missing[field.field_id], target, length)
        if field.required:
            raise CorruptMetadata(
                f"The file {self._layout.path} lacks the column {field.name!r}, which the table requires"
            )
        return arrow.nulls(length, target)

    def _project(self, array: Array, column: FileColumn, field: NestedField, target: Any) -> Array:
        kind = field.field_type
        if isinstance(kind, StructType) and pa.types.is_struct(array.type):
            return self._struct(array, column, kind, target)
        if isinstance(kind, ListType) and len(column.children) == 1:
            return self._list(array, column.children[0], kind, target)
        if isinstance(kind, MapType) and pa.types.is_map(array.type):
            return self._map(array, column, kind, target)
        return convert(array, target, lambda: f"The column {field.name!r} of the file {self._layout.path}")

    def _struct(self, array: Array, column: FileColumn, kind: StructType, target: Any) -> Array:
        nulls = array.is_null() if array.null_count else None
        children = []
        for position, field in enumerate(kind.fields):
            inner = column.child(field.field_id)
            index = -1 if inner is None else array.type.get_field_index(inner.name)
            wanted = target.field(position).type
            if inner is None or index < 0:
                # A required child may be missing where its parent is NULL.
                children.append(self._absent(field, wanted, len(array)))
            else:
                children.append(self._project(array.field(index), inner, field, wanted))
        return arrow.StructArray.from_arrays(children, fields=list(target), mask=nulls)

    def _list(self, array: Array, element: FileColumn, kind: ListType, target: Any) -> Array:
        if pa.types.is_fixed_size_list(array.type):
            array = array.cast(arrow.list_(array.type.value_field))
        array = _from_zero(array)
        values = self._project(array.values, element, kind.element_field, target.value_type)
        nulls = array.is_null() if array.null_count else None
        return arrow.LargeListArray.from_arrays(array.offsets.cast(pa.int64()), values, type=target, mask=nulls)

    def _map(self, array: Array, column: FileColumn, kind: MapType, target: Any) -> Array:
        array = _from_zero(array)
        key_column, value_column = column.children
        keys = self._project(array.keys, key_column, kind.key_field, target.key_type)
        items = self._project(array.items, value_column, kind.value_field, target.item_type)
        nulls = array.is_null() if array.null_count else None
        return arrow.MapArray.from_arrays(array.offsets, keys, items, type=target, mask=nulls)


def _from_zero(array: Array) -> Array:
    """The same values with the offsets starting at zero, which rebuilding a list from its parts wants."""
    return array if array.offset == 0 else arrow.concat_arrays([array, array.slice(0, 0)])


def fetch(layout: FileLayout, batch: pa.RecordBatch, field_id: int, missing: Missing, target: Any) -> Array:
    """One field's values over a batch, NULL where a struct around it is."""
    path = layout.find(field_id)
    if path is None:
        if field_id in missing:
            return constant(missing[field_id], target, batch.num_rows)
        return arrow.nulls(batch.num_rows, target)
    array: Array = batch.column(batch.schema.get_field_index(path[0].name))
    for column in path[1:]:
        array = pc.struct_field(array, array.type.get_field_index(column.name))
    return array


def constant(value: Any, target: Any, length: int) -> Array:
    """A column of one value, given in Iceberg's internal form."""
    if value is None:
        return arrow.nulls(length, target)
    if pa.types.is_date32(target):
        return arrow.repeat(arrow.scalar(value, pa.int32()), length).view(target)
    if pa.types.is_timestamp(target) or pa.types.is_time64(target):
        return arrow.repeat(arrow.scalar(value, pa.int64()), length).view(target)
    if isinstance(target, pa.BaseExtensionType):
        raw = getattr(value, "bytes", value)
        return arrow.ExtensionArray.from_storage(target, arrow.repeat(arrow.scalar(raw, target.storage_type), length))
    return arrow.repeat(arrow.scalar(getattr(value, "bytes", value) if _is_bytes(target) else value, target), length)


def convert(array: Array, target: Any, where: Callable[[], str]) -> Array:
    """A file's array in the table's type; only the promotions the specification allows, and other spellings."""
    if array.type == target:
        return array
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if isinstance(target, pa.BaseExtensionType):
        storage = convert(array, target.storage_type, where)
        return arrow.ExtensionArray.from_storage(target, storage)
    if array.type == target:
        return array
    if not _readable_as(array.type, target):
        raise CorruptMetadata(f"{where()} holds {array.type}, which cannot be read as {target}")
    if pa.types.is_timestamp(target):
        return _retimed(array, target)
    try:
        return array.cast(target)
    except pa.ArrowInvalid as error:
        raise CorruptMetadata(f"{where()} holds a value that is not a valid {target}", evidence=str(error)) from error


def _retimed(array: Array, target: Any) -> Array:
    if array.type.unit != target.unit:
        array = array.cast(arrow.timestamp(target.unit, array.type.tz), safe=False)
    # Files count from 1970 in UTC, with a zone or without; only the label differs.
    return array.view(pa.int64()).view(target)


def _is_bytes(kind: Any) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


def _is_text(kind: Any) -> bool:
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or _is_bytes(kind)
        or kind in (pa.string_view(), pa.binary_view())
    )


def _readable_as(source: Any, target: Any) -> bool:
    types = pa.types
    if types.is_decimal(source) or types.is_decimal(target):
        return types.is_decimal(source) and types.is_decimal(target) and source.scale == target.scale
    families: tuple[Callable[[Any], bool], ...] = (
        types.is_integer,
        types.is_floating,
        _is_text,
        types.is_date,
        types.is_time,
        types.is_timestamp,
        types.is_boolean,
    )
    return types.is_null(source) or any(family(source) and family(target) for family in families)
