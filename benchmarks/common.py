"""What every benchmark shares: a folder, real catalogs, both libraries on the same work, ratios as JSON."""

from __future__ import annotations

import json
import logging
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

RESULTS = Path(__file__).parent / "results"
TEN_ROWS = pa.table({"id": pa.array(range(10), pa.int64()), "x": ["a"] * 10})


@dataclass(frozen=True)
class Place:
    """One catalog database and one warehouse; Frazil and PyIceberg both work on it."""

    kind: str
    frazil_uri: str
    sqlalchemy_uri: str
    warehouse: str

    def pyiceberg(self) -> SqlCatalog:
        return SqlCatalog("frazil", uri=self.sqlalchemy_uri, warehouse=self.warehouse)


@contextmanager
def places(*kinds: str) -> Iterator[list[Place]]:
    """Fresh catalogs. Postgres runs with its durable settings, as a production server does."""
    from servers import PostgresServer

    logging.disable(logging.CRITICAL)
    work = Path(tempfile.mkdtemp(prefix="frazil-bench-"))
    server = PostgresServer(durable=True) if "postgres" in kinds else None
    try:
        found = []
        for kind in kinds:
            warehouse = work / kind
            warehouse.mkdir()
            if kind == "sqlite":
                database = f"sqlite:///{work}/catalog.db"
                found.append(Place(kind, database, database, f"file://{warehouse}"))
            else:
                assert server is not None
                uri = server.create_database("bench")
                sqlalchemy = uri.replace("postgresql://", "postgresql+psycopg2://")
                found.append(Place(kind, uri, sqlalchemy, f"file://{warehouse}"))
        yield found
    finally:
        if server is not None:
            server.close()
        shutil.rmtree(work, ignore_errors=True)


@dataclass
class Report:
    """Figures of one run, printed as they come and kept as JSON."""

    name: str
    figures: dict[str, Any] = field(default_factory=dict)

    def add(self, key: str, value: float, unit: str = "") -> None:
        self.figures[key] = round(value, 4)
        print(f"  {key:<58} {value:10.3f} {unit}", flush=True)

    def ratio(self, key: str, ours: float, theirs: float, *, wanted: float, higher_is_better: bool = True) -> None:
        value = ours / theirs if higher_is_better else theirs / ours
        self.figures[key] = {"ratio": round(value, 3), "wanted": wanted, "reached": value >= wanted}
        print(f"  {key:<58} {value:10.2f} × (wanted {wanted:g})", flush=True)

    def at_most(self, key: str, value: float, wanted: float) -> None:
        """A cost over another. The page says *at most* for keys with *cost at*."""
        assert "cost at" in key, key
        self.figures[key] = {"ratio": round(value, 3), "wanted": wanted, "reached": value <= wanted}
        print(f"  {key:<58} {value:10.2f} × (wanted at most {wanted:g})", flush=True)

    def save(self) -> None:
        RESULTS.mkdir(exist_ok=True)
        machine = {"cpus": len(os.sched_getaffinity(0)), "python": platform.python_version()}
        body = {"benchmark": self.name, "machine": machine, "figures": self.figures}
        (RESULTS / f"{self.name}.json").write_text(json.dumps(body, indent=2) + "\n")


@contextmanager
def stopwatch() -> Iterator[list[float]]:
    result: list[float] = []
    began = time.perf_counter()
    yield result
    result.append(time.perf_counter() - began)
