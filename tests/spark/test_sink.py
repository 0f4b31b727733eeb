"""Streams into a table: each micro-batch once, whatever happens to the query (rule P11)."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F

import frazil
from frazil.table.sink import Mark, judge
from spark.conftest import KIND

SCHEMA = "n bigint not null, note string"


def batch(spark: Any, first: int, count: int = 10) -> Any:
    return spark.range(first, first + count, 1, 1).select(F.col("id").alias("n"), F.lit("x").alias("note"))


def numbers(table: frazil.Table) -> list[int]:
    found: list[Any] = table.scan().to_arrow()["n"].to_pylist()
    return sorted(found)


@pytest.fixture
def table(lake: frazil.Lake) -> frazil.Table:
    return lake.create_table("shop.t", SCHEMA, keys=["n"])


@pytest.mark.everywhere
def test_p11_a_batch_that_comes_again_is_not_written_again(table: frazil.Table, spark: Any) -> None:
    sink = table.stream_sink(id="s")
    assert sink(batch(spark, 0), 0) is not None
    assert sink(batch(spark, 10), 1) is not None
    assert table.stream_sink(id="s")(batch(spark, 10), 1) is None
    assert numbers(table) == list(range(20))


@pytest.mark.everywhere
def test_p11_a_query_that_starts_over_writes_each_row_once(table: frazil.Table, spark: Any, tmp_path: Path) -> None:
    """On Connect the sink is sent to a worker of the server's, and opens the lake there."""
    folder = str(tmp_path / "rows")

    def stream(checkpoint: str) -> None:
        rows = spark.readStream.schema("n bigint, note string").option("maxFilesPerTrigger", "1").parquet(folder)
        writing = rows.writeStream.foreachBatch(table.stream_sink(id="s"))
        query = writing.option("checkpointLocation", str(tmp_path / checkpoint)).trigger(availableNow=True).start()
        assert query.awaitTermination(120)
        assert query.exception() is None

    for first in (0, 10, 20):
        batch(spark, first).write.mode("append").parquet(folder)
    stream("checkpoint")
    batch(spark, 30).write.mode("append").parquet(folder)
    stream("checkpoint")
    assert numbers(table) == list(range(40))
    assert len(table.history()) == 4


def test_p11_the_mark_is_in_the_same_metadata_file_as_the_batch(table: frazil.Table, spark: Any) -> None:
    table.stream_sink(id="s")(batch(spark, 0), 0)
    assert table.properties["frazil.sink.s"].startswith('{"batch": 0')
    assert len(table.history()) == 1


def test_p11_an_older_batch_is_refused(table: frazil.Table, spark: Any) -> None:
    sink = table.stream_sink(id="s")
    sink(batch(spark, 0), 5)
    with pytest.raises(frazil.InvalidInput, match="has written batch 5, and this is batch 3"):
        sink(batch(spark, 10), 3)
    assert numbers(table) == list(range(10))


def test_p11_another_query_is_refused() -> None:
    with pytest.raises(frazil.InvalidInput, match="belongs to the streaming query a"):
        judge("s", Mark(5, "a"), 6, "b")
    assert judge("s", Mark(5, "a"), 6, "a") == "write"
    assert judge("s", Mark(5, None), 6, "b") == "write"


def test_p11_the_mark_survives_expiry(table: frazil.Table, spark: Any) -> None:
    sink = table.stream_sink(id="s")
    for number in range(3):
        sink(batch(spark, number * 10), number)
    table.expire_snapshots(older_than="2100-01-01T00:00:00Z", retain_last=1)
    assert len(table.history()) == 1
    assert table.stream_sink(id="s")(batch(spark, 20), 2) is None
    assert numbers(table) == list(range(30))


def test_p11_two_runs_of_one_query_write_a_batch_once(lake: frazil.Lake, table: frazil.Table, spark: Any) -> None:
    """A run that was thought dead wakes up in the middle of its commit, when another has written the batch."""
    other = table.stream_sink(id="s")
    once: list[int] = []

    def meanwhile(phase: Any, attempt: int) -> None:
        if not once:
            once.append(attempt)
            other(batch(spark, 0), 0)

    with pytest.raises(frazil.ConflictError, match="another run of this stream"):
        table.stream_sink(id="s", on_phase=meanwhile)(batch(spark, 0), 0)
    assert numbers(table) == list(range(10))


def test_sinks_do_not_mind_each_other_or_deletes(table: frazil.Table, spark: Any) -> None:
    one, two = table.stream_sink(id="one"), table.stream_sink(id="two")
    one(batch(spark, 0), 0)
    two(batch(spark, 100), 0)
    table.delete("n = 3")
    one(batch(spark, 10), 1)
    assert len(numbers(table)) == 29


def test_upserts_and_functions(table: frazil.Table, spark: Any) -> None:
    upserts = table.stream_sink(id="up", mode="upsert")
    upserts(batch(spark, 0), 0)
    upserts(batch(spark, 5), 1)
    assert numbers(table) == list(range(15))

    def merged(target: frazil.Table, rows: Any) -> frazil.Commit:
        return target.merge(rows, on=["n"]).when_matched_delete().when_not_matched_insert_all().execute()

    merges = table.stream_sink(id="m", mode=merged)
    merges(batch(spark, 10), 0)
    assert merges(batch(spark, 10), 0) is None
    assert numbers(table) == [*range(10), *range(15, 20)]


def test_a_function_that_writes_twice_is_refused(table: frazil.Table, spark: Any) -> None:
    def twice(target: frazil.Table, rows: Any) -> frazil.Commit:
        target.append(rows)
        return target.append(rows)

    with pytest.raises(frazil.InvalidInput, match="one write for each batch"):
        table.stream_sink(id="s", mode=twice)(batch(spark, 0), 0)


@pytest.mark.parametrize("wrong", [None, "", "a b", "x" * 101, 3])
def test_a_sink_needs_a_name(table: frazil.Table, wrong: Any) -> None:
    with pytest.raises(frazil.InvalidInput, match="A sink's id"):
        table.stream_sink(id=wrong)


def test_a_mark_that_is_none_is_refused(table: frazil.Table, spark: Any) -> None:
    table.set_properties({"frazil.sink.s": "seven"})
    with pytest.raises(frazil.InvalidInput, match="not a sink's mark"):
        table.stream_sink(id="s")(batch(spark, 0), 0)


STREAM = """
    import os, signal, sys
    import frazil
    from pyspark.sql import functions as F

    folder, checkpoint, kill_at, stop_at = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    spark = frazil.spark(master="local[1]", memory="512m", conf={"spark.driver.host": "localhost",
        "spark.driver.bindAddress": "localhost", "spark.sql.shuffle.partitions": "1"})
    table = frazil.connect(folder, create=False).table("shop.t")
    sink = table.stream_sink(id="killed")
    rows = (spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 20).option("numPartitions", 1).load()
            .select(F.col("value").alias("n"), F.lit("x").alias("note")))

    def write(batch, batch_id):
        sink(batch, batch_id)
        if batch_id == kill_at:
            # Committed here, and not yet known to Spark's checkpoint.
            os.kill(os.getpid(), signal.SIGKILL)

    query = rows.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint).start()
    while (query.lastProgress or {}).get("batchId", -1) < stop_at:
        query.awaitTermination(1)
    query.stop()
    print("done")
"""


@pytest.mark.skipif(KIND != "local", reason="starts Spark itself")
def test_p11_a_query_killed_between_commit_and_checkpoint_writes_each_row_once(tmp_path: Path) -> None:
    folder, checkpoint = tmp_path / "lake", tmp_path / "checkpoint"
    with frazil.connect(str(folder)) as lake:
        lake.create_namespace("shop")
        table = lake.create_table("shop.t", SCHEMA)
        program = tmp_path / "stream.py"
        program.write_text(textwrap.dedent(STREAM))
        copy = tmp_path / "copy"
        for kill_at in (0, 3):
            command = [sys.executable, str(program), str(folder), str(checkpoint), str(kill_at), "9"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
            assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]
        shutil.copytree(checkpoint, copy)
        command = [sys.executable, str(program), str(folder), str(copy), "-1", "5"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        assert "done" in done.stdout, done.stderr[-3000:]
        found = numbers(table)
        assert found == list(range(len(found)))
        assert len(found) >= 100
    assert os.path.exists(copy)


# Several tables in one transaction


TABLES = ("shop.t", "shop.totals", "shop.audit")


def make_tables(lake: frazil.Lake) -> None:
    lake.create_table("shop.t", SCHEMA)
    lake.create_table("shop.totals", "digit bigint not null, n bigint", keys=["digit"])
    lake.create_table("shop.audit", "rows bigint")


def check_tables(lake: frazil.Lake) -> list[int]:
    """Every row is in each table once; returns the rows."""
    found = numbers(lake.table("shop.t"))
    assert found == list(range(len(found)))
    totals = lake.table("shop.totals").scan().to_arrow().to_pylist()
    wanted = [{"digit": digit, "n": len([each for each in found if each % 10 == digit])} for digit in range(10)]
    assert sorted(totals, key=lambda row: row["digit"]) == [each for each in wanted if each["n"]]
    counts: list[Any] = lake.table("shop.audit").scan().to_arrow()["rows"].to_pylist()
    assert sum(counts) == len(found)
    return found


def written(tx: frazil.Transaction, rows: Any) -> None:
    totals = rows.groupBy((F.col("n") % 10).alias("digit")).agg(F.count("*").alias("n"))
    merge = tx.table("shop.totals").merge(totals, on=["digit"])
    merge.when_matched_update({"n": "target.n + source.n"}).when_not_matched_insert_all().execute()
    tx.table("shop.t").append(rows)
    tx.sql(f"INSERT INTO shop.audit VALUES ({rows.count()})")


@pytest.mark.everywhere
def test_p11_a_batch_of_three_tables_is_written_once(lake: frazil.Lake, spark: Any) -> None:
    make_tables(lake)
    sink = lake.table("shop.audit").stream_sink(id="s", mode=written, transaction=True)
    done = [sink(batch(spark, first), number) for first, number in ((0, 0), (10, 1), (10, 1), (20, 2))]
    assert [each is not None for each in done] == [True, True, False, True]
    assert len(check_tables(lake)) == 30
    with pytest.raises(frazil.InvalidInput, match="has written batch 2"):
        sink(batch(spark, 0), 0)


def test_p11_a_conflict_of_one_table_repeats_the_whole_batch(lake: frazil.Lake, spark: Any) -> None:
    make_tables(lake)
    once: list[int] = []

    def interrupted(tx: frazil.Transaction, rows: Any) -> None:
        written(tx, rows)
        if len(once) < 2:
            once.append(1)
            lake.table("shop.totals").update({"n": "n"}, "true")

    sink = lake.table("shop.t").stream_sink(id="s", mode=interrupted, transaction=True)
    sink(batch(spark, 0), 0)
    sink(batch(spark, 10), 1)
    assert len(check_tables(lake)) == 20
    assert len(once) == 2


SEVERAL = """
    import os, signal, sys
    import frazil
    from pyspark.sql import functions as F

    folder, checkpoint, where = sys.argv[1], sys.argv[2], sys.argv[4]
    kill_at, stop_at = int(sys.argv[3]), int(sys.argv[5])
    spark = frazil.spark(master="local[1]", memory="512m", conf={"spark.driver.host": "localhost",
        "spark.driver.bindAddress": "localhost", "spark.sql.shuffle.partitions": "1"})
    lake = frazil.connect(folder, create=False)
    here = {"batch": -1}

    def die(at):
        if here["batch"] == kill_at and at == where:
            os.kill(os.getpid(), signal.SIGKILL)

    def write(tx, rows):
        totals = rows.groupBy((F.col("n") % 10).alias("digit")).agg(F.count("*").alias("n"))
        merge = tx.table("shop.totals").merge(totals, on=["digit"])
        merge.when_matched_update({"n": "target.n + source.n"}).when_not_matched_insert_all().execute()
        tx.table("shop.t").append(rows)
        # Files of two tables are written, and nothing is committed.
        die("inside")
        tx.sql(f"INSERT INTO shop.audit VALUES ({rows.count()})")

    sink = lake.table("shop.audit").stream_sink(id="killed", mode=write, transaction=True)
    rows = (spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 20).option("numPartitions", 1).load()
            .select(F.col("value").alias("n"), F.lit("x").alias("note")))

    def each(batch, batch_id):
        here["batch"] = batch_id
        done = sink(batch, batch_id)
        print("batch", batch_id, "skipped" if done is None else "written", flush=True)
        # Committed here, and not yet known to Spark's checkpoint.
        die("after")

    query = rows.writeStream.foreachBatch(each).option("checkpointLocation", checkpoint).start()
    while (query.lastProgress or {}).get("batchId", -1) < stop_at:
        query.awaitTermination(1)
    query.stop()
    print("done")
"""


@pytest.mark.timeout(600)
@pytest.mark.skipif(KIND != "local", reason="starts Spark itself")
def test_p11_a_query_of_three_tables_killed_anywhere_writes_each_row_once(tmp_path: Path) -> None:
    folder, checkpoint = tmp_path / "lake", tmp_path / "checkpoint"
    program = tmp_path / "stream.py"
    program.write_text(textwrap.dedent(SEVERAL))

    def run(kill_at: int, where: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(program), str(folder), str(checkpoint), str(kill_at), where, "3"]
        return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)

    with frazil.connect(str(folder)) as lake:
        lake.create_namespace("shop")
        make_tables(lake)
        after = run(0, "after")
        assert after.returncode == -signal.SIGKILL, after.stderr[-3000:]
        assert len(check_tables(lake)) == 20
        inside = run(2, "inside")
        assert inside.returncode == -signal.SIGKILL, inside.stderr[-3000:]
        assert inside.stdout.split("\n")[:2] == ["batch 0 skipped", "batch 1 written"]
        assert len(check_tables(lake)) == 40, "of the batch in which it was killed, no table has a row"
        done = run(-1, "")
        assert "batch 2 written" in done.stdout, done.stderr[-3000:]
        assert "done" in done.stdout, done.stderr[-3000:]
        assert len(check_tables(lake)) >= 80
