"""The jobs, each a loop in a thread of a Spark application: ``python -m frazil.verify.fleet.jobs PLAN JOB…``."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import orjson

import frazil
from frazil.runtime import SYSTEM
from frazil.verify.fleet.plan import CUSTOMERS, LOADED, ROWS_EACH, Plan


class Job:
    """A job's table, session, deadline and report."""

    def __init__(self, plan: Plan, name: str, spark: Any, deadline: float) -> None:
        self.plan = plan
        self.name = name
        self.spark = spark
        self._deadline = deadline
        # Every job opens the lake itself: jobs share only the catalog.
        self.lake = frazil.connect(plan.uri, create=False, spark=spark)
        self.table = self.lake.table(plan.table)
        self._lock = threading.Lock()

    @property
    def left(self) -> float:
        return self._deadline - SYSTEM.monotonic()

    def pause(self, seconds: float) -> None:
        SYSTEM.sleep(max(0.0, min(seconds, self.left)))

    def report(self, **line: Any) -> None:
        """Append a line to the job's report. It survives the end of the process."""
        path = os.path.join(self.plan.reports, f"{self.name}.jsonl")
        with self._lock, open(path, "ab") as file:
            file.write(orjson.dumps({"job": self.name, **line}) + b"\n")

    def did(self, commit: frazil.Commit, acknowledged: Any) -> None:
        self.report(
            commits=1,
            rows=commit.rows_inserted + commit.rows_updated + commit.rows_deleted,
            rebased_over=commit.rebased_over,
            attempts=commit.attempts,
            acknowledged=[acknowledged],
        )

    def repeat(self, act: Callable[[int], tuple[frazil.Commit, Any]], *, every: float) -> None:
        """Act until the deadline. A conflict is reported and the next round follows; other errors end the job."""
        number = 0
        while self.left > 0:
            try:
                self.did(*act(number))
            except frazil.ConflictError as error:
                self.report(conflicts=[str(error)])
            number += 1
            self.pause(every)


def rows(job: Job, writer: str, first: int, count: int) -> Any:
    """Rows of one writer, numbered from ``first`` on."""
    from pyspark.sql import functions as F

    n = F.col("id")
    return job.spark.range(first, first + count, 1, 1).select(
        F.lit(writer).alias("writer"),
        n.alias("n"),
        (F.lit(10_000) + n % 997).alias("customer"),
        F.lit(0).cast("bigint").alias("amount"),
        F.timestamp_seconds(F.lit(1_790_000_000) + n).alias("at"),
        F.lit(None).cast("string").alias("note"),
    )


def stream(job: Job) -> None:
    """A streaming query into an exactly-once sink."""
    from pyspark.sql import functions as F

    count = job.plan.stream_rows
    given = (
        job.spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", count)
        .option("numPartitions", 1)
        .load()
        .select(
            F.lit(job.name).alias("writer"),
            F.col("value").alias("n"),
            (F.lit(20_000) + F.col("value") % 97).alias("customer"),
            F.lit(0).cast("bigint").alias("amount"),
            F.timestamp_seconds(F.lit(1_790_000_000) + F.col("value")).alias("at"),
            F.lit(None).cast("string").alias("note"),
        )
    )
    sink = job.table.stream_sink(id=job.name)

    def write(batch: Any, batch_id: int) -> None:
        commit = sink(batch, batch_id)
        if commit is not None:
            job.did(commit, batch_id)

    query = (
        given.writeStream.foreachBatch(write)
        .option("checkpointLocation", os.path.join(job.plan.reports, f"{job.name}-checkpoint"))
        .trigger(processingTime="500 milliseconds")
        .start()
    )
    while job.left > 0 and query.isActive:
        job.pause(0.5)
    failure = query.exception()
    query.stop()
    if failure is not None:
        raise frazil.SparkFailed(f"The stream {job.name} failed", evidence=str(failure).splitlines()[0])


def micro_batch(job: Job) -> None:
    size = job.plan.batch_rows

    def act(number: int) -> tuple[frazil.Commit, Any]:
        commit = job.table.append(rows(job, job.name, number * size, size), commit_id=f"{job.name}-{number}")
        return commit, number

    job.repeat(act, every=1.0)


def backfill(job: Job) -> None:
    size = job.plan.backfill_rows

    def act(number: int) -> tuple[frazil.Commit, Any]:
        given = rows(job, job.name, number * size, size)
        return job.table.append(given, retry=frazil.Retry.backfill()), number

    job.repeat(act, every=4.0)


def gdpr(job: Job) -> None:
    """Customers who ask to be forgotten, one after the other."""

    def act(number: int) -> tuple[frazil.Commit, Any]:
        customer = number % (CUSTOMERS // 2)
        return job.table.delete(f"customer = {customer}"), customer

    job.repeat(act, every=2.0)


def merge(job: Job) -> None:
    """Adds one to rows of the first load, and inserts a row of its own each time."""
    from pyspark.sql import functions as F

    half = CUSTOMERS * ROWS_EACH // 2

    def act(number: int) -> tuple[frazil.Commit, Any]:
        first = half + (number * 50) % half
        old = job.spark.range(first, first + 20, 1, 1).select(F.lit(LOADED).alias("writer"), F.col("id").alias("n"))
        new = job.spark.range(number, number + 1, 1, 1).select(F.lit(job.name).alias("writer"), F.col("id").alias("n"))
        commit = (
            job.table.merge(old.unionByName(new), on="target.writer = source.writer and target.n = source.n")
            .when_matched_update({"amount": "target.amount + 1"})
            .when_not_matched_insert({"writer": "source.writer", "n": "source.n", "amount": "1"})
            .execute()
        )
        return commit, [first, first + 20, number]

    job.repeat(act, every=2.0)


def compaction(job: Job) -> None:
    def act(number: int) -> tuple[frazil.Commit, Any]:
        job.pause(8.0)
        return job.table.compact(options={"min-input-files": "4"}), number

    job.repeat(act, every=0.0)


def schema(job: Job) -> None:
    def act(number: int) -> tuple[frazil.Commit, Any]:
        job.pause(max(5.0, job.plan.seconds / 4))
        name = f"extra_{number}"
        return job.table.add_column(name, "int"), name

    job.repeat(act, every=0.0)


def reader(job: Job) -> None:
    """A pinned scan returns the same rows at any time, and never a part of a batch."""
    size = job.plan.stream_rows

    def look(scan: Any) -> list[Any]:
        counted = scan.to_spark(job.spark).groupBy("writer").count().collect()
        return sorted((row["writer"], row["count"]) for row in counted)

    while job.left > 0:
        scan = job.table.scan(columns=["writer", "n"])
        before = look(scan)
        job.pause(3.0)
        after = look(scan)
        wrong = [
            f"{writer} has {count} rows" for writer, count in before if writer.startswith("stream-") and count % size
        ]
        if before != after:
            wrong.append(f"a pinned scan changed from {before} to {after}")
        job.report(commits=0, rows=sum(count for _, count in before), failures=wrong)


_JOBS: dict[str, Callable[[Job], None]] = {
    "stream": stream,
    "micro-batch": micro_batch,
    "backfill": backfill,
    "gdpr": gdpr,
    "merge": merge,
    "compaction": compaction,
    "schema": schema,
    "reader": reader,
}


def run(plan: Plan, names: list[str]) -> None:
    """One Spark application with these jobs, a thread each."""
    spark = frazil.spark(
        f"fleet-{names[0]}",
        master="local[2]",
        memory="768m",
        conf={
            "spark.sql.shuffle.partitions": "2",
            "spark.driver.host": "localhost",
            "spark.driver.bindAddress": "localhost",
            "spark.log.level": "ERROR",
        },
    )
    deadline = SYSTEM.monotonic() + plan.seconds
    threads = [threading.Thread(target=_guarded, args=(Job(plan, name, spark, deadline),)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spark.stop()


def _guarded(job: Job) -> None:
    kind = job.name.rpartition("-")[0] if job.name.startswith(("stream-", "reader-")) else job.name
    job.report(commits=0)
    try:
        _JOBS[kind](job)
    except Exception as error:  # noqa: BLE001 - every error is a finding
        job.report(failures=[f"{type(error).__name__}: {error}"])
    job.report(done=True)


if __name__ == "__main__":
    run(Plan.from_json(sys.argv[1]), sys.argv[2:])
