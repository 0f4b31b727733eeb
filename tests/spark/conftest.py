"""One Spark session for each test process. FRAZIL_TEST_SPARK says which kind: local (the default), cluster, connect."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import frazil
from frazil.on_spark import session as sessions
from frazil.on_spark import write_builder

KIND = os.environ.get("FRAZIL_TEST_SPARK", "local")
CONF = {
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.driver.host": "localhost",
    "spark.driver.bindAddress": "localhost",
    # A foreign session as far as Frazil is concerned: the tests must not lean on our own defaults.
    "spark.sql.session.timeZone": "America/New_York",
    "spark.sql.parquet.outputTimestampType": "INT96",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "10000",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            # PySpark leaves sockets to the garbage collector, which tells of it in whatever test it runs.
            for ignored in ("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"):
                item.add_marker(pytest.mark.filterwarnings(ignored))


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    if KIND == "connect":
        os.environ["SPARK_LOCAL_REMOTE"] = "1"
        # A port that is free, instead of the one that every local server takes.
        os.environ["SPARK_TESTING"] = "1"
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        from pyspark.sql import SparkSession

        builder: Any = SparkSession.builder.remote("local[2]")
        for key, value in CONF.items():
            builder = builder.config(key, value)
        # The server has the settings that a client may not change; the client is told so all the same.
        with warnings.catch_warnings(action="ignore"):
            session = builder.getOrCreate()
    else:
        master = "local-cluster[2,1,1024]" if KIND == "cluster" else "local[2]"
        session = sessions.local("frazil-tests", master=master, memory="2g", conf=CONF)
    yield session
    session.stop()


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[frazil.Lake]:
    with frazil.connect(str(tmp_path / "lake")) as lake:
        lake.create_namespace("shop")
        yield lake


@pytest.fixture(autouse=True)
def written_by_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames of these tests are small, and would be written by this process: see test_small.py for that."""
    monkeypatch.setattr(write_builder, "MOST_BYTES", -1)
