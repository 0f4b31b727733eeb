"""A Spark session with Iceberg's own runtime in it, on which Frazil works as well."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from frazil.lake import Lake
from frazil.on_spark import session as sessions
from interop import jars

CATALOG = "ice"


@contextmanager
def start_iceberg_spark(memory: str = "1g", conf: Mapping[str, str] | None = None) -> Iterator[Any]:
    """Iceberg's extensions are on: their statements are needed, and Frazil must not mind them."""
    given = {
        "spark.jars": ",".join(str(each) for each in jars.fetched(jars.SPARK)),
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.driver.host": "localhost",
        "spark.driver.bindAddress": "localhost",
        "spark.sql.shuffle.partitions": "2",
        **(conf or {}),
    }
    session = sessions.local("frazil-interop", master="local[2]", memory=memory, conf=given)
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


def attach(spark: Any, lake: Lake) -> None:
    """Let Iceberg's catalog ``ice`` be the lake, which was opened under this name."""
    for key, value in lake.spark_conf().items():
        spark.conf.set(key, value)
    # It would not look for another engine's commits otherwise.
    spark.conf.set(f"spark.sql.catalog.{CATALOG}.cache-enabled", "false")
