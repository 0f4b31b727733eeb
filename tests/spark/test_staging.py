"""A write on Spark tells the catalog where it stages before its first byte (rule P42)."""

from __future__ import annotations

import datetime as dt
from typing import Any

from pyspark.sql import functions as F

import frazil
from frazil.commit.context import Phase


def test_p42_orphan_removal_leaves_what_a_write_on_spark_stages(lake: frazil.Lake, spark: Any) -> None:
    table = lake.create_table("shop.staged", "n bigint, note string")
    found: list[tuple[int, int]] = []

    def removal(phase: Phase, attempt: int) -> None:
        staged = lake.catalog.staged
        if phase is Phase.HEAD_READ and attempt == 1:
            assert staged is not None
            report = table.remove_orphans(dt.timedelta(0), dry_run=False)
            found.append((len(staged.live(table.uuid)), report.kept_staged))

    # Too large for the driver to write by itself.
    rows = spark.range(100_000).select(F.col("id").alias("n"), F.lit("x").alias("note"))
    table.append(rows, on_phase=removal)
    assert found[0][0] == 1
    assert found[0][1] >= 1
    assert table.scan().count() == 100_000
    staged = lake.catalog.staged
    assert staged is not None
    assert staged.live(table.uuid) == []
