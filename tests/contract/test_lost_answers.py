"""Answers that never come: connections cut around COMMIT, servers that restart, a standby in the primary's place."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from frazil.catalog.base import CommitRecord, Committed, Stale, Unknown
from frazil.catalog.postgres import PostgresStore
from frazil.catalog.store import Swap
from frazil.errors import CatalogUnavailable, NoSuchTable
from frazil.model import Ident
from servers import LossyProxy, PostgresServer, lossy

EVENTS = Ident(("shop",), "events")
OTHER = Ident(("shop",), "other")
RECORD = CommitRecord("table-uuid", "c1", "digest", 7, 3, {"rows_inserted": 5})


@pytest.fixture
def proxy(postgres_server: PostgresServer) -> Iterator[LossyProxy]:
    with lossy(postgres_server.port) as found:
        yield found


@pytest.fixture
def direct(postgres_uri: str) -> Iterator[PostgresStore]:
    store = PostgresStore(postgres_uri)
    store.create_namespace(("shop",), {})
    store.insert(EVENTS, "v0")
    yield store
    store.close()


@pytest.fixture
def through(
    direct: PostgresStore, postgres_uri: str, postgres_server: PostgresServer, proxy: LossyProxy
) -> Iterator[PostgresStore]:
    database = postgres_uri.rsplit("/", 1)[1]
    store = PostgresStore(postgres_server.uri(database, port=proxy.port))
    yield store
    store.close()


def test_p9_a_lost_answer_to_commit_is_unknown_and_the_same_swap_sent_again_tells_the_truth(
    through: PostgresStore, direct: PostgresStore, proxy: LossyProxy
) -> None:
    proxy.cut(rb"COMMIT\0", "after")
    outcome = through.swap(Swap.of_table(EVENTS, "v0", "v1", RECORD))
    assert isinstance(outcome, Unknown), outcome
    assert "COMMIT" in outcome.cause
    assert direct.read(EVENTS).location == "v1"
    assert through.swap(Swap.of_table(EVENTS, "v0", "v1", RECORD)) == Committed("v1")
    assert direct.commits.find("table-uuid", "c1") == RECORD
    assert proxy.cuts == 1


def test_p9_a_commit_that_never_arrived_is_unknown_too_and_lands_when_sent_again(
    through: PostgresStore, direct: PostgresStore, proxy: LossyProxy
) -> None:
    proxy.cut(rb"COMMIT\0", "before")
    assert isinstance(through.swap(Swap.of_table(EVENTS, "v0", "v1", RECORD)), Unknown)
    assert direct.read(EVENTS).location == "v0"
    assert direct.commits.find("table-uuid", "c1") is None
    assert through.swap(Swap.of_table(EVENTS, "v0", "v1", RECORD)) == Committed("v1")


def test_p9_a_lost_answer_after_which_another_won_is_stale_when_sent_again(
    through: PostgresStore, direct: PostgresStore, proxy: LossyProxy
) -> None:
    proxy.cut(rb"COMMIT\0", "before")
    assert isinstance(through.swap(Swap.of_table(EVENTS, "v0", "v1", RECORD)), Unknown)
    assert direct.swap(Swap.of_table(EVENTS, "v0", "other", None)) == Committed("other")
    assert through.swap(Swap.of_table(EVENTS, "v0", "v1", RECORD)) == Stale("other")
    assert direct.commits.find("table-uuid", "c1") is None


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_connection_lost_before_commit_was_sent_is_certainly_no_commit(
    through: PostgresStore, direct: PostgresStore, proxy: LossyProxy, when: str
) -> None:
    proxy.cut(rb"UPDATE iceberg_tables", when)
    with pytest.raises(CatalogUnavailable):
        through.swap(Swap.of_table(EVENTS, "v0", "v1", RECORD))
    assert direct.read(EVENTS).location == "v0"
    assert through.swap(Swap.of_table(EVENTS, "v0", "v1", RECORD)) == Committed("v1")


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_connection_that_died_in_the_pool_is_replaced_unseen(
    through: PostgresStore, proxy: LossyProxy, when: str
) -> None:
    through.read(EVENTS)
    proxy.cut(rb"SELECT t\.metadata_location", when)
    assert through.read(EVENTS).location == "v0"
    proxy.cut(rb"BEGIN", when)
    assert through.swap(Swap.of_table(EVENTS, "v0", "v1", None)) == Committed("v1")
    assert proxy.cuts == 2


@pytest.mark.parametrize("when", ["before", "after"])
def test_lost_answers_of_other_changes_are_found_out(
    through: PostgresStore, direct: PostgresStore, proxy: LossyProxy, when: str
) -> None:
    def losing() -> PostgresStore:
        proxy.cut(rb"COMMIT\0", when)
        return through

    losing().create_namespace(("attic",), {"owner": "ann"})
    assert direct.namespaces()["attic",] == {"owner": "ann"}
    losing().insert(OTHER, "w0")
    assert direct.read(OTHER).location == "w0"
    moved = Ident(("attic",), "moved")
    losing().rename(OTHER, moved)
    assert direct.read(moved).location == "w0"
    assert losing().commits.put(RECORD)
    assert direct.commits.find("table-uuid", "c1") == RECORD
    assert losing().delete(moved) == "w0"
    with pytest.raises(NoSuchTable):
        direct.read(moved)
    losing().drop_namespace(("attic",))
    assert ("attic",) not in direct.namespaces()
    assert proxy.cuts == 6


def test_the_actual_value_after_a_serialization_failure_is_read(postgres_uri: str, direct: PostgresStore) -> None:
    """Rule P5: 40001 and 40P01 mean that another one won, not that something is broken."""
    for code in ("40001", "40P01"):
        with psycopg.connect(postgres_uri, autocommit=True) as connection:
            connection.execute(
                "CREATE OR REPLACE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS "
                f"$$ BEGIN RAISE EXCEPTION 'as if' USING ERRCODE = '{code}'; END $$".encode()
            )
            connection.execute("CREATE OR REPLACE TRIGGER fail BEFORE UPDATE ON iceberg_tables EXECUTE FUNCTION fail()")
        assert direct.swap(Swap.of_table(EVENTS, "v0", "v1", RECORD)) == Stale("v0")


def test_p5_a_swap_is_read_committed_and_synchronous_whatever_the_database_says(
    postgres_uri: str, postgres_server: PostgresServer, direct: PostgresStore
) -> None:
    name = postgres_uri.rsplit("/", 1)[1]
    with psycopg.connect(postgres_server.uri(), autocommit=True) as connection:
        connection.execute(f'ALTER DATABASE "{name}" SET synchronous_commit = off'.encode())
        connection.execute(f'ALTER DATABASE "{name}" SET default_transaction_isolation = serializable'.encode())
    with psycopg.connect(postgres_uri, autocommit=True) as connection:
        connection.execute("CREATE TABLE seen (isolation text, synchronous text, longest text, silent text)")
        connection.execute(
            "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO seen VALUES ("
            "current_setting('transaction_isolation'), current_setting('synchronous_commit'), "
            "current_setting('statement_timeout'), current_setting('idle_in_transaction_session_timeout')); "
            "RETURN NEW; END $$"
        )
        connection.execute("CREATE TRIGGER note BEFORE UPDATE ON iceberg_tables FOR EACH ROW EXECUTE FUNCTION note()")
    fresh = PostgresStore(postgres_uri)
    try:
        assert fresh.swap(Swap.of_table(EVENTS, "v0", "v1", None)) == Committed("v1")
    finally:
        fresh.close()
    with psycopg.connect(postgres_uri) as connection:
        assert connection.execute("SELECT * FROM seen").fetchall() == [("read committed", "on", "30s", "30s")]
        previous = connection.execute("SELECT previous_metadata_location FROM iceberg_tables").fetchone()
    assert previous == ("v0",)


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    server = PostgresServer()
    yield server
    server.close()


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_store_outlives_a_restart_of_its_server(own_server: PostgresServer, mode: str) -> None:
    store = PostgresStore(own_server.uri())
    try:
        store.create_namespace(("shop",), {})
        store.insert(EVENTS, "v0")
        assert store.swap(Swap.of_table(EVENTS, "v0", "v1", RECORD)) == Committed("v1")
        own_server.stop(mode)
        own_server.start()
        assert store.read(EVENTS).location == "v1"
        own_server.stop(mode)
        own_server.start()
        assert store.swap(Swap.of_table(EVENTS, "v1", "v2", None)) == Committed("v2")
        assert store.commits.find("table-uuid", "c1") == RECORD
    finally:
        store.close()


def test_p5_a_standby_is_refused_when_opened_and_when_it_takes_the_primarys_place(own_server: PostgresServer) -> None:
    store = PostgresStore(own_server.uri())
    try:
        store.create_namespace(("shop",), {})
        store.insert(EVENTS, "v0")
        own_server.stop()
        _become_standby(own_server)
        own_server.start()
        with pytest.raises(CatalogUnavailable, match="primary"):
            store.read(EVENTS)
        with pytest.raises(CatalogUnavailable, match="primary"):
            store.commits.find("table-uuid", "c1")
        with pytest.raises(CatalogUnavailable, match="primary"):
            store.swap(Swap.of_table(EVENTS, "v0", "v1", None))
        with pytest.raises(CatalogUnavailable, match="primary"):
            PostgresStore(own_server.uri())
    finally:
        store.close()


def _become_standby(server: PostgresServer) -> None:
    signal = Path(server.folder / "data" / "standby.signal")
    owner = signal.parent.stat()
    signal.touch()
    subprocess.run(["chown", str(owner.st_uid), str(signal)], check=True)


def test_a_server_that_is_down_is_said_so_and_found_again(own_server: PostgresServer) -> None:
    store = PostgresStore(own_server.uri())
    try:
        store.create_namespace(("shop",), {})
        store.insert(EVENTS, "v0")
        own_server.stop()
        with pytest.raises(CatalogUnavailable, match="cannot be reached") as refused:
            store.swap(Swap.of_table(EVENTS, "v0", "v1", None))
        assert refused.value.retryable
        own_server.start()
        assert store.swap(Swap.of_table(EVENTS, "v0", "v1", None)) == Committed("v1")
    finally:
        store.close()


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_connection_that_is_cut_at_its_password_is_no_refusal(
    postgres_uri: str, postgres_server: PostgresServer, proxy: LossyProxy, when: str
) -> None:
    proxy.cut(rb"SCRAM-SHA-256", when)
    with pytest.raises(CatalogUnavailable, match="cannot be reached"):
        PostgresStore(postgres_server.uri(postgres_uri.rsplit("/", 1)[1], port=proxy.port))
    assert proxy.cuts == 1


def test_a_server_that_has_no_room_left_is_no_refusal(postgres_uri: str) -> None:
    role = f"crowded_{postgres_uri.rsplit('/', 1)[1]}"
    with psycopg.connect(postgres_uri, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'x' CONNECTION LIMIT 0".encode())
        try:
            user = postgres_uri.split("://")[1].split("@", maxsplit=1)[0]
            with pytest.raises(CatalogUnavailable, match="too many connections"):
                PostgresStore(postgres_uri.replace(user, f"{role}:x", 1))
        finally:
            connection.execute(f"DROP ROLE {role}".encode())
