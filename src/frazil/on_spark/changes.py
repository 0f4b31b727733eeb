"""Changes to existing files, made by Spark's executors: position deletes, and copies of the remaining rows.

The driver gets the names, sizes and footers of the new files. Row positions stay on disk.
"""

from __future__ import annotations

import array
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pyroaring import BitMap64

from frazil.dml.view import Settings, View
from frazil.format import statistics
from frazil.model import PATH_FIELD, POSITION_FIELD, Content, DataFile, Run
from frazil.on_spark import executor_changes
from frazil.on_spark.placing import by_value, keys_for, new_folder, s3_options
from frazil.on_spark.scan import FILE, POSITION
from frazil.on_spark.session import Frame, Session, translated
from frazil.read.arrow import partition_values
from frazil.read.deletes import Deletes
from frazil.read.layout import constant
from frazil.read.plan import FileTask
from frazil.stage.arrow import WriteLayout, data_file, layout_for
from frazil.stage.deletes import position_deletes

_COPY_BATCH_ROWS = 65_536


# Deleted rows


@dataclass(frozen=True, slots=True, eq=False)
class PositionDeletes:
    """Durable position delete files."""

    deletes: tuple[DataFile, ...]
    touched: Mapping[str, DataFile]
    counts: Mapping[int, int]
    """Index of a task → number of deleted rows of its file."""
    repeated: int
    """How many positions were duplicates."""

    def rows(self, view: View) -> StagedPositions:
        return StagedPositions({str(file.referenced_data_file): file for file in self.deletes}, view)


class StagedPositions(Mapping[str, BitMap64]):
    """The rows of staged position delete files, read back lazily per data file."""

    def __init__(self, deletes: Mapping[str, DataFile], view: View) -> None:
        self._deletes = deletes
        self._read = Deletes(view.storage, view.metadata)

    def __getitem__(self, path: str) -> BitMap64:
        return self._read.rows_by_file(self._deletes[path])[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._deletes)

    def __len__(self) -> int:
        return len(self._deletes)


def stage_position_deletes(spark: Session, positions: Frame, tasks: Sequence[FileTask], view: View) -> PositionDeletes:
    """Write one position delete file for each data file that the frame's (file, position) rows name."""
    from pyspark.sql import functions as F

    paths = {number: task.file.file_path for number, task in enumerate(tasks)}
    layout = layout_for(view.metadata, view.schema, view.metadata.default_spec_id, {}, "copies")
    with new_folder(view) as folder:
        job = {
            "folder": folder.path,
            "paths": paths,
            "s3": s3_options(view.storage, folder.path),
            "writer": dict(layout.settings.writer),
            "path_id": str(PATH_FIELD),
            "position_id": str(POSITION_FIELD),
        }
        width = max(1, min(len(tasks), 2 * _parallelism(spark)))
        sorted_rows = (
            positions.select(F.col(FILE).cast("int"), F.col(POSITION).cast("bigint"))
            .repartition(width, FILE)
            .sortWithinPartitions(FILE, POSITION)
        )
        write = by_value(partial(executor_changes.write_positions, job))
        with translated("marking of deleted rows"):
            found = sorted_rows.mapInArrow(write, executor_changes.MARKED).collect()
        folder.accept([each.path for each in found])
    deletes = tuple(
        position_deletes(each.path, each.size, _unpickled(each.footer), tasks[each.file].file, each.first, each.last)
        for each in found
    )
    touched = {paths[each.file]: tasks[each.file].file for each in found}
    counts = {each.file: each.rows for each in found}
    return PositionDeletes(deletes, touched, counts, sum(each.repeated for each in found))


def _parallelism(spark: Session) -> int:
    try:
        return int(spark.conf.get("spark.sql.shuffle.partitions", "8"))
    except ValueError:
        return 8


# Copied rows


@dataclass(frozen=True, slots=True, eq=False)
class Copies:
    """Durable data files with rows of other files."""

    files: tuple[DataFile, ...]
    runs: Mapping[str, tuple[Run, ...]]


def stage_copies(
    spark: Session,
    drops: Frame | None,
    groups: Sequence[Sequence[int]],
    tasks: Sequence[FileTask],
    view: View,
    settings: Settings,
) -> Copies:
    """Copy the rows of these files, each group to separate files, without those in ``drops`` and those that position
    deletes remove already. Rows that equality deletes remove must be among ``drops``.

    All files of a group have one spec and partition. The order of rows is kept.
    """
    if not groups:
        return Copies((), {})
    from pyspark.sql import functions as F

    order = [number for group in groups for number in group]
    layouts = {number: _layout(view, tasks[number], settings) for number in order}
    any_layout = layouts[order[0]]
    # Neighbouring numbers for the files of a group, whatever their numbers among all tasks are.
    renumbered = {number: place for place, number in enumerate(order)}
    group_of = {number: at for at, group in enumerate(groups) for number in group}
    width = min(len(groups), 4096)
    mapping = view.metadata.name_mapping
    with new_folder(view) as folder:
        job = {
            "folder": folder.path,
            "s3": s3_options(view.storage, folder.path),
            "schema": any_layout.target,
            "mapping": [] if mapping is None else mapping.model_dump(by_alias=True, mode="json"),
            "writer": dict(any_layout.settings.writer),
            "row_group_rows": any_layout.settings.row_group_rows,
            "target_bytes": any_layout.settings.target_bytes,
            "batch_rows": _COPY_BATCH_ROWS,
            "floats": {each.field_id: each.path for each in any_layout.plan.floats},
            "uuids": {each.field_id: each.path for each in any_layout.plan.uuids},
            "files": {
                renumbered[number]: _source(tasks[number], group_of[number], view, any_layout) for number in order
            },
        }
        keys = keys_for(width)
        places = [(number, renumbered[number], keys[group_of[number] % width]) for number in order]
        listed = spark.createDataFrame(places, f"`{FILE}` int, place int, task int")
        marked = listed.select("place", F.lit(executor_changes.MARK).cast("bigint").alias(POSITION), "task")
        if drops is not None:
            named = drops.select(F.col(FILE).cast("int").alias(FILE), F.col(POSITION).cast("bigint").alias(POSITION))
            marked = marked.unionByName(named.join(F.broadcast(listed), FILE).select("place", POSITION, "task"))
        # With an explicit number of partitions adaptive execution does not merge them.
        rows = marked.repartition(width, "task").sortWithinPartitions("place", POSITION).select("place", POSITION)
        write = by_value(partial(executor_changes.write_copies, job))
        with translated("copy of rows that stay"):
            found = rows.mapInArrow(write, executor_changes.COPIED).collect()
        folder.accept([each.path for each in found])
    files: list[DataFile] = []
    runs: dict[str, tuple[Run, ...]] = {}
    for each in found:
        task = tasks[order[each.first_file]]
        nans, signs = _unpickled(each.observed)
        made = data_file(
            each.path,
            each.size,
            _unpickled(each.footer),
            statistics.Observed(nans, signs),
            layouts[order[each.first_file]],
            task.file.partition,
        )
        files.append(made)
        runs[each.path] = tuple(
            Run(tasks[order[source]].file.file_path, first, length)
            for source, first, length in zip(*map(_numbers, (each.sources, each.firsts, each.lengths)), strict=True)
        )
    return Copies(tuple(files), runs)


def _layout(view: View, task: FileTask, settings: Settings) -> WriteLayout:
    return layout_for(view.metadata, view.schema, task.file.spec_id, settings.options, "copies")


def _source(task: FileTask, group: int, view: View, layout: WriteLayout) -> dict[str, Any]:
    lacking = partition_values(task.file, view.metadata)
    kinds = {int((each.metadata or {})[b"PARQUET:field_id"]): each.type for each in layout.target}
    return {
        "path": task.file.file_path,
        "group": group,
        "deletes": [ref.file.file_path for ref in task.deletes if ref.file.content == Content.POSITION_DELETES],
        "constants": {each: constant(lacking[each], kinds[each], 1) for each in lacking if each in kinds},
    }


def _unpickled(data: bytes) -> Any:
    return pickle.loads(data)  # noqa: S301 - pickled by Frazil's functions on executors


def _numbers(data: bytes) -> array.array[int]:
    found = array.array("q")
    found.frombytes(data)
    return found
