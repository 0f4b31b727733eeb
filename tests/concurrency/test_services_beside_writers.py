"""Expiry and orphan removal run all the time beside writers: no write fails, no row is lost, no file is missing."""

from __future__ import annotations

import datetime as dt
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import frazil
from frazil.runtime import SYSTEM
from surface.disk import FUTURE, NAME, files, ids, named

WRITERS, BATCHES = 3, 25
YOUNG_MS = 10_000
"""A write takes less than that from its base to its swap."""


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_writers_do_not_notice_services(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    uri = f"sqlite:///{tmp_path}/catalog.db" if kind == "sqlite" else request.getfixturevalue("postgres_uri")
    with frazil.connect(uri, warehouse=f"file://{tmp_path}/warehouse") as lake, ThreadPoolExecutor() as pool:
        lake.create_namespace("s")
        properties = {"frazil.retention.min-age-ms": "0"}
        table = lake.create_table(NAME, "id bigint not null, v bigint", keys=["id"], properties=properties)
        ended = threading.Event()

        def write(writer: int) -> None:
            for number in range(BATCHES):
                key = writer * 1000 + number
                table.append([{"id": key, "v": 0}, {"id": key + 500, "v": 0}])
                table.upsert([{"id": key, "v": number}])
                if number % 5 == 4:
                    table.delete(f"id = {key + 500}")

        def serve() -> tuple[int, int]:
            runs = deleted = 0
            while not ended.is_set():
                done = table.expire_snapshots(SYSTEM.now_ms() - YOUNG_MS, retain_last=1)
                assert done.expired is not None
                assert done.expired.unfinished == ""
                report = table.remove_orphans(dt.timedelta(minutes=1), dry_run=False)
                assert report.files_removed == 0, "every unnamed file is young, or of a live writer"
                deleted += done.expired.files_deleted
                runs += 1
            return runs, deleted

        service = pool.submit(serve)
        try:
            for each in [pool.submit(write, writer) for writer in range(WRITERS)]:
                each.result()
        finally:
            ended.set()
        runs, deleted = service.result()
        assert runs > 0
        gone = {number + 500 for number in range(BATCHES) if number % 5 == 4}
        own = {*range(BATCHES), *(number + 500 for number in range(BATCHES))} - gone
        assert ids(table) == sorted(writer * 1000 + each for writer in range(WRITERS) for each in own)
        table.expire_snapshots(FUTURE)
        table.remove_orphans(dt.timedelta(0), dry_run=False)
        assert files(lake, table) == named(lake)
        assert ids(table) == sorted(writer * 1000 + each for writer in range(WRITERS) for each in own)
        print(f"{runs} runs of the services deleted {deleted} files")
