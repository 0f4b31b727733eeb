"""Finds the rows of a table that have one of the keys being written."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, FloatType, StructType, UUIDType

from frazil.commit.operations import Read
from frazil.dml.view import View
from frazil.errors import InvalidInput
from frazil.expr import between_keys, near_keys, parse_filter
from frazil.model import DataFile
from frazil.on_spark.scan import read_tasks
from frazil.on_spark.session import Frame
from frazil.read.deletes import Deletes, Keys
from frazil.read.layout import convert
from frazil.read.plan import FileTask
from frazil.stage.deletes import key_schema

if TYPE_CHECKING:
    from frazil.on_spark.write_builder import SparkWriteBuilder

arrow: Any = pa
MOST_KEYS = 1_000_000
"""Up to this many keys are collected on the driver for exact conflict checks; of more, only the range is."""


@dataclass(frozen=True, slots=True, eq=False)
class KeyFrame:
    """Key values as a DataFrame with the table's own columns."""

    frame: Frame
    schema: Schema
    """The key columns alone."""
    field_ids: tuple[int, ...]
    view: View
    count: int

    @staticmethod
    def of_files(builder: SparkWriteBuilder, files: Sequence[DataFile], field_ids: tuple[int, ...]) -> KeyFrame:
        """The keys of rows that were staged."""
        view = builder.view
        schema = key_schema(view.schema, field_ids)
        tasks = [FileTask(file, 0, None) for file in files]
        frame = read_tasks(builder.spark, tasks, storage=view.storage, metadata=view.metadata, schema=schema)
        return KeyFrame(frame, schema, field_ids, view, sum(file.record_count for file in files))

    @property
    def names(self) -> list[str]:
        """The key columns as Spark names them, quoted, with a dot before a field of a struct."""
        return [quoted_path(self.schema, field_id) for field_id in self.field_ids]

    def flat(self) -> list[Any]:
        """The key columns of any frame that has them, under plain names."""
        from pyspark.sql import functions as F

        return [F.col(name).alias(f"__frazil_key{at}") for at, name in enumerate(self.names)]

    def refuse_duplicates(self) -> None:
        """Rows of one call share a sequence number: of two with one key, neither would replace the other (rule P21)."""
        from pyspark.sql import functions as F

        counted = self.frame.groupBy(*self.flat()).agg(F.count(F.lit(1)).alias("count"))
        found = counted.where("count > 1").limit(1).collect()
        if not found:
            return
        shown = ", ".join(
            f"{self.schema.find_column_name(field_id)}={found[0][at]}" for at, field_id in enumerate(self.field_ids)
        )
        raise InvalidInput(
            f"{found[0]['count']} of the rows have the same key {shown}",
            advice="Keep one row for each key: the rows of one call have no order in which the last could win",
        )

    def matching(self, rows: Frame) -> Frame:
        """Those of the rows that have one of the keys."""
        from pyspark.sql import functions as F

        keys = self.frame.select(*self.flat())
        same = [F.col(name).eqNullSafe(F.col(f"__frazil_key{at}")) for at, name in enumerate(self.names)]
        condition = same[0]
        for each in same[1:]:
            condition = condition & each
        return rows.join(keys, condition, "left_semi")

    def distinct(self, rows: Frame) -> int:
        return int(rows.select(*self.flat()).distinct().count())

    def read(self) -> Read:
        """The read of an operation that searches for these keys."""
        flat = self.frame.select(*self.flat())
        if self.count <= MOST_KEYS:
            return read_of(flat.toArrow(), self.field_ids, self.view)
        return range_read(flat, self.field_ids, self.view)


def read_of(keys: pa.Table, field_ids: tuple[int, ...], view: View) -> Read:
    """The read of an operation that searches for rows with one of these keys, none of which is null."""
    columns = _columns(keys, field_ids, view)
    where = near_keys(view.schema, columns)
    if any(isinstance(view.schema.find_type(field_id), FloatType | DoubleType) for field_id in field_ids):
        # 0.0 and -0.0 are one key for SQL, and two for a set of keys.
        return Read(where)
    return Read(where, Keys.of(field_ids, list(columns.values())))


def range_read(keys: Frame, field_ids: tuple[int, ...], view: View) -> Read:
    """The same for more keys than the driver should hold: all rows within their range."""
    extremes = _columns(_extremes(keys), field_ids, view)
    if any(values.null_count for values in extremes.values()):
        return Read(parse_filter("false", view.schema))
    return Read(between_keys(view.schema, extremes))


def _columns(table: pa.Table, field_ids: tuple[int, ...], view: View) -> dict[int, Any]:
    deletes = Deletes(view.storage, view.metadata)
    found: dict[int, Any] = {}
    for field_id, column in zip(field_ids, table.columns, strict=True):
        values: Any = arrow.concat_arrays([arrow.array([], column.type), *column.chunks])
        if isinstance(view.schema.find_type(field_id), UUIDType):
            raw = [None if each is None else uuid.UUID(each).bytes for each in values.to_pylist()]
            values = arrow.array(raw, arrow.binary(16))
        found[field_id] = convert(values, deletes.key_type(field_id), lambda: "A key column")
    return found


def _extremes(flat: Frame) -> pa.Table:
    """Two rows: the least and the greatest value of each column."""
    from pyspark.sql import functions as F

    low = flat.select(*(F.min(name).alias(name) for name in flat.columns))
    high = flat.select(*(F.max(name).alias(name) for name in flat.columns))
    found: pa.Table = low.unionByName(high).toArrow()
    return found


def quoted_path(schema: Schema, field_id: int) -> str:
    """A column as Spark names it, quoted, with a dot before a field of a struct."""
    path: list[str] = []
    fields = schema.fields
    while True:
        field = next(
            each
            for each in fields
            if each.field_id == field_id
            or (isinstance(each.field_type, StructType) and _holds(each.field_type, field_id))
        )
        path.append(f"`{field.name}`")
        if field.field_id == field_id:
            return ".".join(path)
        assert isinstance(field.field_type, StructType)
        fields = field.field_type.fields


def _holds(struct: StructType, field_id: int) -> bool:
    return any(
        each.field_id == field_id or (isinstance(each.field_type, StructType) and _holds(each.field_type, field_id))
        for each in struct.fields
    )
