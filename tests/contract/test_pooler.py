"""Postgres through a pooler in transaction mode: found out when connecting, and nothing of a session is relied on."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

import frazil
from contract.samples import EVENTS
from frazil.catalog.postgres import PostgresStore
from pooler import Pooler


@pytest.fixture
def pooler(postgres_uri: str) -> Iterator[Pooler]:
    found = Pooler(postgres_uri)
    yield found
    found.close()


def test_a_pooler_is_distinguished_from_a_server(postgres_uri: str, pooler: Pooler) -> None:
    with closing(PostgresStore(postgres_uri)) as direct, closing(PostgresStore(pooler.uri(postgres_uri))) as pooled:
        assert direct._engine._listener.is_possible  # type: ignore[attr-defined]
        assert not pooled._engine._listener.is_possible  # type: ignore[attr-defined]
        assert direct.queue is not None
        assert pooled.queue is not None
        assert direct.queue.notifier.address() != ""
        assert pooled.queue.notifier.address() == "", "no notification would arrive"


def test_behind_a_pooler_the_commit_lock_is_a_row(postgres_uri: str, pooler: Pooler) -> None:
    through = pooler.uri(postgres_uri)
    with closing(PostgresStore(through)) as first, closing(PostgresStore(through)) as second:
        release = first.locks.try_lock(EVENTS)
        assert release is not None
        assert second.locks.try_lock(EVENTS) is None
        assert first.locks.try_lock(EVENTS) is None
        release()
        again = second.locks.try_lock(EVENTS)
        assert again is not None
        release()
        assert first.locks.try_lock(EVENTS) is None, "a second release does not free the next holder's lock"
        again()


def test_writers_behind_a_pooler_are_committed_together(postgres_uri: str, pooler: Pooler, tmp_path: Path) -> None:
    through = pooler.uri(postgres_uri)
    writers, each = 6, 12
    with ExitStack() as stack:
        lakes = [stack.enter_context(frazil.connect(through, warehouse=str(tmp_path / "wh"))) for _ in range(writers)]
        lakes[0].create_namespace("shop")
        lakes[0].create_table("shop.events", "id bigint")

        def write(number: int) -> list[frazil.Commit]:
            table = lakes[number].table("shop.events")
            return [table.append([{"id": number * each + n}]) for n in range(each)]

        with ThreadPoolExecutor(writers) as pool:
            done = [commit for commits in pool.map(write, range(writers)) for commit in commits]
        rows = lakes[0].table("shop.events").scan().to_arrow()["id"].to_pylist()
        assert sorted(map(int, rows)) == list(range(writers * each))  # type: ignore[arg-type]
        assert max(commit.group_size for commit in done) > 1
    assert pooler.handed_over > 0, "the pooler has mixed connections"
