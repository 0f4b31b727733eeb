"""Streams of appended rows: each row once, over restarts, and a sentence where rows were taken out."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import frazil
from unit.test_changes import now, rows

# PySpark leaves the sockets that rows came through to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
DDL = "id bigint not null, k int, name string, amount double, ts timestamp"


class Stream:
    """One stream into a table, as often as it is run."""

    def __init__(self, frame: Callable[[], Any], sink: frazil.Table, checkpoint: Path) -> None:
        self.frame, self.sink, self.checkpoint = frame, sink, checkpoint
        self.batches: list[int] = []

    def run(self, write: Any = None, **trigger: Any) -> None:
        """Everything that is there."""
        sink = self.sink.stream_sink("copy")

        def take(batch: Any, batch_id: int) -> None:
            self.batches.append(batch.count())
            (write or sink)(batch, batch_id)

        writer = self.frame().writeStream.foreachBatch(take).option("checkpointLocation", str(self.checkpoint))
        query = writer.trigger(**(trigger or {"availableNow": True})).start()
        try:
            if trigger:
                query.processAllAvailable()
            else:
                assert query.awaitTermination(400), "the query is still running"
        finally:
            query.stop()

    def ids(self) -> list[int]:
        found: list[Any] = self.sink.scan().to_arrow()["id"].to_pylist()
        return sorted(found)


@pytest.fixture
def source(lake: frazil.Lake) -> frazil.Table:
    return lake.create_table("shop.source", DDL, keys=["id"])


@pytest.fixture
def sink(lake: frazil.Lake) -> frazil.Table:
    return lake.create_table("shop.sink", DDL)


def test_each_row_once_over_restarts(source: frazil.Table, sink: frazil.Table, spark: Any, tmp_path: Path) -> None:
    stream = Stream(lambda: source.stream_from(spark), sink, tmp_path / "checkpoint")
    source.append(rows(1, 2))
    source.append(rows(3))
    stream.run()
    assert stream.ids() == [1, 2, 3]
    source.compact()
    source.append(rows(4))

    def fail_after_commit(batch: Any, batch_id: int) -> None:
        sink.stream_sink("copy")(batch, batch_id)
        raise RuntimeError("the process dies between commit and checkpoint")

    with pytest.raises(Exception, match="between commit and checkpoint"):
        stream.run(fail_after_commit)
    source.append(rows(5))
    # Spark only repeats the batch that failed, and the sink knows it; the next run takes what is new.
    stream.run()
    assert stream.ids() == [1, 2, 3, 4]
    stream.run()
    assert stream.ids() == [1, 2, 3, 4, 5]
    assert sink.scan("id = 4").count() == 1
    stream.run()
    assert stream.ids() == [1, 2, 3, 4, 5]


def test_since_begins_later(source: frazil.Table, sink: frazil.Table, spark: Any, tmp_path: Path) -> None:
    source.append(rows(1))
    source.upsert(rows(1, name="up"))
    since = now(source)
    stream = Stream(lambda: source.stream_from(spark, since), sink, tmp_path / "checkpoint")
    source.append(rows(2, 3))
    stream.run()
    assert stream.ids() == [2, 3]


def test_rows_taken_out_fail_the_stream_unless_left_out(
    source: frazil.Table, sink: frazil.Table, spark: Any, tmp_path: Path
) -> None:
    source.append(rows(1, 2))
    source.delete("id = 1", mode="merge-on-read")
    source.append(rows(3))
    plain = Stream(lambda: source.stream_from(spark), sink, tmp_path / "one")
    with pytest.raises(Exception, match="skip_deletes=True"):
        plain.run()
    deletes = Stream(lambda: source.stream_from(spark, skip_deletes=True), sink, tmp_path / "one")
    deletes.run()
    assert deletes.ids() == [1, 2, 3]
    source.upsert(rows(3, 4, name="up"))
    source.append(rows(5))
    with pytest.raises(Exception, match="skip_overwrites=True"):
        deletes.run()
    both = Stream(lambda: source.stream_from(spark, skip_deletes=True, skip_overwrites=True), sink, tmp_path / "one")
    both.run()
    assert both.ids() == [1, 2, 3, 5]


def test_limits_bound_a_batch_by_whole_snapshots(
    source: frazil.Table, sink: frazil.Table, spark: Any, tmp_path: Path
) -> None:
    for number in range(5):
        source.append(rows(number))
    stream = Stream(lambda: source.stream_from(spark, max_files=2), sink, tmp_path / "checkpoint")
    stream.run(processingTime="0 seconds")
    assert stream.ids() == list(range(5))
    assert stream.batches == [2, 2, 1]
    for number in range(5, 8):
        source.append(rows(number))
    # A restart goes on from the checkpoint, by the same limits.
    stream.run(processingTime="0 seconds")
    assert stream.ids() == list(range(8))
    assert stream.batches == [2, 2, 1, 2, 1]


def test_an_expired_start_is_named(source: frazil.Table, sink: frazil.Table, spark: Any, tmp_path: Path) -> None:
    source.append(rows(1))
    stream = Stream(lambda: source.stream_from(spark), sink, tmp_path / "checkpoint")
    stream.run()
    source.append(rows(2))
    source.append(rows(3))
    source.expire_snapshots(older_than=dt.datetime.now(dt.UTC) + dt.timedelta(days=1), retain_last=1)
    with pytest.raises(Exception, match="expired"):
        stream.run()


def test_a_memory_lake_is_refused(spark: Any) -> None:
    with frazil.connect("memory://streams") as lake:
        lake.create_namespace("shop")
        table = lake.create_table("shop.t", DDL)
        with pytest.raises(frazil.Unsupported, match="exists in one process only"):
            table.stream_from(spark)
