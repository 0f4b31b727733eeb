"""Space-filling curves over columns of any type: one number per row, so that rows that are near in all columns are
near in the order of these numbers.

    values ──sample──▶ boundaries ──rank──▶ at most 1,024 cells per column ──curve──▶ one integer

A value's cell is its rank among a sample of the column: skewed numbers and strings with a common prefix spread over all
cells, where leading bytes would put them into one. Pickled by value for executors: import nothing but the standard
library, numpy and pyarrow.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.types

compute: Any = pyarrow.compute
arrow: Any = pa
types: Any = pyarrow.types
MOST_BITS = 10
"""1,024 cells per column."""
_KEY_BITS = 63
MOST_COLUMNS = 16
_EXACT_DIGITS = 15
"""Decimals of so many digits are exact as doubles."""


def bits_for(columns: int) -> int:
    """How many bits each of so many columns gets in a key."""
    return min(MOST_BITS, _KEY_BITS // columns)


def boundaries(sample: Any, columns: int) -> list[Any]:
    """The values that separate the cells of a column, in order. A column without values in the sample has none."""
    values = sample.combine_chunks() if isinstance(sample, pa.ChunkedArray) else sample
    comparable = _comparable(values)
    if isinstance(comparable, list):
        found: Any = sorted(each for each in comparable if each is not None)
    else:
        there = np.asarray(values.is_valid())
        found = np.sort(comparable[there])
        if found.dtype.kind == "f":
            found = found[~np.isnan(found)]
    # The lowest cell is that of nulls.
    cells = (1 << bits_for(columns)) - 2
    if not len(found):
        return []
    picked = [found[at] for at in sorted({len(found) * step // cells for step in range(cells)})]
    distinct = picked[:1]
    distinct.extend(after for before, after in itertools.pairwise(picked) if after != before)
    return [each.item() if isinstance(each, np.generic) else each for each in distinct]


def ranks(values: Any, limits: Sequence[Any]) -> Any:
    """The cell of each value: 0 for null, then by rank. NaN is in the highest cell."""
    comparable = _comparable(values)
    if not isinstance(comparable, list):
        found = np.searchsorted(np.asarray(list(limits), dtype=comparable.dtype), comparable, side="right") + 1
        return np.where(np.asarray(values.is_valid()), found, 0).astype(np.uint64)
    ordered = list(limits)
    cells = [0 if each is None else bisect.bisect_right(ordered, each) + 1 for each in comparable]
    return np.array(cells, dtype=np.uint64)


def _comparable(values: Any) -> Any:
    """A numpy array of numbers, where null is anything, or a list of Python values in the type's own order."""
    kind = values.type
    if isinstance(kind, pa.BaseExtensionType):
        values, kind = values.storage, kind.storage_type
    if types.is_dictionary(kind):
        values, kind = values.dictionary_decode(), kind.value_type
    if types.is_decimal(kind) and kind.precision <= _EXACT_DIGITS:
        values, kind = values.cast(pa.float64()), pa.float64()
    if types.is_boolean(kind):
        values, kind = values.cast(pa.int8()), pa.int8()
    if types.is_date32(kind) or types.is_time32(kind):
        values, kind = values.cast(pa.int32()), pa.int32()
    if types.is_timestamp(kind) or types.is_time64(kind) or types.is_date64(kind) or types.is_duration(kind):
        values, kind = values.cast(pa.int64()), pa.int64()
    if types.is_integer(kind) or types.is_floating(kind):
        return compute.fill_null(values, 0).to_numpy(zero_copy_only=False)
    if types.is_null(kind):
        return np.zeros(len(values), dtype=np.int8)
    return values.to_numpy(zero_copy_only=False).tolist()


# Curves


def keys(columns: Sequence[Any], limits: Sequence[Sequence[Any]], curve: str) -> Any:
    """One integer per row. ``curve``: ``zorder`` or ``hilbert``."""
    bits = bits_for(len(columns))
    cells = [ranks(values, each) for values, each in zip(columns, limits, strict=True)]
    if curve == "hilbert":
        cells = transposed(cells, bits)
    return interleaved(cells, bits).astype(np.int64)


def interleaved(cells: Sequence[Any], bits: int) -> Any:
    """The bits of all columns in turn, the highest first."""
    made = np.zeros(len(cells[0]), dtype=np.uint64)
    for bit in range(bits - 1, -1, -1):
        for each in cells:
            made = (made << np.uint64(1)) | ((each >> np.uint64(bit)) & np.uint64(1))
    return made


def transposed(cells: Sequence[Any], bits: int) -> list[Any]:
    """Coordinates turned into the Hilbert index in transposed form (J. Skilling, AIP Conference Proceedings 707)."""
    found = [each.copy() for each in cells]
    count = len(found)
    if count == 1:
        return found
    one = np.uint64(1)
    for bit in range(bits - 1, 0, -1):
        mask = np.uint64(1 << bit)
        low = mask - one
        for index in range(count):
            is_set = (found[index] & mask) != 0
            # Where the bit is set the low bits of the first coordinate are inverted; elsewhere they are exchanged.
            swap = np.where(is_set, np.uint64(0), (found[0] ^ found[index]) & low)
            found[0] = found[0] ^ np.where(is_set, low, swap)
            found[index] = found[index] ^ swap
    for index in range(1, count):
        found[index] = found[index] ^ found[index - 1]
    parity = np.zeros_like(found[0])
    for bit in range(bits - 1, 0, -1):
        mask = np.uint64(1 << bit)
        parity = np.where((found[count - 1] & mask) != 0, parity ^ (mask - one), parity)
    return [each ^ parity for each in found]


# On executors


def with_keys(job: dict[str, Any], batches: Any) -> Any:
    """Batches with the curve's key as their last column. ``job``: indices of columns, their limits, the curve."""
    for batch in batches:
        columns = [batch.column(at) for at in job["columns"]]
        made = keys(columns, job["limits"], job["curve"]) if batch.num_rows else np.zeros(0, dtype=np.int64)
        arrays = [*batch.columns, arrow.array(made, pa.int64())]
        yield arrow.RecordBatch.from_arrays(arrays, names=[*batch.schema.names, job["name"]])
