"""Space-filling curves: the Hilbert curve visits neighbours, and ranks spread any column over the cells."""

from __future__ import annotations

import datetime as dt
import itertools
import random
import uuid
from decimal import Decimal
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from frazil.dml import curves


def cells(columns: int, bits: int) -> Any:
    return np.array(list(itertools.product(range(1 << bits), repeat=columns)), dtype=np.uint64)


@pytest.mark.parametrize(("columns", "bits"), [(1, 4), (2, 1), (2, 4), (3, 3), (4, 2)])
def test_the_hilbert_curve_goes_from_neighbour_to_neighbour(columns: int, bits: int) -> None:
    points = cells(columns, bits)
    by_column = [points[:, at] for at in range(columns)]
    index = curves.interleaved(curves.transposed(by_column, bits), bits)
    assert sorted(index.tolist()) == list(range(len(points)))
    steps = np.abs(np.diff(points[np.argsort(index)].astype(int), axis=0)).sum(axis=1)
    assert set(steps.tolist()) == {1}


def test_the_z_order_interleaves_bits() -> None:
    x, y = np.array([0b10], dtype=np.uint64), np.array([0b01], dtype=np.uint64)
    assert curves.interleaved([x, y], 2).tolist() == [0b1001]


COLUMNS: dict[str, list[Any]] = {
    "int": [3, 1, 2, -5, 2**62],
    "double": [0.5, -1e300, 2.0, 1e-9, float("inf")],
    "decimal": [Decimal("1.10"), Decimal("-2.00"), Decimal("99999999.99")],
    "long decimal": [Decimal(10**30), Decimal(10**30 + 1), Decimal(10**30 + 2)],
    "text": ["https://www.example.com/a", "https://www.example.com/b", "https://www.example.com/é", ""],
    "binary": [b"", b"\x00", b"\xff\xff", b"\x00\x01"],
    "boolean": [True, False],
    "date": [dt.date(1900, 1, 1), dt.date(2026, 11, 19)],
    "time": [dt.time(1), dt.time(23, 59, 59)],
    "timestamp": [dt.datetime(1900, 1, 1, tzinfo=dt.UTC), dt.datetime(2026, 11, 19, tzinfo=dt.UTC)],
    "uuid": [uuid.UUID(int=1).bytes, uuid.UUID(int=2**127).bytes],
}


@pytest.mark.parametrize("name", COLUMNS)
def test_ranks_follow_the_order_of_the_values(name: str) -> None:
    ordered = sorted(COLUMNS[name])
    values: Any = pa.array([None, *ordered])
    if name == "uuid":
        values = values.cast(pa.binary(16))
    found = curves.ranks(values, curves.boundaries(values, 1)).tolist()
    assert found[0] == 0
    assert found[1:] == sorted(set(found[1:]))
    assert len(found) == len(set(found))


def test_nan_is_above_every_number_and_no_boundary() -> None:
    values: Any = pa.array([1.0, float("nan"), None, 2.0])
    limits = curves.boundaries(values, 1)
    assert limits == [1.0, 2.0]
    assert curves.ranks(values, limits).tolist() == [2, 3, 0, 3]


def test_skew_and_common_prefixes_do_not_empty_the_cells() -> None:
    chance = random.Random(0)
    for values in (
        [chance.lognormvariate(0, 3) for _ in range(20_000)],
        [f"https://www.example.com/{chance.randrange(10**9):09d}" for _ in range(20_000)],
    ):
        column: Any = pa.array(values)
        counts = np.bincount(curves.ranks(column, curves.boundaries(column.slice(0, 5_000), 2)).astype(int))
        assert len(counts) == 1024
        assert counts.max() < 20_000 / 100


def test_a_column_without_values_has_one_cell() -> None:
    for values in (pa.array([None, None], pa.int64()), pa.array([None, None]), pa.array([], pa.string())):
        limits = curves.boundaries(values, 2)
        assert limits == []
        assert curves.ranks(values, limits).tolist() == [0] * len(values)


def test_a_value_beyond_the_sample_has_a_cell() -> None:
    limits = curves.boundaries(pa.array([10, 20]), 1)
    assert curves.ranks(pa.array([5, 10, 15, 25]), limits).tolist() == [1, 2, 2, 3]


@pytest.mark.parametrize("columns", [1, 2, 6, 7, 16])
def test_keys_of_many_columns_fit_into_a_long(columns: int) -> None:
    values: list[Any] = [pa.array(range(2_000)) for _ in range(columns)]
    limits = [curves.boundaries(each, columns) for each in values]
    for curve in ("zorder", "hilbert"):
        keys = curves.keys(values, limits, curve)
        assert keys.dtype == np.int64
        assert (keys >= 0).all()
        assert len(set(keys.tolist())) > 1


def test_executors_add_the_key_as_the_last_column() -> None:
    batch = pa.record_batch(cast("Any", {"a": [1, 2, 3], "b": ["x", "y", None]}))
    job: dict[str, Any] = {"columns": [0, 1], "limits": [[1, 2, 3], ["x", "y"]], "curve": "hilbert", "name": "key"}
    (made,) = curves.with_keys(job, [batch])
    assert made.schema.names == ["a", "b", "key"]
    assert made.column(2).to_pylist() == curves.keys(batch.columns, job["limits"], "hilbert").tolist()
