"""Writes while tasks fail, run twice and die: what is committed is exact, and nothing else is left.

    python failing_program.py FOLDER PYTHON

One cluster with everything that is said to lose or double rows: speculation, the committer that shows files when a task
commits, and rows that come from a function which fails, dawdles or kills its executor in its first attempt.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

import frazil
from frazil.format.storage import local_path
from spark.cluster_program import session

CONF = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "2",
    "mapreduce.fileoutputcommitter.algorithm.version": "2",
    "spark.task.maxFailures": "4",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "500",
}
ROWS = 20_000
FLAT, NESTED = "id bigint, name string", "id bigint, name string, tags array<bigint>"


def once(marker: str) -> bool:
    """Whether this is the first attempt of all."""
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def fail(_again: str) -> None:
    raise RuntimeError("the first attempt fails after files were closed")


def dawdle(again: str) -> None:
    """Wait for the speculative attempt, so that both write the same rows at once."""
    for _ in range(600):
        if os.path.exists(again):
            return
        time.sleep(0.1)
    raise RuntimeError("no other attempt came")


def kill_executor(_again: str) -> None:
    """The worker's parent is PySpark's daemon, whose parent is the executor."""
    with open(f"/proc/{os.getppid()}/stat") as stat:
        executor = int(stat.read().rpartition(")")[2].split()[1])
    os.kill(executor, signal.SIGKILL)
    raise RuntimeError("nobody is there to hear this")


FAULTS: dict[str, Callable[[str], None]] = {"fail": fail, "dawdle": dawdle, "kill": kill_executor}


def faulty(fault: str, marker: str) -> Callable[[Iterable[Any]], Iterator[Any]]:
    act, first = FAULTS[fault], once

    def rows(batches: Iterable[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        again = f"{marker}-again"
        seen = 0
        for batch in batches:
            yield batch
            seen += batch.num_rows
            if seen > 4000 and context.partitionId() == 0:
                if first(marker):
                    act(again)
                elif context.attemptNumber() > 0:
                    first(again)

    return rows


def main(folder: str, python: str) -> None:
    from pyspark import cloudpickle

    # Executors have no tests.
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    spark = session(python, **CONF)
    with frazil.connect(f"{folder}/lake") as lake:
        lake.create_namespace("shop")
        for name, ddl in (("flat", FLAT), ("nested", NESTED)):
            table = lake.create_table(
                f"shop.{name}",
                ddl,
                properties={"write.target-file-size-bytes": "20000", "write.parquet.row-group-limit": "500"},
            )
            for count, fault in enumerate(FAULTS, start=1):
                given = spark.range(0, ROWS, 1, 2).selectExpr("id", "concat('n', id) as name")
                given = given.mapInArrow(faulty(fault, f"{folder}/{name}-{fault}"), "id bigint, name string")
                if name == "nested":
                    given = given.selectExpr("*", "array(id, null) as tags")
                try:
                    done = table.append(given)
                except frazil.FrazilError as error:
                    raise SystemExit(f"{name}, {fault}: refused: {error}") from error
                # The fault came, and another attempt wrote the same rows.
                for marker in (f"{name}-{fault}", f"{name}-{fault}-again"):
                    assert Path(folder, marker).exists(), f"{name}, {fault}: nothing went wrong"
                assert done.rows_inserted == ROWS
                check(table, count)
                print(name, fault, "is exact", flush=True)
    spark.stop()
    print("done")


def check(table: frazil.Table, times: int) -> None:
    """Each row as often as it was written, and no file that the table does not name."""
    found: pa.Table = table.scan(columns=["id"]).to_arrow()
    counted = found.group_by("id").aggregate([("id", "count")])
    assert counted.num_rows == ROWS
    assert set(counted["id_count"].to_pylist()) == {times}
    named = {local_path(file.path) for file in table.scan().files()}
    there = {str(path) for path in Path(local_path(table.location), "data").rglob("*") if path.is_file()}
    assert there == named, f"left behind: {sorted(there - named)[:5]}"


if __name__ == "__main__":
    main(*sys.argv[1:])
