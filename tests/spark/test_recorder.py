"""Spark jobs are recorded like Arrow writers, from the driver."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import frazil
from frazil.verify.checker import Read, Write, check
from frazil.verify.checker.from_lake import versions_of
from frazil.verify.checker.history import read_history
from frazil.verify.recording import recording
from frazil.verify.recording.columns import Named

VALUES = {"shop.r": ("id", "v")}


def test_spark_reads_and_writes_are_recorded(spark: Any, lake: frazil.Lake, tmp_path: Path) -> None:
    table = lake.create_table("shop.r", "id bigint not null, v bigint, other string", keys=["id"])

    def frame(*rows: tuple[int, int]) -> Any:
        return spark.createDataFrame([(*row, "x") for row in rows], "id bigint, v bigint, other string")

    with recording(tmp_path / "h", VALUES):
        table.append(frame((1, 10), (2, 20), (3, 30)))
        read = table.scan("id in (1, 2)").to_spark(spark)
        table.merge(
            frame((2, 21), (4, 41)), on=["id"]
        ).when_matched_update_all().when_not_matched_insert_all().execute()
        table.delete("id = 3", engine="spark")
        table.upsert(frame((4, 42)))
        table.scan().to_spark(spark)
        table.scan("other = 'x'").to_spark(spark)
    # The frame is lazy, and still shows the version it was pinned to.
    assert sorted((row.id, row.v) for row in read.collect()) == [(1, 10), (2, 20)]
    history = read_history(tmp_path / "h")
    ops = [op for each in history.transactions for op in each.ops]
    assert [(op.kind, op.key, op.value) for op in ops if isinstance(op, Write)] == [
        ("add", 1, 10), ("add", 2, 20), ("add", 3, 30),
        ("remove", 2, 20), ("add", 2, 21), ("add", 4, 41),
        ("remove", 3, 30),
        ("put", 4, 42),
    ]  # fmt: skip
    seen = [(op.seen, op.keys, op.whole) for op in ops if isinstance(op, Read) and op.seen is not None]
    assert seen == [({1: (10,), 2: (20,)}, (1, 2), False), ({1: (10,), 2: (21,), 4: (42,)}, (), True)]
    report = check(history.transactions, versions_of(lake, "shop.r", Named(("id",), "v")))
    assert report.is_clean, report.anomalies
    assert report.notes == ()
