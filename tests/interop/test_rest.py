"""Frazil on Iceberg's own REST server, with Iceberg Java looking at the same tables behind the server's back."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator

import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

import frazil
from frazil.lake import Lake
from interop.iceberg_java import IcebergJava, JavaCatalog, JavaTable, sqlite_options
from interop.race import unreferenced
from interop.rest_server import RestServer

pytestmark = pytest.mark.interop

IDS = Schema(NestedField(1, "id", LongType()))


@pytest.fixture
def lake(rest_server: RestServer) -> Iterator[Lake]:
    with frazil.connect(rest_server.url) as opened:
        yield opened


@pytest.fixture
def name(lake: Lake) -> str:
    """A table of this test's own; the server serves the whole session."""
    namespace = f"n{uuid.uuid4().hex[:8]}"
    lake.create_namespace(namespace)
    lake.create_table(f"{namespace}.events", IDS)
    return f"{namespace}.events"


@pytest.fixture
def behind(rest_server: RestServer, java: IcebergJava, name: str) -> JavaTable:
    return JavaCatalog(java, sqlite_options(rest_server.database, rest_server.warehouse, "rest")).table(name)


def test_appends_through_rest_are_read_by_java_and_pyiceberg(
    lake: Lake, name: str, behind: JavaTable, rest_server: RestServer
) -> None:
    commits = [lake.table(name).append([{"id": n}]) for n in range(3)]
    assert sorted(row["id"] for row in behind.rows()) == [0, 1, 2]
    assert {entry["snapshot_id"] for entry in behind.entries()} == {commit.snapshot_id for commit in commits}
    python = RestCatalog("rest", uri=rest_server.url).load_table(name)
    assert sorted(python.scan().to_arrow()["id"].to_pylist()) == [0, 1, 2]
    assert unreferenced(python) == set()


def test_a_commit_whose_answer_is_lost_lands_once(
    lake: Lake, name: str, behind: JavaTable, rest_server: RestServer
) -> None:
    events = lake.table(name)
    rest_server.lose_answers(1)
    commit = events.append([{"id": 1}])
    assert commit.snapshot_id == behind.head()
    assert behind.rows() == [{"id": 1}]
    assert len(behind.metadata()["snapshots"]) == 1


def test_a_commit_that_the_server_refuses_for_a_while_lands_once(
    lake: Lake, name: str, behind: JavaTable, rest_server: RestServer
) -> None:
    rest_server.refuse(2)
    lake.table(name).append([{"id": 1}])
    assert behind.rows() == [{"id": 1}]
    assert len(behind.metadata()["snapshots"]) == 1


def test_threads_that_append_through_rest_lose_nothing(lake: Lake, name: str, behind: JavaTable) -> None:
    events = lake.table(name)
    errors: list[BaseException] = []

    def write(writer: int) -> None:
        try:
            for seq in range(5):
                events.append([{"id": writer * 100 + seq}], retry=frazil.Retry.backfill())
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert sorted(row["id"] for row in behind.rows()) == sorted(w * 100 + s for w in range(6) for s in range(5))
