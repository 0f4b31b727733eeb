"""Inserted and deleted rows as a DataFrame: what read/changes.py returns, with the rows on executors.

    differences ─▶ parts: whole files of many snapshots │ files that lost rows │ files that were copied ─▶ union

Only row positions are joined, and only for files of which some rows changed. The driver reads manifests and the
records of copies.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

import pyarrow as pa
from pyiceberg.schema import Schema

from frazil.errors import Unsupported
from frazil.model import Lineage
from frazil.on_spark.scan import FILE, POSITION, Numbered, read_tasks
from frazil.on_spark.session import Frame, Session
from frazil.read.changes import DELETE, INSERT, ORDINAL, SNAPSHOT, TYPE, Changes, Difference, Step
from frazil.read.plan import FileTask

arrow: Any = pa
SparkColumn = Any
_OUTPUT, _OUTPUT_ROW = "__frazil_output", "__frazil_output_row"
_SOURCE, _SOURCE_ROW = "__frazil_source", "__frazil_source_row"
_FIRST, _OUTPUT_FIRST, _LENGTH, _OFFSET = (
    "__frazil_first",
    "__frazil_output_first",
    "__frazil_length",
    "__frazil_offset",
)
_LONGEST_RUN = 65_536
Tasks = Sequence[FileTask]


def changes_to_spark(changes: Changes, spark: Session) -> Frame:
    """The changes as a native DataFrame."""
    return _Changelog(changes, spark).frame()


class _Changelog:
    """One call of changes_to_spark."""

    def __init__(self, changes: Changes, spark: Session) -> None:
        from pyspark.sql import functions

        self._f: Any = functions
        self._changes = changes
        self._spark = spark
        self._names = [each.name for each in changes.columns.fields]

    def frame(self) -> Frame:
        whole: list[tuple[str, Step, FileTask]] = []
        parts: list[Frame] = []
        for found, lineage in self._changes.differences():
            removed, added = list(found.removed), list(found.added)
            if lineage is None:
                parts += self._by_value(found)
                removed, added = [], []
            elif lineage.outputs:
                parts += self._copied(found, lineage)
                named = {run.source for runs in lineage.outputs.values() for run in runs}
                removed = [task for task in removed if task.file.file_path not in named]
                added = [task for task in added if task.file.file_path not in lineage.outputs]
            parts += self._marked(found)
            whole += [(DELETE, found.step, task) for task in removed]
            whole += [(INSERT, found.step, task) for task in added]
        parts += self._whole(whole)
        if not parts:
            return self._facts(self._read([]), "", None)
        return reduce(lambda one, other: one.union(other), parts)

    # Files whose live rows are all inserted or all deleted

    def _whole(self, found: Iterable[tuple[str, Step, FileTask]]) -> Iterator[Frame]:
        """One relation for files without deletes, whatever their snapshots; deletes are those of one snapshot."""
        groups: dict[tuple[str, int] | None, list[tuple[str, Step, FileTask]]] = {}
        for kind, step, task in found:
            groups.setdefault((kind, step.ordinal) if task.deletes else None, []).append((kind, step, task))
        for key, members in groups.items():
            tasks = [task for _, _, task in members]
            kind, step, _ = members[0]
            if key is not None or len({(kind, step.ordinal) for kind, step, _ in members}) == 1:
                yield self._facts(self._read(tasks), kind, step)
                continue
            yield self._read(tasks, numbered="number").join(self._listed(members), FILE).select(*self._columns())

    def _listed(self, members: Sequence[tuple[str, Step, FileTask]]) -> Frame:
        return self._small(
            {
                FILE: arrow.array(range(len(members)), pa.int32()),
                TYPE: arrow.array([kind for kind, _, _ in members], pa.string()),
                ORDINAL: arrow.array([step.ordinal for _, step, _ in members], pa.int32()),
                SNAPSHOT: arrow.array([step.snapshot.snapshot_id for _, step, _ in members], pa.int64()),
            }
        )

    # Files in both snapshots whose deletes differ

    def _marked(self, found: Difference) -> Iterator[Frame]:
        if not found.kept:
            return
        before, after = [pair[0] for pair in found.kept], [pair[1] for pair in found.kept]
        yield self._facts(self._less(before, self._positions(after)), DELETE, found.step)
        # When a delete file is removed, rows reappear.
        back = [at for at, (old, new) in enumerate(found.kept) if _has_lost(old, new)]
        if back:
            old, new = [before[at] for at in back], [after[at] for at in back]
            yield self._facts(self._less(new, self._positions(old)), INSERT, found.step)

    def _less(self, tasks: Tasks, positions: Frame) -> Frame:
        """The live rows of these files without those at the given positions."""
        return self._read(tasks, numbered="number").join(positions, [FILE, POSITION], "left_anti")

    def _positions(self, tasks: Tasks) -> Frame:
        return self._read(tasks, numbered="number", schema=Schema()).select(FILE, POSITION)

    # Files that Frazil's copy-on-write replaced

    def _copied(self, found: Difference, lineage: Lineage) -> Iterator[Frame]:
        """Rows of the sources that the outputs lack, and the reverse: none, unless deletes apply to either."""
        named = {run.source for runs in lineage.outputs.values() for run in runs}
        sources = [task for task in found.removed if task.file.file_path in named]
        outputs = [task for task in found.added if task.file.file_path in lineage.outputs]
        if not sources and not outputs:
            return
        pairs = self._pairs(lineage, sources, outputs)
        f = self._f
        alive = pairs
        if any(task.deletes for task in outputs):
            rows = self._positions(outputs).select(f.col(FILE).alias(_OUTPUT), f.col(POSITION).alias(_OUTPUT_ROW))
            alive = pairs.join(rows, [_OUTPUT, _OUTPUT_ROW], "left_semi")
        stayed = alive.select(f.col(_SOURCE).alias(FILE), f.col(_SOURCE_ROW).alias(POSITION))
        yield self._facts(self._less(sources, stayed), DELETE, found.step)
        copied_whole = all(run.source in {task.file.file_path for task in sources} for run in _runs(lineage, outputs))
        if not copied_whole or any(task.deletes for task in sources):
            rows = self._positions(sources).select(f.col(FILE).alias(_SOURCE), f.col(POSITION).alias(_SOURCE_ROW))
            known = pairs.join(rows, [_SOURCE, _SOURCE_ROW], "left_semi")
            same = known.select(f.col(_OUTPUT).alias(FILE), f.col(_OUTPUT_ROW).alias(POSITION))
            yield self._facts(self._less(outputs, same), INSERT, found.step)

    def _pairs(self, lineage: Lineage, sources: Tasks, outputs: Tasks) -> Frame:
        """Each copied row: its output file and row there, its source file and row there."""
        f = self._f
        numbers = {task.file.file_path: number for number, task in enumerate(sources)}
        pieces: list[tuple[int, int, int, int, int]] = []
        for output, task in enumerate(outputs):
            at = 0
            for run in lineage.outputs[task.file.file_path]:
                if run.source in numbers:
                    # Cut into pieces, as each becomes a list of numbers on its way to rows.
                    for start in range(0, run.length, _LONGEST_RUN):
                        length = min(_LONGEST_RUN, run.length - start)
                        pieces.append((output, at + start, numbers[run.source], run.first + start, length))
                at += run.length
        kinds = (pa.int32(), pa.int64(), pa.int32(), pa.int64(), pa.int64())
        names = (_OUTPUT, _OUTPUT_FIRST, _SOURCE, _FIRST, _LENGTH)
        columns = {
            name: arrow.array([piece[at] for piece in pieces], kind)
            for at, (name, kind) in enumerate(zip(names, kinds, strict=True))
        }
        runs = self._spark.createDataFrame(arrow.table(columns))
        offsets = f.explode(f.sequence(f.lit(0).cast("bigint"), f.col(_LENGTH) - 1)).alias(_OFFSET)
        return runs.select(_OUTPUT, _OUTPUT_FIRST, _SOURCE, _FIRST, offsets).select(
            _OUTPUT,
            (f.col(_OUTPUT_FIRST) + f.col(_OFFSET)).alias(_OUTPUT_ROW),
            _SOURCE,
            (f.col(_FIRST) + f.col(_OFFSET)).alias(_SOURCE_ROW),
        )

    # Files that another engine replaced

    def _by_value(self, found: Difference) -> Iterator[Frame]:
        went, came = self._read(found.removed), self._read(found.added)
        comparable = _Comparable(went.schema, self._changes.table)
        for kind, rows, others in ((DELETE, went, came), (INSERT, came, went)):
            left = comparable.to(rows).exceptAll(comparable.to(others))
            yield self._facts(comparable.back(left), kind, found.step)

    # Frames

    def _read(self, tasks: Tasks, *, numbered: Numbered = "no", schema: Schema | None = None) -> Frame:
        return read_tasks(
            self._spark,
            tasks,
            storage=self._changes.storage,
            metadata=self._changes.metadata,
            schema=self._changes.columns if schema is None else schema,
            filtered=False,
            numbered=numbered,
        )

    def _facts(self, frame: Frame, kind: str, step: Step | None) -> Frame:
        f = self._f
        ordinal, snapshot_id = (0, 0) if step is None else (step.ordinal, step.snapshot.snapshot_id)
        return frame.select(
            *self._own(),
            f.lit(kind).alias(TYPE),
            f.lit(ordinal).cast("int").alias(ORDINAL),
            f.lit(snapshot_id).cast("bigint").alias(SNAPSHOT),
        )

    def _own(self) -> list[SparkColumn]:
        return [self._f.col(_quoted(name)) for name in self._names]

    def _columns(self) -> list[SparkColumn]:
        return [*self._own(), TYPE, ORDINAL, SNAPSHOT]

    def _small(self, rows: Mapping[str, Any]) -> Frame:
        return self._f.broadcast(self._spark.createDataFrame(arrow.table(dict(rows))))


def _has_lost(before: FileTask, after: FileTask) -> bool:
    """Whether a delete file that applied before no longer does."""
    still = {ref.file.file_path for ref in after.deletes}
    return any(ref.file.file_path not in still for ref in before.deletes)


def _runs(lineage: Lineage, outputs: Tasks) -> Iterator[Any]:
    return (run for task in outputs for run in lineage.outputs[task.file.file_path])


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


class _Comparable:
    """Converts rows to a form that Spark compares bit by bit, and back.

    Spark cannot compare maps and treats -0.0 as 0.0, so maps become arrays of entries and floats become strings.
    """

    def __init__(self, schema: Any, table: str) -> None:
        from pyspark.sql import types

        self._fields = list(schema.fields)
        self._floats = (types.FloatType, types.DoubleType)
        self._map = types.MapType
        for each in self._fields:
            kind = each.dataType
            # A column that is a map itself becomes its entries.
            parts = (kind.keyType, kind.valueType) if isinstance(kind, types.MapType) else (kind,)
            if any(_holds_map(part) for part in parts):
                raise Unsupported(
                    f"Spark cannot compare the maps inside the column {each.name!r} of {table}, which is needed for "
                    "snapshots of other engines that replace files",
                    advice="Use to_arrow() or to_batches()",
                )

    def to(self, frame: Frame) -> Frame:
        from pyspark.sql import functions as f

        def made(field: Any) -> SparkColumn:
            column = f.col(_quoted(field.name))
            if isinstance(field.dataType, self._floats):
                return column.cast("string").alias(field.name)
            if isinstance(field.dataType, self._map):
                return f.map_entries(column).alias(field.name)
            return column

        return frame.select(*map(made, self._fields))

    def back(self, frame: Frame) -> Frame:
        from pyspark.sql import functions as f

        def made(field: Any) -> SparkColumn:
            column = f.col(_quoted(field.name))
            if isinstance(field.dataType, self._floats):
                return column.cast(field.dataType).alias(field.name)
            if isinstance(field.dataType, self._map):
                return f.map_from_entries(column).alias(field.name)
            return column

        return frame.select(*map(made, self._fields))


def _holds_map(kind: Any) -> bool:
    from pyspark.sql import types

    if isinstance(kind, types.MapType):
        return True
    if isinstance(kind, types.ArrayType):
        return _holds_map(kind.elementType)
    return isinstance(kind, types.StructType) and any(_holds_map(each.dataType) for each in kind.fields)
