"""A MERGE runs through the code as ``docs/architecture.md`` says. The other paths are in ``tests/unit``."""

from __future__ import annotations

from typing import Any

import frazil
from call_paths import PAGE, Recording, paths


def test_a_merge_runs_along_its_path(lake: frazil.Lake, spark: Any) -> None:
    hops = paths(PAGE.read_text())["A MERGE"]
    table = lake.create_table("shop.stock", "id bigint not null, n int", keys=["id"])
    table.append([{"id": 1, "n": 10}, {"id": 2, "n": 20}])
    source = spark.createDataFrame([(2, 21), (3, 30)], "id bigint, n int")
    recording = Recording(hops)
    with recording.running():
        done = table.merge(source).when_matched_update_all().when_not_matched_insert_all().execute()
    recording.check(hops)
    assert (done.rows_updated, done.rows_inserted) == (1, 1)
