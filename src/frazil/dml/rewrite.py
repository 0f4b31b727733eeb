"""The same rows in other files: groups of files are copied, in their order or sorted, without deleted rows.

Which files belong together is decided in ``services/compaction.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import BinaryType, FixedType, StringType

from frazil.commit.operations import Kind, RowCounts, Write
from frazil.dml import curves
from frazil.dml.view import Settings, View
from frazil.dml.write_builder import Pieces, WriteBuilder
from frazil.format.arrow_schema import to_arrow_schema
from frazil.format.partitions import column_at, source_path
from frazil.format.properties import LINEAGE_RUNS
from frazil.format.statistics import COLUMN_MODE, DEFAULT_MODE
from frazil.model import Run
from frazil.read.arrow import ReadContext
from frazil.read.plan import FileTask
from frazil.read.positions import rows_with_positions
from frazil.stage.arrow import file_schema, rows_by_partition, sort_indices

if TYPE_CHECKING:
    from pyiceberg.table.sorting import SortOrder

_MOST_RUNS = 500_000
"""Sorted rows come from anywhere: with so many runs the record of where each came from has about 2 MB."""
SAMPLE_ROWS = 100_000
"""A curve's cells are chosen from about so many rows of a group."""
_BOUNDS = "truncate(64)"
arrow: Any = pa


@dataclass(frozen=True, slots=True)
class Ordering:
    """The order of the rows of a rewritten group."""

    kind: Literal["sort", "zorder", "hilbert"]
    order: SortOrder
    """Its columns; for a curve their directions do not matter."""

    @property
    def is_curve(self) -> bool:
        return self.kind != "sort"

    def order_id(self, view: View) -> int:
        """What a data file says about its order: the id of the table's sort order, if it is that one."""
        default = view.metadata.sort_order()
        return default.order_id if self.kind == "sort" and default.fields == self.order.fields else 0


@dataclass(frozen=True, slots=True, eq=False)
class Rewriting:
    """What one write is to rewrite."""

    groups: tuple[tuple[FileTask, ...], ...]
    """Files of one spec and partition each."""
    ordering: Ordering | None = None
    """None: the rows keep their order."""
    spec_id: int | None = None
    """The spec of the new files; None: that of the old ones."""
    drops_unneeded: bool = True
    """Delete files that apply to no remaining file are removed."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Of the Parquet writer."""

    def with_bounds(self, view: View) -> Mapping[str, str]:
        """The options, and longer bounds for texts that are sorted: a common prefix would hide what differs."""
        if self.ordering is None:
            return self.options
        schema, properties = file_schema(view.schema), view.metadata.properties
        found = dict(self.options)
        for field_id in {each.source_id for each in self.ordering.order.fields}:
            name = f"{COLUMN_MODE}{schema.find_column_name(field_id)}"
            is_text = isinstance(schema.find_type(field_id), StringType | BinaryType | FixedType)
            if is_text and name not in properties and properties.get(DEFAULT_MODE) != "full":
                found[name] = _BOUNDS
        return found

    def keeps_layout(self, group: Sequence[FileTask]) -> bool:
        """The rows of a group stay in their order and partition."""
        return self.ordering is None and self.spec_id in (None, group[0].file.spec_id)


def rewrite(view: View, settings: Settings, work: Rewriting) -> Write:
    """Rewrite groups of files in this process."""
    for group in work.groups:
        view.check_size(group, "compact")
    with WriteBuilder(view, replace(settings, options=work.with_bounds(view))) as builder:
        for group in work.groups:
            for task in group:
                builder.remove(task)
            if work.keeps_layout(group):
                builder.copy(copied_rows(group, builder.read_context), group[0].file, is_sorted=len(group) == 1)
            else:
                _copy_in_order(builder, group, work)
        if work.drops_unneeded:
            builder.drop_unneeded_deletes()
        return builder.build(Kind.REWRITE, RowCounts())


def copied_rows(tasks: Sequence[FileTask], context: ReadContext) -> Pieces:
    """The live rows of files, each with its position."""
    for task in tasks:
        for batch, numbers in rows_with_positions(task, context):
            yield task.file.file_path, batch, numbers


def _copy_in_order(builder: WriteBuilder, group: Sequence[FileTask], work: Rewriting) -> None:
    view, first = builder.view, group[0].file
    rows, sources, positions = _gathered(group, builder.read_context, view.schema)
    if not rows.num_rows:
        return
    order = None if work.ordering is None else _order(rows, view.schema, work.ordering)
    if order is not None:
        rows, sources, positions = rows.take(arrow.array(order)), sources[order], positions[order]
    spec_id = first.spec_id if work.spec_id is None else work.spec_id
    parts: Iterator[tuple[tuple[Any, ...], pa.Int64Array | None]] = iter([(first.partition, None)])
    if spec_id != first.spec_id:
        parts = rows_by_partition(rows, view.metadata, spec_id)
    sort_order_id = 0 if work.ordering is None else work.ordering.order_id(view)
    paths = [task.file.file_path for task in group]
    for partition, mine in parts:
        at = slice(None) if mine is None else np.asarray(mine)
        runs = runs_of(paths, sources[at], positions[at], most_runs(view))
        part = rows if mine is None else rows.take(mine)
        builder.copy_reordered(part, runs, spec_id=spec_id, partition=partition, sort_order_id=sort_order_id)


def _gathered(group: Sequence[FileTask], context: ReadContext, schema: Schema) -> tuple[pa.Table, Any, Any]:
    """The live rows of a group, each with the index of its file and its position there."""
    batches: list[pa.RecordBatch] = []
    sources: list[Any] = [np.zeros(0, dtype=np.int32)]
    positions: list[Any] = [np.zeros(0, dtype=np.int64)]
    for index, task in enumerate(group):
        for batch, numbers in rows_with_positions(task, context):
            batches.append(batch)
            sources.append(np.full(batch.num_rows, index, dtype=np.int32))
            positions.append(np.asarray(numbers))
    columns = to_arrow_schema(schema, include_field_ids=False)
    rows = pa.Table.from_batches(batches, columns).combine_chunks()
    return rows, np.concatenate(sources), np.concatenate(positions)


def _order(rows: pa.Table, schema: Schema, ordering: Ordering) -> Any:
    if not ordering.is_curve:
        found = sort_indices(rows, schema, ordering.order)
        return None if found is None else np.asarray(found)
    batch = rows.to_batches()[0]
    values = [values_of(batch, schema, each.source_id) for each in ordering.order.fields]
    step = max(1, rows.num_rows // SAMPLE_ROWS)
    picked = arrow.array(range(0, rows.num_rows, step), pa.int64())
    limits = [curves.boundaries(each.take(picked), len(values)) for each in values]
    return np.argsort(curves.keys(values, limits, ordering.kind), kind="stable")


def values_of(batch: pa.RecordBatch, schema: Schema, field_id: int) -> Any:
    """The values of a column, NULL where a struct around it is."""
    path = source_path(schema, field_id)
    assert path is not None, "the columns of an order were found in this schema"
    return column_at(batch, path)


def most_runs(view: View) -> int:
    """So many runs of one group are recorded."""
    text = view.metadata.properties.get(LINEAGE_RUNS, "")
    return int(text) if text.isdigit() else _MOST_RUNS


def runs_of(paths: Sequence[str], sources: Any, positions: Any, most: int) -> tuple[Run, ...]:
    """Rows with the index of their file and their position, as runs; none if there are more than ``most``."""
    if not len(sources):
        return ()
    breaks = np.flatnonzero((np.diff(sources) != 0) | (np.diff(positions) != 1)) + 1
    if len(breaks) >= most:
        return ()
    starts = np.concatenate(([0], breaks))
    lengths = np.diff(np.concatenate((starts, [len(sources)])))
    listed = zip(sources[starts].tolist(), positions[starts].tolist(), lengths.tolist(), strict=True)
    return tuple(Run(paths[source], first, length) for source, first, length in listed)
