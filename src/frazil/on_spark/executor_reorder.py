"""What executors run when they rewrite rows in another order: Arrow's writer, with the source of each row.

Pickled by value, like executor.py, so that executors need only pyarrow (and numpy for a curve, see ``dml/curves.py``).
"""

from __future__ import annotations

import array
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from frazil.on_spark.executor import WRITTEN, _batch, _by_partition, _Writer

arrow: Any = pa
REORDERED = f"{WRITTEN}, marks binary, positions binary"
HAS_NUMPY = "found boolean"


def has_numpy(batches: Iterable[Any]) -> Iterator[Any]:
    """Whether an executor has numpy."""
    try:
        import numpy as np

        found = bool(np.__version__)
    except ImportError:
        found = False
    for _ in batches:
        yield arrow.RecordBatch.from_arrays([arrow.array([found])], names=["found"])


def write_reordered(job: dict[str, Any], batches: Iterable[Any]) -> Iterator[Any]:
    """Write one task's rows to files. Behind the columns of the files, a batch has the partition's text if the table
    has any, the mark of the file that each row is from, and its position there. With ``job["lineage"]`` marks and
    positions are returned, file by file.
    """
    writer = _Writer(job)
    marks, positions = array.array("q"), array.array("q")
    try:
        for batch in batches:
            count = batch.num_columns - 2
            rows = arrow.RecordBatch.from_arrays(batch.columns[:count], names=batch.schema.names[:count])
            for partition, part in _by_partition(rows, job["partitioned"]):
                writer.add(partition, part)
            if job["lineage"]:
                marks.extend(batch.column(count).cast(pa.int64()).to_pylist())
                positions.extend(batch.column(count + 1).cast(pa.int64()).to_pylist())
        writer.finish()
    except BaseException:
        writer.abandon()
        raise
    at = 0
    found = []
    for each in writer.done:
        # Rows fill one file after the other.
        end = at + each[2]
        found.append((*each, marks[at:end].tobytes(), positions[at:end].tobytes()))
        at = end
    if found:
        yield _batch(REORDERED, found)
