"""Builds a ``Write`` on Spark: like the Arrow engine's builder, with the rows on executors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyroaring import BitMap64

from frazil.dml.view import COPY_ON_WRITE, Mode, Settings, View
from frazil.dml.write_builder import Pieces, WriteBuilder
from frazil.errors import StorageError
from frazil.expr import Filter
from frazil.model import Content, DataFile, Run
from frazil.on_spark.changes import Copies, stage_copies, stage_position_deletes
from frazil.on_spark.fitting import means_the_same_in_arrow
from frazil.on_spark.scan import FILE, POSITION, UNEXPECTED_FILE, numbers_of, read_tasks, with_numbers
from frazil.on_spark.session import Frame, Session, estimated_bytes, translated, without_column_origins
from frazil.on_spark.stage import stage_rows
from frazil.read.plan import FileTask
from frazil.read.positions import bitmap, rows_with_positions
from frazil.stage.arrow import StagedFiles

MOST_BYTES, MOST_ROWS, MOST_WIDTH = 1 << 20, 20_000, 10_000
"""A frame within these limits (bytes estimated by Spark, rows, bytes per row) is collected and written by the driver: a
Spark job that writes files takes several times as long.
"""
MOST_POSITIONS = 500_000
"""Up to this many row positions are collected on the driver; more stay on the executors."""


class SparkWriteBuilder(WriteBuilder):
    """The same on a Spark session: ``with SparkWriteBuilder(spark, view, settings) as builder: …``.

    Frames of positions have two columns: FILE, the mark of the file of one of the tasks (``scan.read_tasks``), and
    POSITION, the number of a row in that file.
    """

    def __init__(self, spark: Session, view: View, settings: Settings) -> None:
        super().__init__(view, settings)
        self.spark = spark
        self._quiet = without_column_origins()

    def __enter__(self) -> Self:
        super().__enter__()
        self._quiet.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._quiet.__exit__(None, None, None)
        super().__exit__(kind, error, trace)

    def add_frame(self, rows: Frame, where: Filter | None = None) -> StagedFiles:
        """Stage new rows, or rows with new values. ``where``: each of them must match it."""
        view = self.view
        here = None if where is not None else fetched(rows, view.schema)
        if here is not None:
            return self.add_rows(here)
        staged = stage_rows(
            rows,
            metadata=view.metadata,
            storage=view.storage,
            runtime=view.runtime,
            options=self._settings.options,
            where=where,
            table=view.table,
        )
        self.adopt_rows(staged.files)
        return staged

    def rows(self, tasks: Sequence[FileTask], schema: Schema, *, filtered: bool = True) -> Frame:
        """The live rows of these files with their FILE and POSITION."""
        view = self.view
        return read_tasks(
            self.spark,
            tasks,
            storage=view.storage,
            metadata=view.metadata,
            schema=schema,
            filtered=filtered,
            numbered="mark",
        )

    def delete_matching(self, where: Filter, mode: Mode) -> int:
        """Delete every row that the filter selects; returns how many there were."""
        tasks = self.view.tasks(where)
        whole = [task for task in tasks if task.residual is None]
        some = [task for task in tasks if task.residual is not None]
        count = self.remove_whole(whole)
        if some:
            columns = _narrow(self.view.schema, where)
            count += self.delete_positions(some, self.rows(some, columns).select(FILE, POSITION), mode)
        return count

    def remove_whole(self, tasks: Sequence[FileTask]) -> int:
        """Remove these files; returns how many live rows they had."""
        for task in tasks:
            self.remove(task)
        plain = [task for task in tasks if not task.deletes]
        others = [replace(task, residual=None) for task in tasks if task.deletes]
        with translated("count of the rows that go"):
            live = self.rows(others, _one_column(self.view.schema), filtered=False).count() if others else 0
        return sum(task.file.record_count for task in plain) + int(live)

    def few(self, positions: Frame, tasks: Sequence[FileTask], count: int | None = None) -> pa.Table | None:
        """The positions themselves, with a task's number for FILE, if they are few enough for the driver, which is
        then faster than a job. ``count``: how many they are, where that is known.
        """
        if count is not None and count > MOST_POSITIONS:
            return None
        # A limit adds a stage to the job.
        asked = positions.limit(MOST_POSITIONS + 1) if count is None else positions
        with translated("search for rows"):
            found: pa.Table = asked.toArrow()
        return numbered_here(found, tasks) if found.num_rows <= MOST_POSITIONS else None

    def delete_positions(
        self,
        tasks: Sequence[FileTask],
        positions: Frame,
        mode: Mode,
        *,
        moved: bool = False,
        few: pa.Table | None = None,
    ) -> int:
        """Delete these live rows; returns how many there were, duplicates included.

        ``moved``: the rows have new versions among the added rows. ``few``: the same positions, if the caller has
        collected them already.
        """
        few = self.few(positions.select(FILE, POSITION), tasks) if few is None else few
        if few is not None:
            return self._delete_few(tasks, few, mode, moved=moved)
        positions = with_numbers(self.spark, positions.select(FILE, POSITION), tasks)
        if mode == COPY_ON_WRITE:
            return self._copy_the_rest(tasks, positions, moved=moved)
        marks = stage_position_deletes(self.spark, positions, tasks, self.view)
        whole = {number for number, count in marks.counts.items() if count == tasks[number].file.record_count}
        gone = [tasks[number].file.file_path for number in whole]
        for number in whole:
            self.remove(tasks[number])
        deletes = [file for file in marks.deletes if file.referenced_data_file not in gone]
        self.view.storage.delete([file.file_path for file in marks.deletes if file.referenced_data_file in gone])
        marks = replace(
            marks,
            deletes=tuple(deletes),
            touched={path: file for path, file in marks.touched.items() if path not in gone},
        )
        rows = marks.rows(self.view)
        self.adopt_marks(marks.deletes, marks.touched, rows)
        if moved:
            self.adopt_moves(rows)
            self.adopt_moves(_Uncopied([tasks[number].file for number in whole], {}))
        return sum(marks.counts.values()) + marks.repeated

    def mark_numbered(self, tasks: Sequence[FileTask], positions: Frame) -> None:
        """Mark these rows as deleted. FILE is the index of a task here."""
        marks = stage_position_deletes(self.spark, positions, tasks, self.view)
        self.adopt_marks(marks.deletes, marks.touched, marks.rows(self.view))

    def _delete_few(self, tasks: Sequence[FileTask], few: pa.Table, mode: Mode, *, moved: bool) -> int:
        partial: list[int] = []
        for number, rows in _by_file(few).items():
            task = tasks[number]
            whole = not task.deletes and len(rows) == task.file.record_count
            if whole or mode == COPY_ON_WRITE:
                self.remove(task)
            else:
                self.mark(task.file, rows)
            if not whole:
                partial.append(number)
            if moved:
                self.move(task.file.file_path, rows)
        if partial and mode == COPY_ON_WRITE:
            copies = self._copies(tasks, sorted(partial), self.spark.createDataFrame(few.select([FILE, POSITION])))
            self.adopt_copies(copies.files, copies.runs)
        return few.num_rows

    def _copy_the_rest(self, tasks: Sequence[FileTask], positions: Frame, *, moved: bool) -> int:
        counts = {row[FILE]: row["count"] for row in positions.groupBy(FILE).count().collect()}
        hit = sorted(counts)
        for number in hit:
            self.remove(tasks[number])
        copied = [number for number in hit if tasks[number].deletes or counts[number] < tasks[number].file.record_count]
        copies = self._copies(tasks, copied, positions)
        self.adopt_copies(copies.files, copies.runs)
        if moved:
            self.adopt_moves(_Uncopied([tasks[number].file for number in hit], copies.runs))
        return sum(counts.values())

    def _copies(self, tasks: Sequence[FileTask], copied: Sequence[int], positions: Frame) -> Copies:
        if not copied:
            return Copies((), {})
        if self.view.metadata.name_mapping is not None:
            # Files from before the table was an Iceberg table have no field ids, which executors need to find columns.
            return self._copied_here(tasks, copied, positions)
        drops = self.with_keyed(tasks, copied, positions)
        groups = [[number] for number in copied]
        return stage_copies(self.spark, drops, groups, tasks, self.view, self._settings)

    def with_keyed(self, tasks: Sequence[FileTask], chosen: Sequence[int], drops: Frame | None) -> Frame | None:
        """The rows to leave out of copies, and those that equality deletes remove from these files already.

        FILE is the index of a task here.
        """
        keyed = [number for number in chosen if _has_keys(tasks[number])]
        if not keyed:
            return drops
        column = _one_column(self.view.schema)
        some = [replace(tasks[number], residual=None) for number in keyed]
        every = self.rows([replace(task, deletes=()) for task in some], column, filtered=False).select(FILE, POSITION)
        live = self.rows(some, column, filtered=False).select(FILE, POSITION)
        found = with_numbers(self.spark, every.join(live, [FILE, POSITION], "left_anti"), some, keyed)
        return found if drops is None else drops.select(FILE, POSITION).unionByName(found)

    def _copied_here(self, tasks: Sequence[FileTask], copied: Sequence[int], positions: Frame) -> Copies:
        before = len(self._parts.added)
        for number in copied:
            rows = positions.where(positions[FILE] == number).select(POSITION).toArrow().column(0).combine_chunks()
            self.copy(_remaining_rows(replace(tasks[number], residual=None), bitmap(rows), self), tasks[number].file)
        files = tuple(self._parts.added[before:])
        del self._parts.added[before:]
        return Copies(files, {file.file_path: self._parts.copies[file.file_path] for file in files})


def fetched(rows: Frame, schema: Schema) -> pa.Table | None:
    """The rows, if they are few and short and Arrow's writer stores them the same way; otherwise None."""
    if not means_the_same_in_arrow(rows, schema) or estimated_bytes(rows) > MOST_BYTES:
        return None
    from pyspark.sql import functions as F

    named = rows.toDF(*(f"c{number}" for number in range(len(rows.columns))))
    long = [F.col(each.name) for each in named.schema if each.dataType.typeName() in ("string", "binary")]
    if long:
        width = sum((F.coalesce(F.octet_length(each), F.lit(0)) for each in long), F.lit(0))
        named = named.where(F.when(width <= MOST_WIDTH, True).otherwise(F.raise_error(F.lit("long")).cast("boolean")))
    # Other errors occur again, and are reported, when Spark writes the rows.
    with contextlib.suppress(Exception):
        found: pa.Table = named.limit(MOST_ROWS + 1).toArrow()
        return found.rename_columns(rows.columns) if found.num_rows <= MOST_ROWS and not _has_nan(found) else None
    return None


def _has_nan(rows: pa.Table) -> bool:
    """Spark sorts NaN above all numbers, so ``NaN > 5`` holds. Arrow's statistics ignore NaN, so that Iceberg's reader
    in Spark would prune such a file; Spark's own writer drops the bounds.
    """
    floats = (column for column in rows.columns if pa.types.is_floating(column.type))
    return any(pc.any(pc.is_nan(column)).as_py() for column in floats)


def numbered_here(positions: pa.Table, tasks: Sequence[FileTask]) -> pa.Table:
    """Positions with the index of a task for FILE."""
    known = numbers_of(tasks) if tasks else {}
    marks: Any = pa.array(known, pa.int64())
    places: Any = pc.index_in(positions[FILE], value_set=marks)
    if places.null_count:
        raise StorageError(f"{UNEXPECTED_FILE}; nothing was committed")
    numbers: Any = pa.array(known.values(), pa.int32())
    return positions.set_column(positions.schema.get_field_index(FILE), FILE, numbers.take(places.combine_chunks()))


class _Uncopied(Mapping[str, BitMap64]):
    """The rows of removed files that are in no copy: those with new versions, and those deleted before."""

    def __init__(self, files: Sequence[DataFile], runs: Mapping[str, tuple[Run, ...]]) -> None:
        self._files = {file.file_path: file for file in files}
        self._runs = runs

    def __getitem__(self, path: str) -> BitMap64:
        rows = BitMap64()
        rows.add_range(0, self._files[path].record_count)
        for runs in self._runs.values():
            for run in runs:
                if run.source == path:
                    rows.remove_range(run.first, run.first + run.length)
        return rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def _remaining_rows(task: FileTask, gone: BitMap64, builder: SparkWriteBuilder) -> Pieces:
    """The live rows of a file without these."""
    for batch, numbers in rows_with_positions(task, builder.read_context):
        stay: Any = pa.array([number not in gone for number in numbers.to_pylist()], pa.bool_())  # type: ignore[operator]
        yield task.file.file_path, batch.filter(stay), numbers.filter(stay)


def _by_file(positions: pa.Table) -> dict[int, BitMap64]:
    grouped: Any = positions.group_by(FILE).aggregate([(POSITION, "list")])
    numbers, lists = grouped[FILE].to_pylist(), grouped[f"{POSITION}_list"]
    return {number: bitmap(rows.values) for number, rows in zip(numbers, lists, strict=True)}


def _has_keys(task: FileTask) -> bool:
    return any(ref.file.content == Content.EQUALITY_DELETES for ref in task.deletes)


def _narrow(schema: Schema, where: Filter) -> Schema:
    """One column, as only positions are needed. Columns that the filter reads are added by the scan."""
    named = [field for field in schema.fields if field.field_id in where.field_ids]
    return Schema(*named[:1]) if named else _one_column(schema)


def _one_column(schema: Schema) -> Schema:
    return Schema(schema.fields[0])


def check_count(staged: StagedFiles, found: int, what: str) -> None:
    """The deleted rows and their new versions are read separately, and must be the same rows."""
    if staged.rows != found:
        raise StorageError(
            f"The {what} found {found} rows to change and wrote {staged.rows}",
            advice="Nothing was committed. Values that differ from run to run cause this: remove them from the write",
        )
