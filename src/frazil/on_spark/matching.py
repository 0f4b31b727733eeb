"""Upserts and deletes by columns that the caller names, and upserts in which the latest row of a key wins, on Spark.

    rows ─▶ materialised once (P34) ─▶ one row for each key ─▶ joined with the files that may have these keys
    ─▶ which rows are applied ─▶ these are written, and the rows that they replace deleted by position

The rules are those of ``dml/matching.py``: a null key is equal to nothing.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import Any

from pyiceberg.schema import Schema

from frazil.commit.operations import Kind, Read, RowCounts, Write
from frazil.dml.matching import GivenRows, Matching, mode_of_deletes, repeated_key
from frazil.dml.upsert import UpsertMode, reaching_spec
from frazil.dml.view import Settings, View
from frazil.format.partitions import reaches_everything
from frazil.on_spark.fitting import conform_frame, fitted_columns
from frazil.on_spark.keys import MOST_KEYS, quoted_path, range_read, read_of
from frazil.on_spark.scan import FILE, POSITION
from frazil.on_spark.session import Frame, Session, materialised, translated
from frazil.on_spark.stage import stage_keys
from frazil.on_spark.write_builder import SparkWriteBuilder
from frazil.read.plan import FileTask
from frazil.stage.deletes import key_schema

ROW, _KEY, _VALUE, _THERE = "__frazil_source", "__frazil_key", "__frazil_value", "__frazil_there"
SparkColumn = Any


def upsert_matching(
    spark: Session, view: View, rows: GivenRows, by: Matching, settings: Settings, mode: UpsertMode
) -> Write:
    """Insert or replace rows by these columns, found by a search."""
    from pyspark.sql import functions as F

    # Which rows are applied depends on those of the table, so nothing of an earlier evaluation is kept.
    view = replace(view, kept=None)
    with SparkWriteBuilder(spark, view, settings) as builder, translated(f"upsert into {view.table}"):
        made, count = _held(rows, lambda frame: frame)
        if not count:
            return builder.build(Kind.UPSERT, RowCounts())
        given = _flat(_fitted(made, view.schema), view.schema, by)
        keyed = _keyed(given, by)
        keyed = _latest(keyed, by) if by.latest_by is not None else _unique(keyed, view.schema, by)
        read, tasks = _read(builder, keyed, by)
        found = _found(builder, tasks, keyed, by)
        staged_rows = made
        if by.latest_by is not None:
            older = found.groupBy(ROW).agg(F.max(_THERE).alias(_THERE), F.first(_VALUE).alias(_VALUE))
            older = older.where(f"{_THERE} is not null and ({_VALUE} is null or {_VALUE} < {_THERE})").select(ROW)
            found = found.join(older, ROW, "left_anti")
            alone = given.where(~_is_whole(by))
            applied = keyed.join(older, ROW, "left_anti").select(ROW).unionByName(alone.select(ROW))
            staged_rows = made.join(applied, ROW, "left_semi")
        staged = builder.add_frame(staged_rows.drop(ROW))
        updated = replaced = 0
        if tasks:
            found, updated = found.select(FILE, POSITION, ROW), int(found.select(ROW).distinct().count())
            how = mode_of_deletes(mode)
            replaced = builder.delete_positions(tasks, found.select(FILE, POSITION), how, moved=True) if updated else 0
        # More rows than keys: a key existed more than once; one row of it counts as updated.
        counts = RowCounts(inserted=staged.rows - updated, updated=updated, deleted=replaced - updated)
        keys_of_table = by.field_ids if by.is_declared else ()
        return builder.build(Kind.UPSERT, counts, reads=(read,), keys=keys_of_table)


def delete_keys(
    spark: Session, view: View, rows: GivenRows, by: Matching, settings: Settings, mode: UpsertMode
) -> Write:
    """Delete every row with one of these keys: by equality deletes, or found by a search."""
    schema = key_schema(view.schema, by.field_ids)
    with SparkWriteBuilder(spark, view, settings) as builder, translated(f"delete by key in {view.table}"):
        if mode == "equality":
            return _by_equality(builder, rows, by)
        made, count = _held(rows, lambda frame: conform_frame(frame, schema))
        if not count:
            return builder.build(Kind.DELETE, RowCounts())
        keyed = _keyed(_flat(made, schema, by), by)
        read, tasks = _read(builder, keyed, by)
        # A row of the table counts once, however often its key was given.
        keyed = keyed.dropDuplicates(_keys(by))
        found = _found(builder, tasks, keyed, by).select(FILE, POSITION)
        deleted = builder.delete_positions(tasks, found, mode_of_deletes(mode)) if tasks else 0
        return builder.build(Kind.DELETE, RowCounts(deleted=deleted), reads=(read,))


def _by_equality(builder: SparkWriteBuilder, rows: GivenRows, by: Matching) -> Write:
    view = builder.view
    spec_id = reaching_spec(view)
    frame = conform_frame(rows.rows, key_schema(view.schema, by.field_ids))
    builder.adopt_keys(
        stage_keys(frame, by.field_ids, spec_id, metadata=view.metadata, storage=view.storage, runtime=view.runtime)
    )
    partitioned = None if reaches_everything(view.metadata.spec(spec_id)) else spec_id
    return builder.build(Kind.ROW_DELTA, RowCounts(), keys=by.field_ids, key_spec_id=partitioned)


# The given rows: _KEY0, _KEY1, …, _VALUE (that of latest_by) and ROW, the number of the row


def _held(rows: GivenRows, make: Any) -> tuple[Frame, int]:
    """The rows with their numbers, run once however often the call is evaluated."""
    from pyspark.sql import functions as F

    if rows.held is None:
        rows.held = materialised(make(rows.rows).withColumn(ROW, F.monotonically_increasing_id()))
    held: tuple[Frame, int] = rows.held
    return held


def _fitted(made: Frame, schema: Schema) -> Frame:
    """The rows in the table's columns, with their numbers."""
    names, columns = fitted_columns(made.drop(ROW), schema)
    return made.toDF(*names, ROW).select(
        *(each.alias(field.name) for each, field in zip(columns, schema.fields, strict=True)), ROW
    )


def _flat(rows: Frame, schema: Schema, by: Matching) -> Frame:
    return rows.select(*_columns(schema, by), ROW)


def _columns(schema: Schema, by: Matching, value: str = _VALUE) -> list[SparkColumn]:
    from pyspark.sql import functions as F

    columns = [
        F.col(quoted_path(schema, field_id)).alias(key) for field_id, key in zip(by.field_ids, _keys(by), strict=True)
    ]
    if by.latest_by is not None:
        columns.append(F.col(quoted_path(schema, by.latest_by)).alias(value))
    return columns


def _keys(by: Matching) -> list[str]:
    return [f"{_KEY}{at}" for at in range(len(by.field_ids))]


def _is_whole(by: Matching) -> SparkColumn:
    from pyspark.sql import functions as F

    return reduce(lambda one, other: one & other, (F.col(key).isNotNull() for key in _keys(by)))


def _keyed(rows: Frame, by: Matching) -> Frame:
    """The rows with a whole key."""
    return rows.where(_is_whole(by))


def _unique(rows: Frame, schema: Schema, by: Matching) -> Frame:
    twice = rows.groupBy(*_keys(by)).count().where("count > 1").limit(1).collect()
    if twice:
        names = (schema.find_column_name(field_id) for field_id in by.field_ids)
        shown = ", ".join(f"{name}={value}" for name, value in zip(names, twice[0], strict=False))
        raise repeated_key(twice[0]["count"], shown)
    return rows


def _latest(rows: Frame, by: Matching) -> Frame:
    """For each key the row with the greatest value, and of equal ones the last. A null is less than any value."""
    from pyspark.sql import functions as F

    last = F.max(F.struct(_VALUE, ROW)).alias("last")
    return rows.groupBy(*_keys(by)).agg(last).select(*_keys(by), "last.*").localCheckpoint()


# Rows of the table


def _read(builder: SparkWriteBuilder, keyed: Frame, by: Matching) -> tuple[Read, tuple[FileTask, ...]]:
    """Which rows of the table the call depends on, and the files that may have some of them."""
    view, keys = builder.view, keyed.select(*_keys(by))
    few = keys.limit(MOST_KEYS + 1).toArrow()
    read = read_of(few, by.field_ids, view) if few.num_rows <= MOST_KEYS else range_read(keys, by.field_ids, view)
    # With latest_by, rows that are not replaced decide as well: they must stay.
    read = replace(read, sees_removals=by.latest_by is not None)
    return read, tuple(replace(task, residual=None) for task in view.tasks(read.where))


def _found(builder: SparkWriteBuilder, tasks: tuple[FileTask, ...], keyed: Frame, by: Matching) -> Frame:
    """Rows of the table with one of the keys: their places, and the given row of each. Materialised."""
    schema = builder.view.schema
    wanted = by.field_ids if by.latest_by is None else (*by.field_ids, by.latest_by)
    there = key_schema(schema, wanted)
    rows = builder.rows(tasks, there).select(FILE, POSITION, *_columns(there, by, _THERE))
    return materialised(rows.join(keyed, _keys(by), "inner").drop(*_keys(by)))[0]
