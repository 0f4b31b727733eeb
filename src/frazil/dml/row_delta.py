"""Row delta: new rows, and deletes that the caller names by position or by key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa
from pyroaring import BitMap64

from frazil.commit.operations import Kind, RowCounts, Write
from frazil.dml.upsert import key_ids, key_spec
from frazil.dml.view import Settings, View
from frazil.dml.write_builder import WriteBuilder
from frazil.errors import InvalidInput, Unsupported
from frazil.expr import parse_filter
from frazil.format.partitions import reaches_everything
from frazil.read.plan import FileTask
from frazil.read.positions import matching_positions
from frazil.stage.deletes import key_schema
from frazil.stage.rows import conform, to_reader


def row_delta(
    view: View,
    settings: Settings,
    *,
    rows: object = None,
    positions: Mapping[str, Sequence[int]] | None = None,
    keys: object = None,
) -> Write:
    """Add rows, delete rows by data file and position, and delete every older row with one of the given keys.

    Rows that are deleted already are ignored. How many rows are deleted by key is unknown and not counted.
    """
    with WriteBuilder(view, settings) as builder:
        inserted = 0 if rows is None else builder.add_rows(rows).rows
        deleted = 0 if not positions else _delete_by_position(builder, positions, live_on=inserted > 0)
        field_ids, spec_id = ((), None) if keys is None else _delete_by_key(builder, keys)
        counts = RowCounts(inserted=inserted, deleted=deleted)
        return builder.build(Kind.ROW_DELTA, counts, keys=field_ids, key_spec_id=spec_id)


def _delete_by_position(builder: WriteBuilder, positions: Mapping[str, Sequence[int]], *, live_on: bool) -> int:
    view = builder.view
    if not isinstance(positions, Mapping):
        raise InvalidInput(f"positions must be a dict from data file to row numbers, not {positions!r}")
    everything = parse_filter(None, view.schema)
    live = {task.file.file_path: task for task in view.tasks(everything)}
    count = 0
    for path, numbers in positions.items():
        task = live.get(path)
        if task is None:
            raise InvalidInput(f"The table {view.table} has no data file {path!r} on the branch {view.branch!r}")
        rows = _rows(task, numbers) & matching_positions(task, builder.read_context)
        if rows:
            builder.mark(task.file, rows)
            if live_on:
                # The new rows may be new versions of these, so a concurrent delete of one of them is a conflict.
                builder.move(path, rows)
        count += len(rows)
    return count


def _rows(task: FileTask, numbers: Sequence[int]) -> BitMap64:
    plain = not isinstance(numbers, str | bytes | None) and isinstance(numbers, Iterable)
    if not plain or any(type(each) is not int for each in numbers):
        raise InvalidInput(f"The positions of {task.file.file_path} are not a list of row numbers")
    try:
        rows = BitMap64(numbers)
    except (TypeError, OverflowError, ValueError) as error:
        raise InvalidInput(
            f"The positions of {task.file.file_path} are not row numbers", evidence=str(error)
        ) from error
    if rows and rows.max() >= task.file.record_count:
        raise InvalidInput(
            f"The file {task.file.file_path} has {task.file.record_count} rows, so it has no row {rows.max()}",
            advice="Rows are numbered from 0",
        )
    return rows


def _delete_by_key(builder: WriteBuilder, keys: object) -> tuple[tuple[int, ...], int | None]:
    metadata = builder.view.metadata
    field_ids, spec_id = key_ids(metadata), key_spec(metadata)
    if spec_id is None:
        raise Unsupported(
            f"The table {builder.view.table} has no spec under which deletes by key reach all its rows",
            advice="Add a spec without partitions first, or give positions",
        )
    schema = key_schema(metadata.schema(), field_ids)
    found: list[pa.RecordBatch] = [conform(batch, schema) for batch in to_reader(keys, schema)]
    builder.add_keys(found, field_ids, spec_id)
    return field_ids, None if reaches_everything(metadata.spec(spec_id)) else spec_id
