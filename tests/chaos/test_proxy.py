"""A request that the proxy lets arrive twice does so: the campaign's duplicates are real ones."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import psycopg
import pytest

from chaos.proxy import ChaosProxy
from servers import PostgresServer


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with contextlib.closing(PostgresServer()) as found:
        yield found


@pytest.fixture
def proxy(server: PostgresServer) -> Iterator[ChaosProxy]:
    with contextlib.closing(ChaosProxy(server.port, server.uri())) as found:
        yield found


@pytest.fixture
def client(server: PostgresServer, proxy: ChaosProxy) -> Iterator[psycopg.Connection]:
    with psycopg.connect(server.uri(port=proxy.port), autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS t")
        connection.execute("CREATE TABLE t (n int, word text)")
        yield connection


def _rows(client: psycopg.Connection) -> list[tuple[int, str]]:
    return client.execute("SELECT n, word FROM t ORDER BY n").fetchall()


@pytest.mark.parametrize("is_prepared", [False, True])
def test_a_change_arrives_twice(client: psycopg.Connection, proxy: ChaosProxy, is_prepared: bool) -> None:
    insert = "INSERT INTO t VALUES (%s, %s)"
    client.execute(insert, (1, "x" * 200_000), prepare=is_prepared)
    proxy.repeat()
    client.execute("SELECT 1")
    client.execute(insert, (2, "y" * 200_000), prepare=is_prepared)
    client.execute(insert, (3, "z"), prepare=is_prepared)
    assert proxy.has_copied.wait(30)
    assert [n for n, _ in _rows(client)] == [1, 2, 2, 3]
    assert {len(word) for n, word in _rows(client) if n == 2} == {200_000}


def test_what_is_said_inside_a_transaction_is_not_repeated(client: psycopg.Connection, proxy: ChaosProxy) -> None:
    proxy.repeat()
    with client.transaction():
        client.execute("INSERT INTO t VALUES (1, 'inside')")
    client.execute("INSERT INTO t VALUES (2, 'alone')")
    assert proxy.has_copied.wait(30)
    assert _rows(client) == [(1, "inside"), (2, "alone"), (2, "alone")]


def test_without_an_order_everything_arrives_once(client: psycopg.Connection, proxy: ChaosProxy) -> None:
    client.execute("INSERT INTO t VALUES (1, 'once')")
    assert (_rows(client), proxy.copies) == ([(1, "once")], 0)
