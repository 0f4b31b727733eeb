"""The columns that data files really have, and how Spark's columns become the table's (rule P37).

Spark finds Parquet columns by name. That is correct if no name ever meant two columns in the table's history; otherwise
files are grouped by the columns in their footers, and each group is read under its own names and types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pyarrow as pa
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema, make_compatible_name
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BinaryType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from frazil.errors import CorruptMetadata, StorageError, Unsupported
from frazil.format.arrow_schema import to_arrow_schema
from frazil.format.metadata import TableMetadata
from frazil.format.storage import Storage
from frazil.model import DataFile
from frazil.on_spark import executor_footers
from frazil.on_spark.placing import by_value, s3_options
from frazil.on_spark.session import Session, setting
from frazil.on_spark.types import spark_type
from frazil.read.layout import FileColumn, columns_of, constant
from frazil.read.parquet import opened

Columns = tuple[FileColumn, ...]
SparkColumn = Any
SparkType = Any
_THREADS = 16
_BY_DRIVER = 200
"""The driver reads up to this many footers itself: a Spark job takes as long."""
_FILES_PER_TASK = 500
_INT96_SETTING = "spark.sql.parquet.int96TimestampConversion"
arrow: Any = pa
kinds: Any = pa.types


# Which columns a file has


class FileColumns:
    """The columns of a table's files. Equal ones are the same object, so that files are grouped by them."""

    def __init__(self, spark: Session, storage: Storage, metadata: TableMetadata) -> None:
        self._spark = spark
        self._storage = storage
        self._metadata = metadata
        self._known: dict[bytes, Columns] = {}
        self._named = _by_history(metadata)

    def of(self, files: Sequence[DataFile], needed: Set[int] = frozenset()) -> list[Columns]:
        """For each file its columns. ``needed``: the field ids that are read."""
        named = self._named
        # Files may lack a column that they are partitioned by, which only the footer shows.
        unsure = {each for each, spec in self._metadata.specs().items() if identity_sources(spec) & needed}
        looked_at = [file for file in files if named is None or (file.spec_id in unsure and file.partition)]
        footers = self._footers(looked_at) if looked_at else {}
        if any(int96 for _, int96 in footers.values()) and setting(self._spark, _INT96_SETTING) == "true":
            raise Unsupported(
                f"The table has old INT96 timestamps, which the session would shift: {_INT96_SETTING} is true",
                advice=f'Run spark.conf.set("{_INT96_SETTING}", "false")',
            )
        found: list[Columns] = []
        for file in files:
            footer = footers.get(file.file_path)
            columns = named if footer is None else self._columns(file.file_path, footer[0])
            assert columns is not None
            found.append(columns)
        return found

    def _columns(self, path: str, data: bytes) -> Columns:
        if data not in self._known:
            schema = arrow.ipc.read_schema(arrow.BufferReader(data))
            self._known[data] = columns_of(schema, path, self._metadata.name_mapping)
        return self._known[data]

    def _footers(self, files: Sequence[DataFile]) -> dict[str, tuple[bytes, bool]]:
        parsed = self._storage.parsed
        found = {file.file_path: parsed.get(_cached_as(file.file_path)) for file in files}
        missing = [file for file in files if found[file.file_path] is None]
        read = self._read_here if len(missing) <= _BY_DRIVER else self._read_on_executors
        shared: dict[bytes, bytes] = {}
        for path, (data, int96) in read(missing) if missing else ():
            # One copy in memory for all files that are alike.
            found[path] = (shared.setdefault(data, data), int96)
            parsed.put(_cached_as(path), found[path], len(path) + 100)
        return found

    def _read_here(self, files: Sequence[DataFile]) -> Iterable[tuple[str, tuple[bytes, bool]]]:
        def read(file: DataFile) -> tuple[str, tuple[bytes, bool]]:
            with opened(self._storage, file) as parquet:
                return file.file_path, executor_footers.described(parquet)

        with ThreadPoolExecutor(min(_THREADS, len(files))) as pool:
            return list(pool.map(read, files))

    def _read_on_executors(self, files: Sequence[DataFile]) -> Iterator[tuple[str, tuple[bytes, bool]]]:
        paths = pa.table({"path": pa.array([file.file_path for file in files], pa.string())})
        frame = self._spark.createDataFrame(paths).repartition(1 + len(files) // _FILES_PER_TASK)
        run = by_value(partial(executor_footers.read_footers, s3_options(self._storage, files[0].file_path)))
        for path, columns, int96, error in frame.mapInArrow(run, executor_footers.FOOTERS).collect():
            if error is not None:
                raise StorageError(
                    f"The table refers to the file {path}, which cannot be read",
                    evidence=error,
                    advice="If it was deleted by hand or by another tool, restore it, or roll the table back",
                )
            yield path, (bytes(columns), int96)


def identity_sources(spec: PartitionSpec) -> frozenset[int]:
    """The columns of which a file's partition gives the value."""
    return frozenset(field.source_id for field in spec.fields if isinstance(field.transform, IdentityTransform))


def _cached_as(path: str) -> str:
    return f"{path}#columns"


def _by_history(metadata: TableMetadata) -> Columns | None:
    """The columns that every file has or lacks, under one name each; None if the footers must be read.

    Names are compared without case, as a session may. Struct fields that came or went count as a change, too: what
    Spark makes of a struct all of whose wanted fields a file lacks is a matter of its version and settings.
    """
    schemas = metadata.schemas()
    # Engines that expire snapshots may have dropped the schemas that old files were written with.
    complete = "schemas" in metadata.raw and sorted(schemas) == list(range(len(schemas)))
    if not complete or metadata.name_mapping is not None:
        return None
    history = _History()
    for schema in schemas.values():
        history.add(0, schema.fields)
    if history.is_ambiguous:
        return None
    top = {field.field_id: field for schema in schemas.values() for field in schema.fields}
    return columns_of(to_arrow_schema(Schema(*top.values())), metadata.location, None)


class _History:
    """Every meaning that names, ids and structs had over the schemas of a table."""

    def __init__(self) -> None:
        self.is_ambiguous = False
        self._meanings: dict[tuple[object, ...], object] = {}

    def add(self, parent: int, fields: Sequence[NestedField]) -> None:
        for field in fields:
            self._once(("name of", field.field_id), (parent, field.name))
            self._once(("id of", parent, field.name.lower()), field.field_id)
            # Writers make such names safe in files, each in its own way.
            self.is_ambiguous |= make_compatible_name(field.name) != field.name
            self._add_type(field.field_id, field.field_type)

    def _add_type(self, owner: int, kind: IcebergType) -> None:
        inner: Sequence[NestedField] = ()
        if isinstance(kind, StructType):
            inner = kind.fields
            self._once(("fields of", owner), frozenset(each.field_id for each in inner))
        elif isinstance(kind, ListType):
            inner = (kind.element_field,)
        elif isinstance(kind, MapType):
            inner = (kind.key_field, kind.value_field)
        self._once(("type of", owner), type(kind) if inner or isinstance(kind, StructType) else str(kind))
        self.add(owner, inner)

    def _once(self, what: tuple[object, ...], meaning: object) -> None:
        self.is_ambiguous |= self._meanings.setdefault(what, meaning) != meaning


def case_clash(columns: Columns) -> tuple[str, str] | None:
    """Two columns side by side whose names differ in case only."""
    seen: dict[str, str] = {}
    for column in columns:
        other = seen.setdefault(column.name.lower(), column.name)
        if other != column.name:
            return other, column.name
    return next((found for column in columns if (found := case_clash(column.children))), None)


# Reading them


def read_schema(columns: Iterable[FileColumn], wanted: Mapping[int, IcebergType]) -> SparkType:
    """The schema to hand to Spark's Parquet reader. ``wanted``: the table's types, by field id, of all levels."""
    from pyspark.sql.types import StructField
    from pyspark.sql.types import StructType as SparkStruct

    found = ((column.name, _read_type(column, wanted)) for column in columns)
    return SparkStruct([StructField(name, kind, True) for name, kind in found if kind is not None])


def _read_type(column: FileColumn, wanted: Mapping[int, IcebergType]) -> SparkType | None:
    """What Spark reads a column as; None: it cannot, or there is nothing in it."""
    from pyspark.sql import types

    kind = _plain(column.type)
    if kinds.is_struct(kind):
        inside = read_schema(column.children, wanted)
        return inside if inside.fields else None
    if column.children:
        inner: list[Any] = [_read_type(child, wanted) for child in column.children]
        if None in inner:
            return None
        return types.MapType(*inner) if kinds.is_map(kind) else types.ArrayType(inner[0])
    return _read_leaf(kind, wanted.get(column.field_id) if column.field_id is not None else None)


def _plain(kind: Any) -> Any:
    """An Arrow type without extension and dictionary types."""
    if isinstance(kind, pa.BaseExtensionType):
        return kind.storage_type
    return kind.value_type if kinds.is_dictionary(kind) else kind


def _read_leaf(kind: Any, target: IcebergType | None) -> SparkType | None:
    from pyspark.sql import types

    if kinds.is_decimal(kind):
        return types.DecimalType(kind.precision, kind.scale) if kind.precision <= 38 else None
    if _is_bytes(kind):
        text = isinstance(target, StringType) or (target is None and not kinds.is_fixed_size_binary(kind))
        return types.StringType() if text else types.BinaryType()
    if kinds.is_timestamp(kind):
        # Both kinds of timestamps count from 1970 in UTC, and Spark reads each as the other without a change.
        made = types.TimestampType() if isinstance(target, TimestamptzType) else types.TimestampNTZType()
        return None if kind.unit == "ns" else made
    name = next((name for test, name in _LEAVES if test(kind)), None)
    return types.DecimalType(20, 0) if kinds.is_uint64(kind) else None if name is None else getattr(types, name)()


def _is_bytes(kind: Any) -> bool:
    return bool(
        kinds.is_string(kind)
        or kinds.is_large_string(kind)
        or kinds.is_binary(kind)
        or kinds.is_large_binary(kind)
        or kinds.is_fixed_size_binary(kind)
        or kind in (pa.string_view(), pa.binary_view())
    )


_LEAVES: tuple[tuple[Callable[[Any], bool], str], ...] = (
    (kinds.is_boolean, "BooleanType"),
    (lambda kind: kind in (pa.int64(), pa.uint32(), pa.time64("us")), "LongType"),
    (lambda kind: kinds.is_integer(kind) and kind.bit_width <= 32, "IntegerType"),
    (lambda kind: kind == pa.time32("ms"), "IntegerType"),
    (kinds.is_float32, "FloatType"),
    (kinds.is_float64, "DoubleType"),
    (kinds.is_date, "DateType"),
)


# From the files' columns to the table's


class Projection:
    """Columns of the table, made of the columns of one group of files.

    ``constants``: identity partition values that such files do not hold themselves, by field id, as texts.
    """

    def __init__(self, columns: Columns, path: str, constants: Mapping[int, SparkColumn]) -> None:
        from pyspark.sql import functions

        self._f: Any = functions
        self._columns = columns
        self._path = path
        self._constants = constants

    def top(self, field: NestedField) -> SparkColumn:
        """A top-level column of the table, whole."""
        column = next((each for each in self._columns if each.field_id == field.field_id), None)
        if column is None or _is_empty(column):
            return self._absent(field)
        return self._project(self._f.col(quoted(column.name)), column, field)

    def nested(self, field: NestedField) -> SparkColumn:
        """A column at any depth of structs, NULL where a struct around it is. Of a nested one: TRUE where it is not."""
        is_nested = isinstance(field.field_type, StructType | ListType | MapType)
        path = find_path(self._columns, field.field_id)
        if path is None or _is_empty(path[-1]):
            return self._f.lit(None).cast("boolean") if is_nested else self._constant(field)
        found = self._f.col(quoted(path[0].name))
        for column in path[1:]:
            found = found.getField(column.name)
        if is_nested:
            # Its fields are not used, and they differ between old and new files.
            return self._f.when(found.isNotNull(), True)
        return self._project(found, path[-1], field)

    def _absent(self, field: NestedField) -> SparkColumn:
        if field.required and field.field_id not in self._constants:
            raise CorruptMetadata(f"The file {self._path} lacks the column {field.name!r}, which the table requires")
        return self._constant(field)

    def _constant(self, field: NestedField) -> SparkColumn:
        if field.field_id in self._constants:
            return from_text(self._constants[field.field_id], field.field_type)
        return self._f.lit(None).cast(spark_type(field.field_type))

    def _project(self, value: SparkColumn, column: FileColumn, field: NestedField) -> SparkColumn:
        kind = field.field_type
        if is_same(column, kind):
            return value
        if isinstance(kind, StructType) and kinds.is_struct(column.type):
            return self._struct(value, column, kind)
        if isinstance(kind, ListType) and len(column.children) == 1:
            return self._f.transform(value, lambda each: self._project(each, column.children[0], kind.element_field))
        if isinstance(kind, MapType) and kinds.is_map(column.type):
            return self._map(value, column, kind)
        return self._leaf(value, _plain(column.type), field)

    def _struct(self, value: SparkColumn, column: FileColumn, kind: StructType) -> SparkColumn:
        made = []
        for field in kind.fields:
            inner = column.child(field.field_id)
            if inner is None or _is_empty(inner):
                found = self._absent(field)
            else:
                found = self._project(value.getField(inner.name), inner, field)
            made.append(found.alias(field.name))
        return self._f.when(value.isNotNull(), self._f.struct(*made))

    def _map(self, value: SparkColumn, column: FileColumn, kind: MapType) -> SparkColumn:
        keys, values = column.children
        made = value
        if not is_same(values, kind.value_type):
            made = self._f.transform_values(made, lambda _, each: self._project(each, values, kind.value_field))
        if not is_same(keys, kind.key_type):
            made = self._f.transform_keys(made, lambda each, _: self._project(each, keys, kind.key_field))
        return made

    def _leaf(self, value: SparkColumn, source: Any, field: NestedField) -> SparkColumn:
        kind = field.field_type
        if _widens(source, kind):
            return value.cast(spark_type(kind))
        if isinstance(kind, UUIDType) and _is_bytes(source):
            return uuid_text(value)
        if isinstance(kind, TimeType) and source == pa.time32("ms"):
            return value.cast("bigint") * 1000
        problem = f"The column {field.name!r} of the file {self._path} holds "
        if _read_leaf(source, kind) is None:
            raise Unsupported(f"{problem}{source}, which Spark cannot read", advice="Use to_arrow()")
        if not _narrows(source, kind):
            raise CorruptMetadata(f"{problem}{source}, which cannot be read as {kind}")
        # A cast would wrap around or fail, depending on the session.
        refused = self._f.raise_error(self._f.lit(f"{problem}a value that is not a valid {kind}"))
        made = value.try_cast(spark_type(kind))
        return self._f.when(value.isNotNull() & made.isNull(), refused).otherwise(made)


def uuid_text(value: SparkColumn) -> SparkColumn:
    """Sixteen bytes in the form that people write a uuid in."""
    from pyspark.sql import functions

    digits = functions.lower(functions.hex(value))
    parts = [functions.substring(digits, start, length) for start, length in _UUID_PARTS]
    return functions.when(value.isNotNull(), functions.concat_ws("-", *parts))


_UUID_PARTS = ((1, 8), (9, 4), (13, 4), (17, 4), (21, 12))


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def find_path(columns: Columns, field_id: int) -> tuple[FileColumn, ...] | None:
    """The columns from the top down to the one with this id, through structs only; None if it is not there."""
    for column in columns:
        if column.field_id == field_id:
            return (column,)
        below = find_path(column.children, field_id) if kinds.is_struct(column.type) else None
        if below is not None:
            return (column, *below)
    return None


def lacking(columns: Columns, fields: Iterable[NestedField]) -> Iterator[int]:
    """The ids of fields that files of these columns do not hold."""
    by_id = {column.field_id: column for column in columns}
    for field in fields:
        column = by_id.get(field.field_id)
        if column is None or _is_empty(column):
            yield field.field_id
        elif isinstance(field.field_type, StructType):
            yield from lacking(column.children, field.field_type.fields)


def types_by_id(fields: Iterable[NestedField]) -> Iterator[tuple[int, IcebergType]]:
    for field in fields:
        kind = field.field_type
        yield field.field_id, kind
        if isinstance(kind, StructType):
            yield from types_by_id(kind.fields)
        elif isinstance(kind, ListType):
            yield from types_by_id((kind.element_field,))
        elif isinstance(kind, MapType):
            yield from types_by_id((kind.key_field, kind.value_field))


def _is_empty(column: FileColumn) -> bool:
    return bool(kinds.is_null(column.type))


def is_same(column: FileColumn, kind: IcebergType) -> bool:
    """Whether Spark reads the column as the table's type, without a conversion."""
    if isinstance(kind, StructType):
        fields = [(each.field_id, each.name) for each in kind.fields]
        alike = [(child.field_id, child.name) for child in column.children] == fields
        return alike and all(
            is_same(child, each.field_type) for child, each in zip(column.children, kind.fields, strict=True)
        )
    if isinstance(kind, ListType):
        return len(column.children) == 1 and is_same(column.children[0], kind.element_type)
    if isinstance(kind, MapType):
        alike = len(column.children) == 2
        return alike and is_same(column.children[0], kind.key_type) and is_same(column.children[1], kind.value_type)
    source = _plain(column.type)
    if isinstance(kind, TimestampType | TimestamptzType):
        return bool(kinds.is_timestamp(source)) and source.unit != "ns"
    if isinstance(kind, UUIDType):
        return False
    return _read_leaf(source, kind) == spark_type(kind) and _family(source, kind)


def _family(source: Any, kind: IcebergType) -> bool:
    # A time is a number for Spark, as is an integer.
    return bool(kinds.is_time(source)) == isinstance(kind, TimeType)


def _widens(source: Any, kind: IcebergType) -> bool:
    if isinstance(kind, LongType | IntegerType):
        width = 64 if isinstance(kind, LongType) else 32
        return bool(kinds.is_integer(source)) and source.bit_width + kinds.is_unsigned_integer(source) <= width
    if isinstance(kind, DoubleType | FloatType):
        return bool(kinds.is_float32(source) or kinds.is_float64(source))
    if isinstance(kind, DecimalType):
        return bool(kinds.is_decimal(source)) and source.scale == kind.scale and source.precision <= kind.precision
    return False


def _narrows(source: Any, kind: IcebergType) -> bool:
    if isinstance(kind, LongType | IntegerType):
        return bool(kinds.is_integer(source))
    return isinstance(kind, DecimalType) and bool(kinds.is_decimal(source)) and source.scale == kind.scale


# Identity partition values of files that lack the column


def as_text(value: Any, kind: IcebergType) -> str | None:
    """A partition value, given in internal form, as a text that Spark casts back whatever the session's settings."""
    if value is None:
        return None
    if isinstance(kind, TimeType):
        return str(value)
    if isinstance(kind, UUIDType | FixedType | BinaryType):
        raw: bytes = getattr(value, "bytes", value)
        return raw.hex()
    text: str = constant(value, to_arrow_schema(kind), 1).cast(pa.string())[0].as_py()
    return text


def from_text(text: SparkColumn, kind: IcebergType) -> SparkColumn:
    from pyspark.sql import functions

    if isinstance(kind, UUIDType):
        return uuid_text(functions.unhex(text))
    if isinstance(kind, FixedType | BinaryType):
        return functions.unhex(text)
    return text.cast(spark_type(kind))
