"""A write in the making on Spark: the same as on Arrow, with the rows on executors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyiceberg.schema import Schema
from pyroaring import BitMap64

from frazil.dml.draft import Draft, Pieces
from frazil.dml.view import COPY_ON_WRITE, Mode, Settings, View
from frazil.errors import StorageError
from frazil.format.filters import Filter
from frazil.model import Content, DataFile, Run
from frazil.on_spark.changes import Copies, stage_copies, stage_marks
from frazil.on_spark.scan import FILE, POSITION, read_tasks
from frazil.on_spark.session import Frame, Session, translated
from frazil.on_spark.stage import stage_rows
from frazil.read.plan import FileTask
from frazil.read.positions import bitmap, rows_with_positions
from frazil.stage.arrow import StagedFiles

MOST_POSITIONS = 500_000
"""So many row numbers come to the driver; more of them stay on the executors, and in the files they write."""


class SparkDraft(Draft):
    """``with SparkDraft(spark, view, settings) as draft: …``. Frames of positions have the columns FILE, a number of a
    task, and POSITION, a row of its file.
    """

    def __init__(self, spark: Session, view: View, settings: Settings) -> None:
        super().__init__(view, settings)
        self.spark = spark

    def add_frame(self, rows: Frame, where: Filter | None = None) -> StagedFiles:
        """New rows, or rows with new values. ``where``: each of them must match it."""
        view = self.view
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
            numbered=True,
        )

    def take_out_matching(self, where: Filter, mode: Mode) -> int:
        """Take out every row that the filter selects; returns how many there were."""
        tasks = self.view.tasks(where)
        whole = [task for task in tasks if task.residual is None]
        some = [task for task in tasks if task.residual is not None]
        count = self.remove_whole(whole)
        if some:
            columns = _narrow(self.view.schema, where)
            count += self.take_out_positions(some, self.rows(some, columns).select(FILE, POSITION), mode)
        return count

    def remove_whole(self, tasks: Sequence[FileTask]) -> int:
        """These files go with all their rows; returns how many of them were live."""
        for task in tasks:
            self.remove(task)
        plain = [task for task in tasks if not task.deletes]
        others = [replace(task, residual=None) for task in tasks if task.deletes]
        live = self.rows(others, _one_column(self.view.schema), filtered=False).count() if others else 0
        return sum(task.file.record_count for task in plain) + int(live)

    def few(self, positions: Frame) -> pa.Table | None:
        """The positions themselves, if they are few enough for the driver; a job for each file costs more then."""
        with translated("search for rows"):
            found: pa.Table = positions.limit(MOST_POSITIONS + 1).toArrow()
        return found if found.num_rows <= MOST_POSITIONS else None

    def take_out_positions(
        self,
        tasks: Sequence[FileTask],
        positions: Frame,
        mode: Mode,
        *,
        moved: bool = False,
        few: pa.Table | None = None,
    ) -> int:
        """Take these live rows out of their files; returns how many there were, a row named twice counted twice.

        ``moved``: they live on, with other values, among the rows that come. ``few``: the same positions, where the
        caller has them already.
        """
        few = self.few(positions.select(FILE, POSITION)) if few is None else few
        if few is not None:
            return self._take_out_few(tasks, few, mode, moved=moved)
        if mode == COPY_ON_WRITE:
            return self._copy_the_rest(tasks, positions, moved=moved)
        marks = stage_marks(self.spark, positions, tasks, self.view)
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

    def _take_out_few(self, tasks: Sequence[FileTask], few: pa.Table, mode: Mode, *, moved: bool) -> int:
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
            # Files of before the table was Iceberg's have no ids, by which executors find columns.
            return self._copied_here(tasks, copied, positions)
        drops = self.with_keyed(tasks, copied, positions)
        groups = [[number] for number in copied]
        return stage_copies(self.spark, drops, groups, tasks, self.view, self._settings)

    def with_keyed(self, tasks: Sequence[FileTask], chosen: Sequence[int], drops: Frame | None) -> Frame | None:
        """The rows to leave out of copies, with those that deletes by key take out of these files already."""
        keyed = [number for number in chosen if _has_keys(tasks[number])]
        if not keyed:
            return drops
        from pyspark.sql import functions as F

        column = _one_column(self.view.schema)
        some = [replace(tasks[number], residual=None) for number in keyed]
        every = self.rows([replace(task, deletes=()) for task in some], column, filtered=False).select(FILE, POSITION)
        live = self.rows(some, column, filtered=False).select(FILE, POSITION)
        numbers = self.spark.createDataFrame(list(enumerate(keyed)), f"`{FILE}` int, number int")
        gone = every.join(live, [FILE, POSITION], "left_anti").join(F.broadcast(numbers), FILE)
        found = gone.select(F.col("number").alias(FILE), POSITION)
        return found if drops is None else drops.select(FILE, POSITION).unionByName(found)

    def _copied_here(self, tasks: Sequence[FileTask], copied: Sequence[int], positions: Frame) -> Copies:
        before = len(self._parts.added)
        for number in copied:
            rows = positions.where(positions[FILE] == number).select(POSITION).toArrow().column(0).combine_chunks()
            self.copy(_others(replace(tasks[number], residual=None), bitmap(rows), self), tasks[number].file)
        files = tuple(self._parts.added[before:])
        del self._parts.added[before:]
        return Copies(files, {file.file_path: self._parts.copies[file.file_path] for file in files})


class _Uncopied(Mapping[str, BitMap64]):
    """The rows of removed files that are in no copy: those that live on with other values, or were gone before."""

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


def _others(task: FileTask, gone: BitMap64, draft: SparkDraft) -> Pieces:
    """The live rows of a file that are not among these."""
    for batch, numbers in rows_with_positions(task, draft.reading):
        stay: Any = pa.array([number not in gone for number in numbers.to_pylist()], pa.bool_())  # type: ignore[operator]
        yield task.file.file_path, batch.filter(stay), numbers.filter(stay)


def _by_file(positions: pa.Table) -> dict[int, BitMap64]:
    grouped: Any = positions.group_by(FILE).aggregate([(POSITION, "list")])
    numbers, lists = grouped[FILE].to_pylist(), grouped[f"{POSITION}_list"]
    return {number: bitmap(rows.values) for number, rows in zip(numbers, lists, strict=True)}


def _has_keys(task: FileTask) -> bool:
    return any(ref.file.content == Content.EQUALITY_DELETES for ref in task.deletes)


def _narrow(schema: Schema, where: Filter) -> Schema:
    """One column, as rows are looked for and not looked at. Those that the filter reads come by themselves."""
    named = [field for field in schema.fields if field.field_id in where.field_ids]
    return Schema(*named[:1]) if named else _one_column(schema)


def _one_column(schema: Schema) -> Schema:
    return Schema(schema.fields[0])


def check_count(staged: StagedFiles, found: int, what: str) -> None:
    """Rows that were taken out and rows that take their place are read twice, and must be the same ones."""
    if staged.rows != found:
        raise StorageError(
            f"The {what} found {found} rows to change and wrote {staged.rows}",
            advice="Nothing was committed. Values that differ from run to run do this: leave them out of the write",
        )
