"""Frazil on Spark beside Iceberg's own Spark runtime: one session, one catalog, the same rows, taking turns.

Both read the same table, which Iceberg has written, and change copies of it (its metadata registered under a new
name, so that every repetition starts from the same files). A ratio is Iceberg's best time over Frazil's. Frazil fsyncs
every file it references before the swap; Iceberg does not.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import frazil
from common import Report, stopwatch
from interop.iceberg_spark import CATALOG, attach, start_iceberg_spark

COLUMNS = "id bigint, n int, name string, amount double, sha string, at timestamp"
AGGREGATE = (
    "count(*) as rows",
    "sum(n) as n",
    "max(name) as name",
    "sum(cast(amount as bigint)) as amount",
    "max(sha) as sha",
    "max(at) as at",
)
BY_MODE = ("write.delete.mode", "write.update.mode", "write.merge.mode")
GROWTH_MB = 50
"""How much more of the driver's memory ten times the rows may take."""

Act = Callable[[], Any]


@dataclass
class Bench:
    """One session and one lake, which Iceberg knows as the catalog ``ice``."""

    spark: Any
    lake: frazil.Lake
    report: Report
    rows: int
    files: int
    repeat: int
    work: Path
    _made: int = field(default=0)

    def source(self, rows: int) -> Any:
        """Rows on disk, in plain Parquet: making them is no part of any figure."""
        path = self.work / f"source-{rows}"
        if not path.exists():
            made = self.spark.range(0, rows, 1, 8).selectExpr(
                "id",
                "cast(id % 1000 as int) as n",
                "concat('customer ', id % 50000) as name",
                "id * 0.25d as amount",
                "sha2(cast(id as string), 256) as sha",
                "timestamp_seconds(1700000000 + id) as at",
            )
            made.write.parquet(str(path))
        return self.spark.read.parquet(str(path))

    def create(self, mode: str = "copy-on-write", **properties: str) -> str:
        """A fresh table of both; the name is without the catalog."""
        self._made += 1
        name = f"bench.t{self._made}"
        given = {"write.parquet.compression-codec": "zstd", **dict.fromkeys(BY_MODE, mode), **properties}
        self.lake.create_table(name, COLUMNS, properties=given)
        return name

    def copy(self, name: str, mode: str) -> str:
        """The same files under another name: a fresh table that costs nothing."""
        self._made += 1
        copied = self.lake.register_table(f"bench.t{self._made}", self.lake.table(name).metadata_location)
        copied.set_properties(dict.fromkeys(BY_MODE, mode))
        return copied.name

    def ours(self, name: str) -> frazil.Table:
        return self.lake.table(name)

    def compare(self, what: str, ours: Callable[[], Act], theirs: Callable[[], Act], wanted: float) -> None:
        """Best of the repetitions. Each side makes ready for its turn first, and both answer the same."""
        best: dict[str, float] = {}
        answers: dict[str, Any] = {}
        for turn in range(self.repeat):
            sides = [("frazil", ours), ("iceberg", theirs)]
            for side, prepare in sides if turn % 2 == 0 else reversed(sides):
                act = prepare()
                with stopwatch() as took:
                    answers[side] = act()
                best[side] = min(took[0], best.get(side, took[0]))
        assert answers["frazil"] == answers["iceberg"], (what, answers)
        for side, seconds in best.items():
            self.report.add(f"{what}, {side}", seconds, "s")
        self.report.ratio(
            f"{what}, iceberg over frazil", best["frazil"], best["iceberg"], wanted=wanted, higher_is_better=False
        )

    def read(self, what: str, name: str, wanted: float, where: str = "true") -> None:
        """The same aggregate by both; planning counts."""

        def ours() -> Any:
            return self.ours(name).scan(where=where).to_spark(self.spark).selectExpr(*AGGREGATE).collect()

        def theirs() -> Any:
            return self.spark.table(f"{CATALOG}.{name}").where(where).selectExpr(*AGGREGATE).collect()

        self.compare(what, lambda: ours, lambda: theirs, wanted)

    def write(
        self,
        what: str,
        start: Callable[[], str],
        ours: Callable[[frazil.Table], Any],
        theirs: Callable[[str], Any],
        wanted: float,
    ) -> None:
        """A change of a fresh table by both, whose rows are compared at the end."""
        made: dict[str, str] = {}

        def begin(side: str, act: Callable[[str], Any]) -> Act:
            name = made[side] = start()

            def change() -> None:
                act(name)

            return change

        self.compare(
            what,
            lambda: begin("frazil", lambda name: ours(self.ours(name))),
            lambda: begin("iceberg", lambda name: theirs(f"{CATALOG}.{name}")),
            wanted,
        )
        found = {
            side: self.spark.table(f"{CATALOG}.{name}").selectExpr(*AGGREGATE).collect() for side, name in made.items()
        }
        assert found["frazil"] == found["iceberg"], (what, found)


# Steps


def append(bench: Bench, _: str) -> None:
    source = bench.source(bench.rows)
    bench.write(
        f"append of {bench.rows} rows",
        bench.create,
        lambda table: table.append(source),
        lambda name: source.writeTo(name).append(),
        wanted=1.05,
    )


def scan(bench: Bench, name: str) -> None:
    bench.read("full scan", name, wanted=1.2)


def selective(bench: Bench, name: str) -> None:
    start = bench.rows // 3
    bench.read("scan of 1 % by a sorted column", name, 1.0, f"id between {start} and {start + bench.rows // 100}")


def over_deletes(bench: Bench, name: str) -> None:
    copied = bench.copy(name, "merge-on-read")
    bench.spark.sql(f"delete from {CATALOG}.{copied} where id % 100 = 7").collect()
    bench.read("scan over 1 % position deletes", copied, wanted=1.0)


def small_files(bench: Bench, _: str) -> None:
    name = bench.create()
    bench.source(bench.files * 100).repartition(bench.files).writeTo(f"{CATALOG}.{name}").append()
    assert len(bench.ours(name).files()) == bench.files
    bench.read(f"scan of {bench.files} files of 100 rows", name, wanted=1.2)


def merge_on_read(bench: Bench, name: str) -> None:
    _merge(bench, name, "merge-on-read", wanted=1.5)


def copy_on_write(bench: Bench, name: str) -> None:
    _merge(bench, name, "copy-on-write", wanted=1.0)


def _merge(bench: Bench, name: str, mode: str, wanted: float) -> None:
    source = changed_rows(bench, bench.rows)
    source.createOrReplaceTempView("changed_rows")
    bench.write(
        f"merge of 2 %, {mode}",
        lambda: bench.copy(name, mode),
        lambda table: merge_ours(table, source),
        lambda ice: bench.spark.sql(
            f"merge into {ice} t using changed_rows s on t.id = s.id "
            "when matched then update set * when not matched then insert *"
        ).collect(),
        wanted,
    )


def changed_rows(bench: Bench, rows: int) -> Any:
    """Two in a hundred rows: most change one that is there, some are new."""
    source = bench.source(rows)
    return source.where("id % 50 = 7").selectExpr(
        f"if(id % 1000 = 7, id + {rows}, id) as id", "n + 1 as n", "'changed' as name", "amount", "sha", "at"
    )


def merge_ours(table: frazil.Table, source: Any) -> Any:
    builder = table.merge(source, on="target.id = source.id")
    return builder.when_matched_update_all().when_not_matched_insert_all().execute()


def delete(bench: Bench, name: str) -> None:
    bench.write(
        "delete of 1 %, merge-on-read",
        lambda: bench.copy(name, "merge-on-read"),
        lambda table: table.delete("id % 100 = 7", engine="spark"),
        lambda ice: bench.spark.sql(f"delete from {ice} where id % 100 = 7").collect(),
        wanted=1.0,
    )


def small_append(bench: Bench, _: str) -> None:
    rows = bench.source(1000).coalesce(1)

    def several(act: Act) -> None:
        for _ in range(5):
            act()

    bench.write(
        "five appends of 1,000 rows",
        bench.create,
        lambda table: several(lambda: table.append(rows)),
        lambda name: several(lambda: rows.writeTo(name).append()),
        wanted=1.0,
    )


def memory(bench: Bench, _: str) -> None:
    """The Python driver while rows are appended and merged. Its memory is for files, not for rows."""
    peaks = []
    for rows in (bench.rows // 10, bench.rows):
        source, changed = bench.source(rows), changed_rows(bench, rows)
        with _peak_memory() as peak:
            table = bench.ours(bench.create("merge-on-read"))
            table.append(source)
            merge_ours(table, changed)
        peaks.append(peak[0])
        bench.report.add(f"driver memory, append and merge of {rows} rows", peak[0], "MB")
    growth = peaks[1] - peaks[0]
    bench.report.figures["driver memory, growth from a tenth of the rows"] = {
        "megabytes": round(growth, 1),
        "allowed": GROWTH_MB,
        "reached": growth <= GROWTH_MB,
    }
    print(
        f"  {'driver memory, growth from a tenth of the rows':<58} {growth:10.1f} MB (allowed {GROWTH_MB})", flush=True
    )


@contextmanager
def _peak_memory() -> Iterator[list[float]]:
    """The most resident memory of this process during the block, in MB, looked at again and again."""
    result, ended = [0.0], threading.Event()

    def watch() -> None:
        while not ended.wait(0.02):
            result[0] = max(result[0], _resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield result
    finally:
        ended.set()
        watcher.join()


def _resident() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


# memory comes first: what the others have taken is not given back.
STEPS: dict[str, Callable[[Bench, str], None]] = {
    "memory": memory,
    "append": append,
    "small-append": small_append,
    "scan": scan,
    "selective": selective,
    "deletes": over_deletes,
    "small-files": small_files,
    "merge-on-read": merge_on_read,
    "copy-on-write": copy_on_write,
    "delete": delete,
}


@contextmanager
def opened(arguments: argparse.Namespace) -> Iterator[Bench]:
    # Nothing in the settings favours either.
    conf = {
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.parquet.compression.codec": "zstd",
    }
    work = Path(tempfile.mkdtemp(prefix="frazil-bench-", dir=arguments.folder))
    try:
        with (
            start_iceberg_spark(memory=arguments.memory, conf=conf) as spark,
            frazil.connect(str(work / "lake"), name=CATALOG, spark=spark) as lake,
        ):
            attach(spark, lake)
            lake.create_namespace("bench")
            report = Report("spark", {"rows": arguments.rows, "files": arguments.files, "repeat": arguments.repeat})
            yield Bench(spark, lake, report, arguments.rows, arguments.files, arguments.repeat, work)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def sorted_table(bench: Bench) -> str:
    """Sixteen files by id, with several row groups each, written by Iceberg."""
    name = bench.create(**{"write.parquet.row-group-size-bytes": str(8 << 20)})
    rows = bench.source(bench.rows).repartitionByRange(16, "id").sortWithinPartitions("id")
    rows.writeTo(f"{CATALOG}.{name}").append()
    return name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--memory", default="6g", help="of Spark's JVM")
    parser.add_argument("--folder", help="where the tables are made, and removed at the end")
    parser.add_argument("--only", nargs="+", choices=STEPS, default=list(STEPS), metavar="STEP", help=", ".join(STEPS))
    arguments = parser.parse_args()
    with opened(arguments) as bench:
        name = sorted_table(bench)
        for step in arguments.only:
            began = time.perf_counter()
            STEPS[step](bench, name)
            print(f"{step}: {time.perf_counter() - began:.0f} s in all", flush=True)
        # A run of some steps is for looking at them.
        if len(arguments.only) == len(STEPS):
            bench.report.save()


if __name__ == "__main__":
    main()
