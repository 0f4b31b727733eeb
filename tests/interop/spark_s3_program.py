"""A warehouse on S3 with Spark: metadata and deletes say s3://, Spark's connector reads s3a://, and the session knows
neither the store's address nor its keys.

    python -m interop.spark_s3_program DATABASE WAREHOUSE PROPERTIES JARS

PROPERTIES is JSON. Without JARS every read is refused. Prints ``done``.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

import frazil
from frazil.on_spark import session as sessions
from spark.rows import canonical, same_rows


def main(database: str, warehouse: str, properties: str, jars: str = "") -> None:
    conf = {
        "spark.driver.host": "localhost",
        "spark.driver.bindAddress": "localhost",
        "spark.sql.shuffle.partitions": "2",
        **({"spark.jars": jars} if jars else {}),
    }
    spark = sessions.local("frazil-s3", master="local[2]", memory="1g", conf=conf)
    with frazil.connect(f"sqlite:///{database}", warehouse=warehouse, properties=json.loads(properties)) as lake:
        lake.create_namespace("shop")
        (with_connector if jars else without_connector)(lake, spark)
    spark.stop()
    print("done")


def rows(spark: Any, start: int, end: int) -> Any:
    return spark.range(start, end, 1, 2).selectExpr("id", "concat('k ', id % 3, '%') as name", "id * 2 as n")


def with_connector(lake: frazil.Lake, spark: Any) -> None:
    table = lake.create_table("shop.t", "id bigint not null, name string, n bigint", partition_by=["name"], keys=["id"])
    assert table.append(rows(spark, 0, 60)).engine == "spark"
    table.append(rows(spark, 60, 90).toArrow())
    table.delete("n % 7 = 0", mode="merge-on-read", engine="spark")
    table.delete("id = 11", mode="merge-on-read", engine="arrow")
    table.update({"n": "n + 1"}, where="id < 10", engine="spark")
    table.upsert(rows(spark, 5, 8))
    table.upsert(rows(spark, 80, 95), mode="position")
    merged = table.merge(rows(spark, 50, 99), on=["id"]).when_matched_delete("source.id = 51")
    merged.when_matched_update({"n": "source.n * 10"}).when_not_matched_insert_all().execute()
    assert [row for row in same_rows(table, spark) if row.startswith("(98,")] == ["(98, 'k 2%', 196)"]
    lists = lake.create_table("shop.lists", "id bigint, tags array<string>")
    lists.append(spark.range(5).selectExpr("id", "array('a', null) as tags"))
    same_rows(lists, spark)
    before = canonical(table.scan().to_arrow())
    table.compact(engine="spark", options={"min-input-files": "2"})
    assert same_rows(table, spark) == before
    named = [file.path for file in table.scan().files()]
    assert named
    assert all(path.startswith("s3://") for path in named)


def without_connector(lake: frazil.Lake, spark: Any) -> None:
    table = lake.create_table("shop.t", "id bigint, name string, n bigint")
    # Frazil's own writer needs no connector.
    table.append(rows(spark, 0, 10))
    snapshot = table.snapshot()
    files = sorted(_files(lake, table))
    for refused in (
        lambda: table.scan().to_spark(spark),
        lambda: table.delete("id = 3", engine="spark"),
        lambda: table.update({"n": "n + 1"}, where="id = 3", engine="spark"),
    ):
        with pytest.raises(frazil.Unsupported, match="no connector") as caught:
            refused()
        assert "hadoop-aws" in str(caught.value)
    assert table.snapshot() == snapshot
    assert sorted(_files(lake, table)) == files
    assert table.delete("id = 3", engine="arrow").rows_deleted == 1


def _files(lake: frazil.Lake, table: frazil.Table) -> list[str]:
    return [each.path for each in table._storage.list(table.location)]


if __name__ == "__main__":
    main(*sys.argv[1:])
