"""Rewrites groups of files on Spark: copies of files in their order, and rows that are sorted over all executors.

rows of a group ─▶ + curve's key ─▶ ranges of the order, one per task ─▶ sort ─▶ Arrow's writer ─▶ files, sources
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from frazil.commit.operations import Kind, RowCounts, Write
from frazil.dml import curves
from frazil.dml.rewrite import SAMPLE_ROWS, Rewriting, most_runs, runs_of
from frazil.dml.view import Settings, View
from frazil.errors import StorageError, Unsupported
from frazil.format.storage import is_local, local_path, make_folder
from frazil.model import DataFile, Run
from frazil.on_spark import executor_reorder
from frazil.on_spark.changes import Copies, stage_copies
from frazil.on_spark.placing import by_value, new_folder
from frazil.on_spark.scan import FILE, POSITION, numbers_of
from frazil.on_spark.session import Frame, Session, translated
from frazil.on_spark.stage import WriteJob, arrow_job, file_columns, returned, sort_keys
from frazil.on_spark.transforms import decode_partition, with_partition
from frazil.on_spark.write_builder import SparkWriteBuilder
from frazil.read.plan import FileTask
from frazil.stage.arrow import WriteLayout, data_file, layout_for, sort_columns

_KEY = "__frazil_curve"
_MOST_TASKS = 4096


def rewrite(spark: Session, view: View, settings: Settings, work: Rewriting) -> Write:
    """Rewrite groups of files on a session."""
    plain = replace(settings, options=work.with_bounds(view))
    with SparkWriteBuilder(spark, view, plain) as builder:
        for task in (task for group in work.groups for task in group):
            builder.remove(task)
        _copy_in_place(builder, plain, [group for group in work.groups if work.keeps_layout(group)])
        for group in work.groups:
            if not work.keeps_layout(group):
                copies = _Reordering(builder, plain, group, work).staged()
                builder.adopt_copies(copies.files, copies.runs)
        if work.drops_unneeded:
            builder.drop_unneeded_deletes()
        return builder.build(Kind.REWRITE, RowCounts())


def _copy_in_place(builder: SparkWriteBuilder, settings: Settings, found: Sequence[Sequence[FileTask]]) -> None:
    tasks: list[FileTask] = []
    groups: list[list[int]] = []
    for group in found:
        groups.append(list(range(len(tasks), len(tasks) + len(group))))
        tasks += group
    drops = builder.with_keyed(tasks, range(len(tasks)), None)
    copies = stage_copies(builder.spark, drops, groups, tasks, builder.view, settings)
    builder.adopt_copies(copies.files, copies.runs)


class _Reordering:
    """The rows of one group in another order, or in partitions of another spec."""

    def __init__(
        self, builder: SparkWriteBuilder, settings: Settings, group: Sequence[FileTask], work: Rewriting
    ) -> None:
        self._builder = builder
        self._view = view = builder.view
        self._group = group
        self._work = work
        spec_id = group[0].file.spec_id if work.spec_id is None else work.spec_id
        self._moves = spec_id != group[0].file.spec_id
        purpose = "rows" if self._moves else "copies"
        layout = layout_for(view.metadata, view.schema, spec_id, settings.options, purpose)  # type: ignore[arg-type]
        order = work.ordering
        sort = () if order is None or order.is_curve else sort_columns(view.schema, order.order)
        self._job = WriteJob(
            builder.spark, replace(layout, sort=sort), view.metadata, view.storage, view.runtime, native=False
        )
        self._has_lineage = sum(task.file.record_count for task in group) <= most_runs(view)

    @property
    def _layout(self) -> WriteLayout:
        return self._job.layout

    def staged(self) -> Copies:
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        observation = Observation()
        rows = self._physical()
        keys = self._sort_keys()
        if keys:
            rows = self._with_curve(rows).repartitionByRange(self._tasks(), *keys)
        # After the shuffle, whose tasks may run twice.
        rows = rows.observe(observation, F.count(F.lit(1)).alias("rows"))
        if keys:
            rows = rows.sortWithinPartitions(*keys)
        rows = rows.drop(_KEY)
        with new_folder(self._view) as folder, translated(f"rewrite of {self._view.table}"):
            if is_local(folder.path):
                make_folder(local_path(folder.path))
            job = {**arrow_job(folder.path, self._job), "partitioned": self._moves and self._job.partitioned}
            work = by_value(partial(executor_reorder.write_reordered, {**job, "lineage": self._has_lineage}))
            found = rows.mapInArrow(work, executor_reorder.REORDERED).collect()
            written = sum(row["rows"] for row in found)
            if written != (expected := observation.get.get("rows") or 0):
                raise StorageError(
                    f"Spark processed {expected} rows, but the files it wrote hold {written}; nothing was committed"
                )
            folder.accept([row["path"] for row in found])
        files = tuple(self._described(row) for row in found)
        return Copies(files, self._runs(found))

    def _physical(self) -> Frame:
        """The columns of the files, the partition's text if the rows change partitions, FILE and POSITION."""
        from pyspark.sql import functions as F

        rows = self._builder.rows(self._group, self._view.schema, filtered=False)
        names, columns = file_columns(rows.drop(FILE, POSITION), self._job)
        made = rows.toDF(*names, FILE, POSITION).select(*columns, FILE, POSITION)
        if self._moves and self._job.partitioned:
            made = with_partition(made, self._job.hidden, self._job.spec, self._layout.schema, self._job.at)
            made = made.select(*self._layout.target.names, self._job.hidden, F.col(FILE), F.col(POSITION))
        return made

    def _sort_keys(self) -> list[Any]:
        from pyspark.sql import functions as F

        ordering = self._work.ordering
        moved = [F.col(self._job.hidden).asc()] if self._moves and self._job.partitioned else []
        if ordering is not None and ordering.is_curve:
            return [*moved, F.col(_KEY).asc()]
        own = sort_keys(self._job)
        return [*moved, *(own[1:] if self._job.partitioned else own)]

    def _tasks(self) -> int:
        size = sum(task.file.file_size_in_bytes for task in self._group)
        return max(1, min(_MOST_TASKS, -(-size // self._layout.settings.target_bytes)))

    # Curves

    def _with_curve(self, rows: Frame) -> Frame:
        ordering = self._work.ordering
        if ordering is None or not ordering.is_curve:
            return rows
        from pyspark.sql import types

        self._check_numpy()
        fields = [each.source_id for each in ordering.order.fields]
        named = [f"{_KEY}_{number}" for number in range(len(fields))]
        columns = [self._job.at(field_id).alias(name) for field_id, name in zip(fields, named, strict=True)]
        limits = self._limits(rows.select(*columns), len(fields))
        given = rows.select("*", *columns)
        first = len(rows.columns)
        job = {
            "columns": list(range(first, first + len(fields))),
            "limits": limits,
            "curve": ordering.kind,
            "name": _KEY,
        }
        schema = types.StructType([*given.schema.fields, types.StructField(_KEY, types.LongType())])
        return given.mapInArrow(by_value(partial(curves.with_keys, job)), schema).drop(*named)

    def _limits(self, columns: Frame, count: int) -> list[list[Any]]:
        total = max(1, sum(task.file.record_count for task in self._group))
        share = min(1.0, SAMPLE_ROWS / total)
        picked = columns if share == 1.0 else columns.sample(share, seed=0)
        with translated(f"sample of {self._view.table}"):
            sample = picked.toArrow()
        return [curves.boundaries(sample.column(at), count) for at in range(count)]

    def _check_numpy(self) -> None:
        probe = self._builder.spark.range(1).mapInArrow(
            by_value(executor_reorder.has_numpy), executor_reorder.HAS_NUMPY
        )
        if not all(row["found"] for row in probe.collect()):
            raise Unsupported(
                "The Python of Spark's executors has no numpy, which curves need",
                advice="Install numpy there, or use strategy='sort'",
            )

    # Files

    def _described(self, row: Any) -> DataFile:
        file = returned(row)
        partition: Any = self._group[0].file.partition
        if self._moves:
            partition = decode_partition(file.partition, self._job.spec, self._layout.schema) if file.partition else ()
            if partition is None:
                raise Unsupported("These rows cannot be moved to this partition spec on Spark", advice="Use Arrow")
        made = data_file(file.path, file.size, file.footer, file.observed, self._layout, partition)
        order = self._work.ordering
        return replace(made, sort_order_id=0 if order is None else order.order_id(self._view))

    def _runs(self, found: Sequence[Any]) -> Mapping[str, tuple[Run, ...]]:
        if not self._has_lineage:
            return {row["path"]: () for row in found}
        known = numbers_of(self._group)
        marks = np.array(sorted(known), dtype=np.int64)
        numbers = np.array([known[int(mark)] for mark in marks], dtype=np.int64)
        paths = [task.file.file_path for task in self._group]
        runs = {}
        for row in found:
            sources = numbers[np.searchsorted(marks, np.frombuffer(row["marks"], dtype=np.int64))]
            runs[row["path"]] = runs_of(paths, sources, np.frombuffer(row["positions"], dtype=np.int64), len(sources))
        return runs
