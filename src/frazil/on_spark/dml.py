"""The verbs on Spark: Spark's own reader finds the rows that change, its own writer writes the new ones, and the result
is the same ``Write`` that the Arrow engine builds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pyarrow as pa
from pyiceberg.schema import Schema

from frazil.commit.operations import Kind, Read, RowCounts, Write
from frazil.dml.engine import EngineName
from frazil.dml.matching import GivenRows, Matching
from frazil.dml.merge import Merge, Source
from frazil.dml.merge_match import source_schema
from frazil.dml.overwrite import replaced_spec, without_residual_if_replaced
from frazil.dml.resolve import Resolving
from frazil.dml.rewrite import Rewriting
from frazil.dml.upsert import UpsertMode, key_ids, reaching_spec
from frazil.dml.view import COPY_ON_WRITE, MERGE_ON_READ, Mode, Settings, View
from frazil.expr import Filter, in_partitions
from frazil.format.partitions import partition_identity, reaches_everything
from frazil.format.schemas import arrow_schema, match_name
from frazil.on_spark import matching
from frazil.on_spark.fitting import conform_frame
from frazil.on_spark.keys import KeyFrame
from frazil.on_spark.merge import explain, merge
from frazil.on_spark.rewrite import rewrite
from frazil.on_spark.scan import FILE, POSITION
from frazil.on_spark.session import Frame, Session, is_frame, session_of
from frazil.on_spark.stage import stage_keys
from frazil.on_spark.types import frame_schema
from frazil.on_spark.values import Assigned
from frazil.on_spark.write_builder import SparkWriteBuilder, check_count
from frazil.stage.rows import has_python_values, incoming_schema, opened, to_reader, without_untyped


@dataclass(frozen=True, slots=True)
class SparkEngine:
    """Runs verbs on one Spark session."""

    spark: Session

    @property
    def name(self) -> EngineName:
        return "spark"

    def append(self, view: View, rows: object, settings: Settings) -> Write:
        with SparkWriteBuilder(self.spark, view, settings) as builder:
            staged = builder.add_frame(self._frame(rows, view.schema))
            return builder.build(Kind.APPEND, RowCounts(inserted=staged.rows))

    def overwrite(self, view: View, rows: object, where: Filter, settings: Settings) -> Write:
        where = view.bound(where)
        with SparkWriteBuilder(self.spark, view, settings) as builder:
            inserted = 0 if view.kept else builder.add_frame(self._frame(rows, view.schema), where).rows
            deleted = builder.delete_matching(where, COPY_ON_WRITE)
            counts = RowCounts(inserted=inserted, deleted=deleted)
            return builder.build(Kind.OVERWRITE, counts, reads=(Read(where),), asked=where)

    def replace_partitions(self, view: View, rows: object, settings: Settings) -> Write:
        spec = replaced_spec(view)
        with SparkWriteBuilder(self.spark, view, settings) as builder:
            inserted = 0 if view.kept else builder.add_frame(self._frame(rows, view.schema)).rows
            if not builder.own_rows:
                return builder.build(Kind.REPLACE_PARTITIONS, RowCounts())
            partitions = {partition_identity(file.partition): file.partition for file in builder.own_rows}
            where = in_partitions(spec, partitions.values(), view.schema)
            tasks = [without_residual_if_replaced(task, spec.spec_id, partitions) for task in view.tasks(where)]
            some = [task for task in tasks if task.residual is not None]
            deleted = builder.remove_whole([task for task in tasks if task.residual is None])
            if some:
                found = builder.rows(some, view.schema).select(FILE, POSITION)
                deleted += builder.delete_positions(some, found, COPY_ON_WRITE)
            counts = RowCounts(inserted=inserted, deleted=deleted)
            return builder.build(Kind.REPLACE_PARTITIONS, counts, reads=(Read(where),), asked=where)

    def delete(self, view: View, where: Filter, settings: Settings, mode: Mode) -> Write:
        where = view.bound(where)
        with SparkWriteBuilder(self.spark, view, settings) as builder:
            deleted = builder.delete_matching(where, mode)
            return builder.build(Kind.DELETE, RowCounts(deleted=deleted), reads=(Read(where),), asked=where)

    def update(
        self, view: View, assignments: Mapping[str, object], where: Filter, settings: Settings, mode: Mode
    ) -> Write:
        where = view.bound(where)
        new_values = Assigned(assignments, view.schema, case_sensitive=where.case_sensitive)
        with SparkWriteBuilder(self.spark, view, settings) as builder:
            tasks = view.tasks(where)
            if not tasks:
                return builder.build(Kind.UPDATE, RowCounts(), reads=(Read(where),))
            touched = builder.rows(tasks, view.schema)
            if not new_values.repeatable:
                touched = new_values.apply(touched).localCheckpoint()
                staged = builder.add_frame(touched.drop(FILE, POSITION))
            else:
                staged = builder.add_frame(new_values.apply(touched).drop(FILE, POSITION))
            found = builder.delete_positions(tasks, touched.select(FILE, POSITION), mode, moved=True)
            check_count(staged, found, "update")
            return builder.build(Kind.UPDATE, RowCounts(updated=staged.rows), reads=(Read(where),))

    def upsert(self, view: View, rows: object, settings: Settings, mode: UpsertMode) -> Write:
        field_ids = key_ids(view.metadata)
        with SparkWriteBuilder(self.spark, view, settings) as builder:
            count = 0 if view.kept else builder.add_frame(self._frame(rows, view.schema)).rows
            if not builder.own_rows:
                return builder.build(Kind.UPSERT, RowCounts())
            # The keys of the written rows: evaluating the given frame again may return different rows (P34).
            keys = KeyFrame.of_files(builder, builder.own_rows, field_ids)
            keys.refuse_duplicates()
            if mode == "equality":
                return self._by_equality(builder, keys, count)
            return self._by_position(builder, keys, count, mode)

    def _by_equality(self, builder: SparkWriteBuilder, keys: KeyFrame, count: int) -> Write:
        view, metadata = builder.view, builder.view.metadata
        spec_id = reaching_spec(view)
        deletes = stage_keys(
            keys.frame, keys.field_ids, spec_id, metadata=metadata, storage=view.storage, runtime=view.runtime
        )
        builder.adopt_keys(deletes)
        partitioned = None if reaches_everything(metadata.spec(spec_id)) else spec_id
        return builder.build(Kind.UPSERT, RowCounts(inserted=count), keys=keys.field_ids, key_spec_id=partitioned)

    def _by_position(self, builder: SparkWriteBuilder, keys: KeyFrame, count: int, mode: UpsertMode) -> Write:
        view = builder.view
        read = keys.read()
        tasks = [replace(task, residual=None) for task in view.tasks(read.where)]
        updated = replaced = 0
        found: Frame | None = None
        if tasks:
            found = keys.matching(builder.rows(tasks, keys.schema)).localCheckpoint()
            how = COPY_ON_WRITE if mode == "copy-on-write" else MERGE_ON_READ
            replaced = builder.delete_positions(tasks, found.select(FILE, POSITION), how, moved=True)
            updated = keys.distinct(found) if replaced else 0
        if kept := [replace(task, residual=None) for task in view.tasks_kept(read.where)]:
            again = keys.matching(builder.rows(kept, keys.schema))
            replaced += again.count()
            updated = keys.distinct(again if found is None else found.unionByName(again))
        # More rows than keys: a key existed more than once; one row of it counts as updated.
        counts = RowCounts(inserted=count - updated, updated=updated, deleted=replaced - updated)
        return builder.build(Kind.UPSERT, counts, reads=(read,), keys=keys.field_ids)

    def upsert_matching(self, view: View, rows: GivenRows, by: Matching, settings: Settings, mode: UpsertMode) -> Write:
        return matching.upsert_matching(self.spark, view, self._given(rows, view), by, settings, mode)

    def delete_keys(self, view: View, rows: GivenRows, by: Matching, settings: Settings, mode: UpsertMode) -> Write:
        return matching.delete_keys(self.spark, view, self._given(rows, view), by, settings, mode)

    def merge(self, view: View, source: Source, plan: Merge, settings: Settings, mode: Mode) -> Write:
        if source.held is None:
            source.rows = self._frame(source.rows, view.schema)
        return merge(self.spark, view, source, plan, settings, mode)

    def explain_merge(self, view: View, rows: object, plan: Merge) -> str:
        return explain(self.spark, view, self._frame(rows, view.schema), plan)

    def rewrite(self, view: View, settings: Settings, work: Rewriting) -> Write:
        return rewrite(self.spark, view, settings, work)

    def resolve(self, view: View, settings: Settings, work: Resolving) -> Write:
        with SparkWriteBuilder(self.spark, view, replace(settings, options={})) as builder:
            tasks = list(work.tasks)
            dead = builder.with_keyed(tasks, range(len(tasks)), None)
            if dead is not None:
                builder.mark_numbered(tasks, dead)
            builder.drop_deletes(work.resolved)
            return builder.build(Kind.REWRITE, RowCounts())

    # Rows

    def row_schema(self, rows: object, schema: Schema | None) -> pa.Schema:
        return arrow_schema(frame_schema(rows)) if is_frame(rows) else incoming_schema(rows, schema)

    def without_untyped(self, rows: object, schema: Schema) -> object:
        if not is_frame(rows):
            return without_untyped(rows, schema)
        known = [each.name for each in schema.fields]
        frame: Frame = rows
        untyped = [each.name for each in frame.schema if each.dataType.typeName() == "void"]
        return frame.drop(*(name for name in untyped if match_name(name, known) is None))

    def count_fitting(self, rows: object, schema: Schema) -> int:
        return int(conform_frame(self._frame(rows, schema), schema).count())

    def _given(self, rows: GivenRows, view: View) -> GivenRows:
        if rows.held is None:
            rows.rows = self._frame(rows.rows, view.schema)
        return rows

    def _frame(self, rows: object, schema: Schema) -> Frame:
        if is_frame(rows):
            session_of(rows)
            return rows
        from pyspark.sql.pandas.types import from_arrow_schema

        table = pa.Table.from_batches(list(reader := _arrow_reader(rows, schema)), reader.schema)
        # By default Spark reads timestamps without a zone in the session's zone, where some do not exist.
        return self.spark.createDataFrame(table, from_arrow_schema(table.schema, prefer_timestamp_ntz=True))


def _arrow_reader(rows: object, schema: Schema) -> pa.RecordBatchReader:
    found = opened(rows)
    if isinstance(found, pa.RecordBatchReader):
        return found
    # The table may lack some of the columns, as it does those of a merge's source.
    return to_reader(found, source_schema(found, schema) if has_python_values(found) else schema)
