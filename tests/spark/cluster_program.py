"""Runs every way in which Frazil's code reaches executors, on a cluster whose executors have pyarrow and nothing else.

    python cluster_program.py FOLDER PYTHON

PYTHON is the interpreter of the executors. Prints ``done`` when every row is as Arrow has it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import functions as F

import frazil
from frazil.on_spark import file_columns, stage
from frazil.on_spark import session as sessions
from spark.rows import canonical, same_rows

ABSENT = ("frazil", "pyiceberg", "pandas", "numpy", "pyroaring", "sqlglot", "psycopg")
arrow: Any = pa


def session(python: str, **conf: str) -> Any:
    return sessions.local(
        "frazil-cluster",
        master="local-cluster[2,1,1024]",
        memory="1g",
        conf={
            "spark.pyspark.python": python,
            "spark.pyspark.driver.python": sys.executable,
            "spark.driver.host": "localhost",
            "spark.driver.bindAddress": "localhost",
            "spark.sql.shuffle.partitions": "2",
            **conf,
        },
    )


def importable(names: Iterable[str]) -> Any:
    """What a function on an executor can import of these, as a function for mapInArrow."""

    def find(batches: Iterable[Any]) -> Iterator[Any]:
        found = []
        for _ in batches:
            for name in names:
                try:
                    importlib.import_module(name)
                except ImportError:
                    continue
                found.append(name)
            yield pa.RecordBatch.from_pydict({"name": sorted(set(found))})

    return find


def check_bare(spark: Any) -> None:
    frame = spark.range(0, 2, 1, 2).mapInArrow(importable((*ABSENT, "pyarrow")), "name string")
    found = {row["name"] for row in frame.collect()}
    assert found == {"pyarrow"}, f"the executors have {found}"


def rows(spark: Any, start: int, end: int) -> Any:
    return spark.range(start, end, 1, 3).selectExpr(
        "id",
        "concat('k', id % 7) as name",
        "cast(id * 1.25 as decimal(20,4)) as price",
        "array(id, null) as tags",
        "map('a', id) as props",
    )


def arrow_writer(lake: frazil.Lake, spark: Any) -> None:
    """Lists and maps, buckets of texts and decimals; then deletes, copies and a merge."""
    table = lake.create_table(
        "shop.nested",
        "id bigint not null, name string, price decimal(20,4), tags array<bigint>, props map<string, bigint>",
        partition_by=["bucket(3, name)", "bucket(2, price)", "truncate(10, price)"],
        keys=["id"],
    )
    twin = lake.create_table("shop.twin", table.schema, keys=["id"])
    for start, end in ((0, 100), (100, 150)):
        table.append(rows(spark, start, end))
        twin.append(rows(spark, start, end).toArrow())
    for each, engine in ((table, "spark"), (twin, "arrow")):
        change(each, spark, engine)
    table.merge(rows(spark, 90, 160), on=["id"]).when_matched_delete(
        "source.id % 2 = 0"
    ).when_matched_update_all().when_not_matched_insert_all().execute()
    there = set(twin.scan(columns=["id"]).to_arrow()["id"].to_pylist())
    twin.delete("id >= 90 and id < 160", engine="arrow")
    kept = [each for each in range(90, 160) if each % 2 or each not in there]
    twin.append(rows(spark, 90, 160).where(F.col("id").isin(kept)).toArrow())
    assert same_rows(table, spark) == same_rows(twin, spark)
    table.compact(engine="spark", options={"min-input-files": "2"})
    assert same_rows(table, spark) == same_rows(twin, spark)


def change(table: frazil.Table, spark: Any, engine: Any) -> None:
    table.delete("id % 10 = 1", mode="merge-on-read", engine=engine)
    table.delete("name = 'k2'", mode="copy-on-write", engine=engine)
    table.update({"name": "concat(name, '!')"}, where="id < 20", engine=engine)
    given = rows(spark, 5, 10)
    table.upsert(given if engine == "spark" else given.toArrow())
    # Half up and the like: an arithmetic that Spark has not, so that Python does it.
    table.delete("price / 3 > 45.6789 and id < 120 and id <> 110", engine=engine)


def footers(lake: frazil.Lake, spark: Any) -> None:
    """Names that had two meanings are looked up in the footers, by executors when there are many files."""
    file_columns._BY_DRIVER = 0
    stage._FOOTERS_ON_DRIVER = 0
    table = lake.create_table("shop.renamed", "id bigint, a bigint")
    table.append(spark.range(10).selectExpr("id", "id as a"))
    table.rename_column("a", "b")
    table.add_column("a", "string")
    table.append(spark.range(10, 20).selectExpr("id", "id as b", "'x' as a"))
    for where in (None, "a is null", "b = 3"):
        scan = table.scan(where=where)
        assert canonical(scan.to_spark(spark).toArrow()) == canonical(scan.to_arrow())


def main(folder: str, python: str) -> None:
    spark = session(python)
    check_bare(spark)
    with frazil.connect(folder) as lake:
        lake.create_namespace("shop")
        arrow_writer(lake, spark)
        footers(lake, spark)
    spark.stop()
    print("done")


if __name__ == "__main__":
    main(*sys.argv[1:])
