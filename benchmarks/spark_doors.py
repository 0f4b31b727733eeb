"""What the two doors for Spark cost: the table's own methods, and the format "frazil".

Each door goes first in every other round, and the first round is thrown away: it starts workers. Run it on an idle
machine: python benchmarks/spark_doors.py [rows] [rounds]
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import frazil

COLUMNS = "id bigint, k int, name string, amount double, ts timestamp"
MADE = (
    "id",
    "cast(id % 1000 as int) as k",
    "concat('name-', id) as name",
    "cast(id as double) * 0.5 as amount",
    "timestamp_seconds(1700000000 + id) as ts",
)
EVERYTHING = ("sum(id)", "sum(k)", "sum(length(name))", "sum(amount)", "max(ts)")


def main(rows: int, rounds: int) -> None:
    spark = frazil.spark()
    frazil.register(spark)
    frame = spark.range(0, rows, 1, 4).selectExpr(*MADE)
    took: dict[tuple[str, str], list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder, frazil.connect(f"{folder}/lake", spark=spark) as lake:
        lake.create_namespace("shop")
        for number in range(rounds + 1):
            for what, doors in steps(spark, lake, frame, number).items():
                for door in sorted(doors, reverse=bool(number % 2)):
                    started = time.perf_counter()
                    doors[door]()
                    if number:
                        took[what, door].append(time.perf_counter() - started)
    spark.stop()
    for (what, door), seconds in sorted(took.items()):
        shown = ", ".join(f"{each:.2f}" for each in seconds)
        print(f"{what:<18} {door:<10} median {statistics.median(seconds):6.2f} s   ({shown})")


def steps(spark: Any, lake: frazil.Lake, frame: Any, number: int) -> dict[str, dict[str, Callable[[], object]]]:
    own = lake.create_table(f"shop.own{number}", COLUMNS)
    lake.create_table(f"shop.format{number}", COLUMNS)
    options = lake.spark_options()

    def read(**more: str) -> Any:
        return spark.read.format("frazil").options(**options, **more).load(own.name)

    def write() -> None:
        frame.write.format("frazil").mode("append").options(**options).save(f"shop.format{number}")

    return {
        "write": {"methods": lambda: own.append(frame), "format": write},
        "read all columns": {
            "methods": lambda: own.scan().to_spark().selectExpr(*EVERYTHING).collect(),
            "format": lambda: read().selectExpr(*EVERYTHING).collect(),
        },
        "read one column": {
            "methods": lambda: own.scan().to_spark().selectExpr("sum(k)").collect(),
            "format": lambda: read().selectExpr("sum(k)").collect(),
            "format, columns=": lambda: read(columns="k").selectExpr("sum(k)").collect(),
        },
        "find one row": {
            "methods": lambda: own.scan("id = 7").to_spark().count(),
            "format": lambda: read(where="id = 7").count(),
        },
    }


if __name__ == "__main__":
    given = [int(each) for each in sys.argv[1:3]]
    main(*(*given, *(2_000_000, 3)[len(given) :]))
