"""The SQL catalogs on databases that are not fresh: made by others, of older versions, shared, read-only."""

from __future__ import annotations

import gc
import os
import re
import sqlite3
import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from contract.openers import Database
from contract.samples import EVENTS, race
from frazil.catalog.base import CommitRecord, Committed, Stale
from frazil.catalog.postgres import PostgresStore
from frazil.catalog.store import Swap
from frazil.errors import (
    CatalogUnavailable,
    FrazilError,
    InvalidInput,
    NamespaceExists,
    NamespaceNotEmpty,
    NoSuchNamespace,
    NoSuchTable,
    PermissionDenied,
    TableExists,
)
from frazil.model import Ident
from servers import PASSWORD, PostgresServer

V0 = """CREATE TABLE iceberg_tables (catalog_name VARCHAR(255) NOT NULL, table_namespace VARCHAR(255) NOT NULL,
    table_name VARCHAR(255) NOT NULL, metadata_location VARCHAR(1000), previous_metadata_location VARCHAR(1000),
    PRIMARY KEY (catalog_name, table_namespace, table_name))"""
RECORD = CommitRecord("table-uuid", "c1", "digest", 9, 2, {"rows_inserted": 1})


def row(name: str, catalog: str = "frazil", namespace: str = "shop", kind: str | None = None) -> str:
    columns = "catalog_name, table_namespace, table_name, metadata_location" + (", iceberg_type" if kind else "")
    values = f"'{catalog}', '{namespace}', '{name}', 'v0'" + (f", '{kind}'" if kind else "")
    return f"INSERT INTO iceberg_tables ({columns}) VALUES ({values})"


def test_a_database_of_the_schema_before_views_works_and_stays_as_it_is(database: Database) -> None:
    database.ask(V0)
    database.ask(row("events", catalog="old"))
    store = database.open()
    assert store.name == "old"
    assert store.swap(Swap.of_table(EVENTS, "v0", "v1", RECORD)) == Committed("v1")
    store.insert(Ident(("shop",), "more"), "m0")
    store.rename(Ident(("shop",), "more"), Ident(("shop",), "less"))
    assert list(store.pointers()) == [EVENTS, Ident(("shop",), "less")]
    assert store.delete(EVENTS) == "v1"
    names = {row[-1] for row in database.ask("SELECT metadata_location, table_name FROM iceberg_tables")}
    assert names == {"less"}
    with pytest.raises((sqlite3.OperationalError, psycopg.errors.UndefinedColumn)):
        database.ask("SELECT iceberg_type FROM iceberg_tables")


def test_views_are_no_tables_but_keep_their_names_and_namespaces(database: Database) -> None:
    store = database.open()
    store.create_namespace(("shop",), {})
    database.ask(row("report", kind="VIEW"))
    view = Ident(("shop",), "report")
    assert store.pointers() == {}
    with pytest.raises(NoSuchTable):
        store.read(view)
    assert store.swap(Swap.of_table(view, "v0", "v1")) == Stale(None)
    with pytest.raises(NoSuchTable):
        store.delete(view)
    with pytest.raises(NoSuchTable):
        store.rename(view, EVENTS)
    with pytest.raises(TableExists):
        store.insert(view, "t0")
    with pytest.raises(NamespaceNotEmpty):
        store.drop_namespace(("shop",))
    assert database.ask("SELECT metadata_location FROM iceberg_tables") == [("v0",)]


def test_rows_are_written_as_iceberg_writes_them(database: Database) -> None:
    store = database.open()
    store.create_namespace(("shop", "eu"), {"owner": "ann"})
    store.insert(Ident(("shop", "eu"), "t"), "v0")
    store.swap(Swap.of_table(Ident(("shop", "eu"), "t"), "v0", "v1", RECORD))
    sql = "SELECT * FROM iceberg_tables"
    assert database.ask(sql) == [("frazil", "shop.eu", "t", "v1", "v0", "TABLE")]
    properties = database.ask("SELECT * FROM iceberg_namespace_properties ORDER BY property_key")
    assert properties == [("frazil", "shop.eu", "exists", "true"), ("frazil", "shop.eu", "owner", "ann")]
    ids = "SELECT table_uuid, commit_id, digest, snapshot_id, sequence_number, summary FROM frazil_commits"
    assert database.ask(ids) == [("table-uuid", "c1", "digest", 9, 2, '{"rows_inserted":1}')]
    (recorded,) = database.ask("SELECT recorded_at FROM frazil_commits")
    assert abs(recorded[0] - store.read(Ident(("shop", "eu"), "t")).now_ms) < 600_000


def test_a_namespace_is_implied_by_what_is_below_it(database: Database) -> None:
    store = database.open()
    store.create_namespace(("a", "b", "c"), {})
    database.ask(row("t", namespace="x.y"))
    assert list(store.namespaces()) == [("a",), ("a", "b"), ("a", "b", "c"), ("x",), ("x", "y")]
    with pytest.raises(NamespaceExists):
        store.create_namespace(("a", "b"), {})
    with pytest.raises(NamespaceNotEmpty):
        store.drop_namespace(("a",))
    store.insert(Ident(("a",), "t"), "v0")
    store.create_namespace(("aa",), {})
    store.create_namespace(("a_b",), {})
    store.drop_namespace(("aa",))
    assert ("a_b",) in store.namespaces()


def test_p13_catalog_names_are_adopted_listed_or_taken_as_given(database: Database) -> None:
    first = database.open()
    assert first.name == "frazil"
    database.ask(row("t", catalog="prod"))
    adopting = database.open()
    assert (adopting.name, list(adopting.pointers())) == ("prod", [Ident(("shop",), "t")])
    database.ask("INSERT INTO iceberg_namespace_properties VALUES ('test', 'n', 'exists', 'true')")
    with pytest.raises(InvalidInput, match=r"'prod', 'test'.*name='prod'"):
        database.open()
    chosen = database.open(name="test")
    assert (chosen.pointers(), list(chosen.namespaces())) == ({}, [("n",)])
    fresh = database.open(name="frazil")
    fresh.create_namespace(("mine",), {})
    assert database.open().name == "frazil"


def test_catalogs_in_one_database_do_not_see_each_other(database: Database) -> None:
    ours, theirs = database.open(name="a"), database.open(name="b")
    ours.create_namespace(("shop",), {})
    ours.insert(EVENTS, "v0")
    assert theirs.pointers() == {}
    assert theirs.namespaces() == {}
    assert theirs.swap(Swap.of_table(EVENTS, "v0", "v1")) == Stale(None)
    theirs.create_namespace(("shop",), {})
    theirs.insert(EVENTS, "w0")
    assert ours.read(EVENTS).location == "v0"


def test_read_only_creates_nothing_and_refuses_to_write(database: Database) -> None:
    database.ask(V0)
    with pytest.raises(InvalidInput, match="does not contain an Iceberg catalog"):
        database.open(read_only=True)
    database.ask(
        "CREATE TABLE iceberg_namespace_properties (catalog_name VARCHAR(255), namespace VARCHAR(255), "
        "property_key VARCHAR(255), property_value VARCHAR(1000))"
    )
    database.ask(row("events"))
    store = database.open(read_only=True)
    assert store.read(EVENTS).location == "v0"
    assert store.commits.find("table-uuid", "c1") is None
    changes: list[Callable[[], object]] = [
        lambda: store.swap(Swap.of_table(EVENTS, "v0", "v1", None)),
        lambda: store.commits.put(RECORD),
        lambda: store.insert(Ident(("shop",), "t"), "t0"),
        lambda: store.delete(EVENTS),
        lambda: store.rename(EVENTS, Ident(("shop",), "t")),
        lambda: store.create_namespace(("n",), {}),
        lambda: store.drop_namespace(("shop",)),
    ]
    for change in changes:
        with pytest.raises(PermissionDenied, match="read_only"):
            change()
    with pytest.raises((sqlite3.OperationalError, psycopg.errors.UndefinedTable)):
        database.ask("SELECT * FROM frazil_commits")


def test_create_false_makes_no_catalog_but_takes_an_existing_one(database: Database) -> None:
    with pytest.raises(InvalidInput, match=r"no SQLite catalog|does not contain an Iceberg catalog"):
        database.open(create=False)
    assert database.open().created
    again = database.open(create=False)
    assert not again.created
    again.create_namespace(("shop",), {})


def test_many_may_open_a_new_database_at_once(database: Database) -> None:
    answers = race([database.open] * 8)
    assert not [each for each in answers if isinstance(each, BaseException)]
    assert {each.name for each in answers} == {"frazil"}


def test_names_with_quotes_percent_signs_and_umlauts_are_names(database: Database) -> None:
    store = database.open()
    namespace = ('o\'brien % "ü"',)
    ident = Ident(namespace, "tä?ble; DROP TABLE iceberg_tables --")
    store.create_namespace(namespace, {"k'": "v?%s"})
    store.insert(ident, "v'0")
    assert store.swap(Swap.of_table(ident, "v'0", "v%s1", None)) == Committed("v%s1")
    assert store.pointers(namespace) == {ident: "v%s1"}
    assert store.namespaces() == {namespace: {"k'": "v?%s"}}


def test_text_that_no_database_keeps_is_refused(database: Database) -> None:
    store = database.open()
    with pytest.raises(InvalidInput):
        store.create_namespace(("\udcff",), {})


def test_a_closed_store_says_so(database: Database) -> None:
    store = database.open()
    store.close()
    with pytest.raises(InvalidInput, match="closed"):
        store.pointers()


# Postgres alone


def without_password(error: FrazilError) -> str:
    text = f"{error} {error!r} {error.__dict__}"
    assert PASSWORD not in text
    return str(error)


def test_a_wrong_password_is_permission_denied_and_never_shown(postgres_uri: str) -> None:
    with pytest.raises(PermissionDenied) as refused:
        PostgresStore(postgres_uri.replace(PASSWORD, PASSWORD + "x"))
    assert "***" in without_password(refused.value)


def test_a_user_without_rights_is_told_which_to_ask_for(postgres_uri: str) -> None:
    with psycopg.connect(postgres_uri, autocommit=True) as connection:
        connection.execute(
            "DO $$ BEGIN CREATE ROLE reader LOGIN PASSWORD 'reader'; EXCEPTION WHEN duplicate_object THEN NULL; END $$"
        )
    theirs = postgres_uri.replace(f"frazil:{PASSWORD}", "reader:reader")
    with pytest.raises(PermissionDenied, match="CREATE"):
        PostgresStore(theirs)
    owner = PostgresStore(postgres_uri)
    owner.create_namespace(("shop",), {})
    owner.insert(EVENTS, "v0")
    owner.close()
    with psycopg.connect(postgres_uri, autocommit=True) as connection:
        connection.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader")
    store = PostgresStore(theirs, read_only=True)
    try:
        assert store.read(EVENTS).location == "v0"
    finally:
        store.close()
    store = PostgresStore(theirs)
    try:
        with pytest.raises(PermissionDenied, match="UPDATE"):
            store.swap(Swap.of_table(EVENTS, "v0", "v1", None))
    finally:
        store.close()


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda uri: re.sub(r":\d+/", ":1/", uri), CatalogUnavailable, "cannot be reached"),
        (lambda uri: uri.replace("127.0.0.1", "nowhere.invalid"), CatalogUnavailable, "cannot be reached"),
        (lambda uri: uri + "x", InvalidInput, "no such database"),
        (lambda uri: uri.replace(PASSWORD, PASSWORD + "/" + PASSWORD), InvalidInput, "percent-encode"),
        (lambda uri: uri.replace(PASSWORD, PASSWORD + "@" + PASSWORD), InvalidInput, "percent-encode"),
        (lambda uri: uri.replace(PASSWORD, PASSWORD + "%zz"), InvalidInput, "percent-encode"),
        (lambda uri: uri + f"?nonsense=1&password={PASSWORD}", InvalidInput, "cannot be read"),
    ],
)
def test_what_is_wrong_with_a_server_or_uri_is_said_without_its_password(
    postgres_uri: str, change: Callable[[str], str], error: type[FrazilError], words: str
) -> None:
    with pytest.raises(error, match=words) as refused:
        PostgresStore(change(postgres_uri))
    without_password(refused.value)


@pytest.mark.parametrize(
    "form",
    [
        "postgresql://{}",
        "postgres://{}",
        "postgresql+psycopg://{}",
        "postgresql+psycopg2://{}",
        "jdbc:postgresql://{}",
        "postgresql://{}?sslmode=disable&connect_timeout=5",
        "jdbc:postgresql://{}?ssl=false&currentSchema=public",
    ],
)
def test_every_usual_form_of_a_postgres_uri_opens(postgres_uri: str, form: str) -> None:
    store = PostgresStore(form.format(postgres_uri.partition("://")[2]))
    try:
        store.create_namespace(("shop",), {})
        assert PASSWORD not in repr(store)
    finally:
        store.close()


def test_names_too_long_for_the_columns_are_refused(postgres_uri: str) -> None:
    store = PostgresStore(postgres_uri)
    try:
        with pytest.raises(InvalidInput, match="too long"):
            store.create_namespace(("x" * 300,), {})
        store.create_namespace(("shop",), {})
        with pytest.raises(InvalidInput, match="too long"):
            store.insert(EVENTS, "x" * 1001)
        with pytest.raises(InvalidInput):
            store.read(Ident(("shop",), "a\0b"))
    finally:
        store.close()


def test_the_password_may_come_from_the_environment(
    postgres_uri: str, monkeypatch: pytest.MonkeyPatch, postgres_server: PostgresServer
) -> None:
    monkeypatch.setitem(os.environ, "PGPASSWORD", PASSWORD)
    store = PostgresStore(postgres_uri.replace(f":{PASSWORD}", ""))
    store.close()


def waiting(uri: str, condition: str) -> Callable[[], bool]:
    sql = f"SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND {condition}"

    def look() -> bool:
        with psycopg.connect(uri) as connection:
            (count,) = connection.execute(sql.encode()).fetchone() or (0,)
        return bool(count)

    return look


def until(condition: Callable[[], bool]) -> None:
    """Wait for what another process is about to do."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_new_table_waits_for_a_drop_of_its_namespace_under_way(postgres_uri: str) -> None:
    """Exactly this order: the drop deleted the namespace's rows, the table comes, the drop commits."""
    store = PostgresStore(postgres_uri)
    store.create_namespace(("shop",), {})
    answers: list[object] = []

    def create() -> None:
        try:
            store.insert(EVENTS, "v0")
            answers.append("created")
        except FrazilError as error:
            answers.append(error)

    worker = threading.Thread(target=create)
    try:
        with psycopg.connect(postgres_uri) as dropping:
            dropping.execute("DELETE FROM iceberg_namespace_properties")
            worker.start()
            until(waiting(postgres_uri, "application_name = 'frazil' AND wait_event_type = 'Lock'"))
            dropping.commit()
        worker.join(60)
        assert [type(each) for each in answers] == [NoSuchNamespace]
        assert store.pointers() == {}
    finally:
        store.close()


def test_a_drop_of_a_namespace_waits_for_a_table_under_way_and_finds_it(postgres_uri: str) -> None:
    store = PostgresStore(postgres_uri)
    store.create_namespace(("shop",), {"owner": "ann"})
    answers: list[object] = []

    def drop() -> None:
        try:
            store.drop_namespace(("shop",))
            answers.append("dropped")
        except FrazilError as error:
            answers.append(error)

    worker = threading.Thread(target=drop)

    def work(db: Any) -> None:
        store._hold_namespace(db, ("shop",))
        worker.start()
        until(waiting(postgres_uri, "application_name = 'frazil' AND wait_event_type = 'Lock'"))
        db.execute(row("events", kind="TABLE"))

    try:
        store._engine.write(work)
        worker.join(60)
        assert [type(each) for each in answers] == [NamespaceNotEmpty]
        assert store.namespaces() == {("shop",): {"owner": "ann"}}
    finally:
        store.close()


def test_a_forgotten_store_leaves_no_session_behind(postgres_uri: str) -> None:
    store = PostgresStore(postgres_uri)
    store.create_namespace(("shop",), {})
    session = waiting(postgres_uri, "application_name = 'frazil'")
    assert session()
    del store
    gc.collect()
    until(lambda: not session())
