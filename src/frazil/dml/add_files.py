"""Existing Parquet files become files of a table, where they are: nothing is copied or rewritten.

Each footer is read once. Its columns are found by field ids, or in files without ids by the table's name mapping, must
have the table's types or ones that Iceberg promotes to them, and give the statistics and the partition of the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.conversions import from_bytes
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform, VoidTransform
from pyiceberg.types import (
    DoubleType,
    FloatType,
    ListType,
    MapType,
    NestedField,
    PrimitiveType,
    StructType,
)

from frazil.catalog.open import absolute_location
from frazil.commit.operations import Kind, RowCounts, Write
from frazil.dml.view import Settings, View
from frazil.dml.write_builder import columns_with_nulls, columns_with_values
from frazil.errors import FrazilError, InvalidInput, SchemaMismatch
from frazil.expr import parse_filter
from frazil.format import statistics
from frazil.format.arrow_schema import to_arrow_schema
from frazil.format.evolution import column_path
from frazil.format.partitions import arrow_transform
from frazil.format.schemas import suggestion
from frazil.format.storage import is_local, local_path
from frazil.model import DataFile
from frazil.read.layout import FileColumn, FileLayout, columns_of, constant
from frazil.read.plan import plan
from frazil.stage.arrow import check_writable

if TYPE_CHECKING:
    from pyiceberg.table.name_mapping import NameMapping

_THREADS = 8
_PARTITION = "Rewrite it with append(), which splits rows by partition"


@dataclass(frozen=True, slots=True, eq=False)
class Footer:
    """What is known of a file without reading its rows."""

    path: str
    size: int
    parquet: Any
    """The pq.FileMetaData."""
    schema: pa.Schema

    @property
    def has_ids(self) -> bool:
        return _has_ids(self.schema)


def checked_paths(paths: object) -> tuple[str, ...]:
    """The files as absolute locations, each once. Raises InvalidInput."""
    if isinstance(paths, str) or not isinstance(paths, Sequence):
        raise InvalidInput(f"paths must be a list of Parquet files, not {paths!r}", advice=f"Write [{paths!r}]")
    bad = next((each for each in paths if not isinstance(each, str) or not each.strip()), None)
    if bad is not None:
        raise InvalidInput(f"{bad!r} is not the path of a file")
    found = tuple(absolute_location(each) for each in paths)
    twice = next((each for number, each in enumerate(found) if each in found[:number]), None)
    if twice is not None:
        raise InvalidInput(f"The file {twice} is listed twice", advice="Its rows would be in the table twice")
    return found


def read_footers(view: View, paths: Sequence[str]) -> tuple[Footer, ...]:
    """Raises InvalidInput for what is not a readable Parquet file."""
    check_writable(view.metadata)
    with ThreadPoolExecutor(_THREADS) as pool:
        return tuple(pool.map(lambda path: _footer(view, path), paths))


def _footer(view: View, path: str) -> Footer:
    try:
        with view.storage.open_input(path) as source:
            size = source.size()
            with pq.ParquetFile(source) as parquet:
                return Footer(path, size, parquet.metadata, parquet.schema_arrow)
    except (FrazilError, pa.ArrowException, OSError) as error:
        cause = error.problem if isinstance(error, FrazilError) else str(error).partition("\n")[0]
        raise InvalidInput(
            f"The file {path} cannot be read as Parquet, so no file was added", evidence=cause
        ) from error


def name_mapping_of(schema: Schema) -> str:
    """The table property by which files without field ids are read: each column by its name."""
    from pyiceberg.table.name_mapping import create_mapping_from_schema

    return create_mapping_from_schema(schema).model_dump_json()


def add_files(view: View, footers: Sequence[Footer], settings: Settings) -> Write:
    """The files as a write that adds them and does not own them: no failure deletes them."""
    _check_new(view, [each.path for each in footers])
    reader = _FileReader(view)
    added = tuple(reader.data_file(each) for each in footers if each.parquet.num_rows)
    return Write(
        Kind.APPEND,
        view.metadata.uuid,
        base=view.base,
        branch=view.branch,
        isolation=settings.isolation,
        added=added,
        on_deleted=settings.on_deleted,
        schema_id=view.metadata.current_schema_id,
        written_ids=columns_with_values(added, view.schema),
        nullable_ids=columns_with_nulls(added, view.schema),
        owns_files=False,
        rows=RowCounts(inserted=sum(file.record_count for file in added)),
        snapshot_properties=settings.snapshot_properties,
    )


def _check_new(view: View, paths: Sequence[str]) -> None:
    wanted = {local_path(path) if is_local(path) else path for path in paths}
    for task in plan(view.metadata, view.snapshot, parse_filter(None, view.schema), view.storage).tasks:
        path = task.file.file_path
        if (local_path(path) if is_local(path) else path) in wanted:
            raise InvalidInput(
                f"The file {path} is in {view.table} already, so no file was added",
                advice="Leave it out; to make a call that may be repeated, give it a commit_id",
            )


class _FileReader:
    """Files as the table describes them."""

    def __init__(self, view: View) -> None:
        metadata = view.metadata
        self._metadata = metadata
        self._schema = view.schema
        self._mapping: NameMapping | None = metadata.name_mapping
        self._spec = metadata.spec()
        self._names = _names_by_id(metadata.schemas().values())
        plain = statistics.plan(view.schema, metadata.properties)
        whole = statistics.plan(view.schema, {statistics.DEFAULT_MODE: "full"})
        self._plain = {each.field_id: each for each in plain.columns.values()}
        self._whole = {each.field_id: each for each in whole.columns.values()}

    def data_file(self, footer: Footer) -> DataFile:
        _check_physical(footer)
        columns = columns_of(footer.schema, footer.path, self._mapping)
        _Fit(footer.path, self._names, footer.has_ids).check(columns, self._schema.fields)
        leaves = list(_leaves(columns))
        known = self._statistics(footer, leaves, self._whole)
        self._check_required(footer, FileLayout(footer.path, columns, ()), known)
        kept = self._statistics(footer, leaves, self._plain)
        return DataFile(
            file_path=footer.path,
            record_count=footer.parquet.num_rows,
            file_size_in_bytes=footer.size,
            spec_id=self._spec.spec_id,
            partition=tuple(self._partition_value(footer, field, columns, known) for field in self._spec.fields),
            column_sizes=kept.column_sizes,
            value_counts=kept.value_counts,
            null_value_counts=kept.null_value_counts,
            nan_value_counts={},
            lower_bounds=kept.lower_bounds,
            upper_bounds=kept.upper_bounds,
            split_offsets=kept.split_offsets,
            sort_order_id=0,
        )

    def _statistics(
        self, footer: Footer, leaves: Sequence[FileColumn], columns: Mapping[int, statistics.Column]
    ) -> statistics.FileStatistics:
        paths = [footer.parquet.schema.column(number).path for number in range(footer.parquet.num_columns)]
        named = {path: columns[leaf.field_id] for path, leaf in zip(paths, leaves, strict=True) if leaf.field_id}
        return statistics.file_statistics(footer.parquet, statistics.Plan(named, (), ()), statistics.Observed())

    def _check_required(self, footer: Footer, layout: FileLayout, known: statistics.FileStatistics) -> None:
        for field_id in sorted(self._schema.field_ids):
            path = _required_path(self._schema, field_id)
            found = layout.find(field_id) if path else None
            if found is None:
                continue
            name = str(self._schema.find_column_name(field_id))
            is_required_there = not _may_be_null(footer.schema, found)
            nulls = 0 if is_required_there else known.null_value_counts.get(field_id)
            if nulls is None:
                raise SchemaMismatch(
                    f"The file {footer.path} does not say whether the required column {name!r} has nulls",
                    advice="Rewrite it with append()",
                )
            if nulls:
                raise SchemaMismatch(
                    f"The file {footer.path} has {nulls} nulls in the column {name!r}, which the table requires"
                )

    def _partition_value(
        self, footer: Footer, field: Any, columns: Sequence[FileColumn], known: statistics.FileStatistics
    ) -> Any:
        transform, source = field.transform, field.source_id
        if isinstance(transform, VoidTransform):
            return None
        name = str(self._schema.find_column_name(source))
        problem = f"The file {footer.path} does not belong to one partition of {field.name!r}"
        if FileLayout(footer.path, tuple(columns), ()).find(source) is None:
            raise InvalidInput(problem, evidence=f"It lacks the column {name!r}", advice=_PARTITION)
        nulls = known.null_value_counts.get(source)
        if nulls == footer.parquet.num_rows:
            return None
        low, high = known.lower_bounds.get(source), known.upper_bounds.get(source)
        kind = self._schema.find_type(source)
        assert isinstance(kind, PrimitiveType)
        # NaN is in no bound, so a column of floats may always hold one.
        if nulls is None or low is None or high is None or isinstance(kind, FloatType | DoubleType):
            raise InvalidInput(
                problem, evidence=f"Its footer does not say which values {name!r} has", advice=_PARTITION
            )
        if nulls:
            raise InvalidInput(problem, evidence=f"{name!r} is null in {nulls} of its rows", advice=_PARTITION)
        values = [_transformed(transform, kind, each) for each in (low, high)]
        # Buckets of two values say nothing about those between them.
        if values[0] != values[1] or (isinstance(transform, BucketTransform) and low != high):
            shown = f"{from_bytes(kind, low)!r} to {from_bytes(kind, high)!r}"
            raise InvalidInput(problem, evidence=f"Its values of {name!r} go from {shown}", advice=_PARTITION)
        return values[0]


def _transformed(transform: Any, kind: PrimitiveType, bound: bytes) -> Any:
    value = from_bytes(kind, bound)
    array = constant(value, to_arrow_schema(kind, include_field_ids=False), 1)
    found = arrow_transform(transform, kind)(array)[0].as_py()
    return value if isinstance(transform, IdentityTransform) and found is not None else found


def _may_be_null(schema: Any, path: Sequence[FileColumn]) -> bool:
    """Whether the file's own schema lets a column, or a struct around it, be null."""
    nullable, fields = False, list(schema)
    for column in path:
        field = next(each for each in fields if each.name == column.name)
        nullable = nullable or field.nullable
        fields = _inner(field.type) if pa.types.is_struct(field.type) else []
    return nullable


def _required_path(schema: Schema, field_id: int) -> tuple[NestedField, ...]:
    """The column with the structs around it, if all of them are required."""
    path = column_path(schema, field_id) or ()
    inside = all(isinstance(each.field_type, StructType) for each in path[:-1])
    return tuple(path) if inside and all(each.required for each in path) else ()


def _leaves(columns: Iterable[FileColumn]) -> Iterator[FileColumn]:
    for column in columns:
        if column.children:
            yield from _leaves(column.children)
        else:
            yield column


def _has_ids(schema: Any) -> bool:
    return any(
        b"PARQUET:field_id" in (field.metadata or {})
        or (pa.types.is_nested(field.type) and _has_ids(_inner(field.type)))
        for field in schema
    )


def _inner(kind: Any) -> list[Any]:
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    if pa.types.is_struct(kind):
        return [kind.field(number) for number in range(kind.num_fields)]
    return [kind.value_field]


def _names_by_id(schemas: Iterable[Schema]) -> dict[int, set[str]]:
    """Every name that a column has had, without the structs around it."""
    found: dict[int, set[str]] = {}
    for schema in schemas:
        for field_id in schema.field_ids:
            found.setdefault(field_id, set()).add(schema.find_field(field_id).name)
    return found


def _check_physical(footer: Footer) -> None:
    for number in range(footer.parquet.num_columns):
        column = footer.parquet.schema.column(number)
        if column.physical_type == "INT96":
            raise SchemaMismatch(
                f"The file {footer.path} has old timestamps (INT96) in {column.path!r}, which other engines read in "
                "different ways",
                advice="Rewrite it with append(), for example of spark.read.parquet(…)",
            )


@dataclass(frozen=True, slots=True)
class _Fit:
    """Whether the columns of one file are those of the table."""

    path: str
    names: Mapping[int, set[str]]
    by_ids: bool
    """The file has field ids. Without them, the name mapping may know a column by yet other names."""

    def check(self, columns: Sequence[FileColumn], fields: Sequence[NestedField], above: str = "") -> None:
        by_id = {field.field_id: field for field in fields}
        for column in columns:
            shown = f"{above}{column.name}"
            field = None if column.field_id is None else by_id.get(column.field_id)
            if field is None:
                names = [each.name for each in fields]
                raise SchemaMismatch(
                    f"The file {self.path} has the column {shown!r}, which the table lacks",
                    advice=f"{suggestion(column.name, names)} Add it to the table first, with add_column()",
                )
            if self.by_ids and column.name not in self.names[field.field_id]:
                raise SchemaMismatch(
                    f"The file {self.path} has the id of {field.name!r} on its column {shown!r}: its field ids are "
                    "those of another table",
                    advice="Rewrite it with append()",
                )
            self.check_type(column, field, shown)
        found = {column.field_id for column in columns}
        lacking = next((each.name for each in fields if each.required and each.field_id not in found), None)
        if lacking is not None:
            raise SchemaMismatch(f"The file {self.path} lacks the column {above + lacking!r}, which the table requires")

    def check_type(self, column: FileColumn, field: NestedField, shown: str) -> None:
        kind, found = field.field_type, column.type
        match kind:
            case StructType() if pa.types.is_struct(found):
                return self.check(column.children, kind.fields, f"{shown}.")
            case ListType() if _is_list(found):
                return self.check_type(column.children[0], kind.element_field, f"{shown}.element")
            case MapType() if pa.types.is_map(found):
                self.check_type(column.children[0], kind.key_field, f"{shown}.key")
                return self.check_type(column.children[1], kind.value_field, f"{shown}.value")
        if not isinstance(kind, PrimitiveType) or not _fits(found, kind):
            raise SchemaMismatch(
                f"The column {shown!r} of the file {self.path} has the type {found}, and the table has {kind}",
                advice="Rewrite it with append(), which converts values",
            )
        return None


def _is_list(kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _fits(found: Any, kind: PrimitiveType) -> bool:
    """Whether Iceberg reads a column of a file as a type: the same one, or one that is promoted to it."""
    if pa.types.is_dictionary(found):
        found = found.value_type
    target = to_arrow_schema(kind, include_field_ids=False)
    if isinstance(target, pa.BaseExtensionType):
        return bool(found == target or found == target.storage_type)
    same: tuple[tuple[Callable[[Any], bool], Callable[[Any], bool]], ...] = (
        (_is_text, _is_text),
        (_is_binary, _is_binary),
        (
            pa.types.is_signed_integer,
            lambda each: bool(pa.types.is_signed_integer(each) and each.bit_width >= found.bit_width),
        ),
        (pa.types.is_float32, pa.types.is_float64),
    )
    if pa.types.is_decimal(found) and pa.types.is_decimal(target):
        return bool(found.scale == target.scale and found.precision <= target.precision)
    if pa.types.is_timestamp(found) and pa.types.is_timestamp(target):
        return bool(found.unit == target.unit and (found.tz is None) == (target.tz is None))
    return bool(found == target) or any(mine(found) and other(target) for mine, other in same)


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or kind == pa.string_view())


def _is_binary(kind: Any) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or kind == pa.binary_view())
