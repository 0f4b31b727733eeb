"""SQL inside transactions, without Spark: ``tx.sql()``, and BEGIN … COMMIT of ``lake.sql()``."""

from __future__ import annotations

import multiprocessing
import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import frazil
from surface.matrix import files_of, named_files

Run = Callable[[str], Any]


@pytest.fixture(autouse=True)
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frazil.sql.session.active", lambda: None)


@pytest.fixture(params=["memory", "sqlite"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[frazil.Lake]:
    with frazil.connect("memory://" if request.param == "memory" else str(tmp_path / "lake")) as lake:
        lake.create_namespace("bank")
        lake.sql("CREATE TABLE bank.accounts (id bigint NOT NULL, balance bigint)")
        lake.sql("CREATE TABLE bank.ledger (id bigint NOT NULL, amount bigint)")
        lake.sql("INSERT INTO bank.accounts VALUES (1, 100), (2, 0)")
        yield lake


@pytest.fixture(params=["tx.sql", "BEGIN"])
def begin(request: pytest.FixtureRequest, lake: frazil.Lake) -> Callable[[], tuple[Run, Run]]:
    """Begins a transaction: what runs its statements, and what ends it with COMMIT or ROLLBACK."""

    def by_python() -> tuple[Run, Run]:
        tx = lake.transaction()
        return tx.sql, lambda word: {"COMMIT": tx.commit, "ROLLBACK": tx.rollback}[word]()

    def by_sql() -> tuple[Run, Run]:
        assert lake.sql("BEGIN") is None
        return lake.sql, lake.sql

    return by_python if request.param == "tx.sql" else by_sql


Begin = Callable[[], tuple[Run, Run]]


def rows(lake: frazil.Lake, name: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(each.values()) for each in lake.table(name).scan().to_arrow().to_pylist())


def versions(lake: frazil.Lake) -> dict[str, str]:
    return {str(ident): location for ident, location in (lake.catalog.instant() or {}).items()}


# What belongs inside


def test_statements_on_several_tables_are_one_commit(lake: frazil.Lake, begin: Begin) -> None:
    before = versions(lake)
    run, end = begin()
    assert run("UPDATE bank.accounts SET balance = balance - 10 WHERE id = 1").rows_updated == 1
    assert run("UPDATE bank.accounts a SET a.balance = balance + 10 WHERE a.id = 2").rows_updated == 1
    assert run("INSERT INTO bank.ledger VALUES (1, 10), (2, 20)").rows_inserted == 2
    assert run("DELETE FROM bank.ledger WHERE id = 2").rows_deleted == 1
    assert versions(lake) == before, "nothing before the commit"
    done = end("COMMIT")
    assert isinstance(done, frazil.TransactionCommit)
    assert list(done.tables) == ["bank.accounts", "bank.ledger"]
    assert rows(lake, "bank.accounts") == [(1, 90), (2, 10)]
    assert rows(lake, "bank.ledger") == [(1, 10)]


def test_every_statement_without_spark(lake: frazil.Lake, begin: Begin) -> None:
    run, end = begin()
    run("ALTER TABLE bank.ledger ADD COLUMNS (note string, day date)")
    run("ALTER TABLE bank.ledger ADD PARTITION FIELD day")
    run("ALTER TABLE bank.ledger SET TBLPROPERTIES ('owner' = 'a')")
    run("INSERT INTO bank.ledger VALUES (1, 10, 'x', '2026-11-01'), (2, 5, 'y', '2026-11-02')")
    run("INSERT OVERWRITE bank.ledger PARTITION (day = '2026-11-02') VALUES (3, 6, 'z')")
    run("INSERT INTO bank.ledger REPLACE WHERE id = 1 VALUES (1, 11, 'x', '2026-11-01')")
    run("CREATE TABLE bank.new (id bigint, amount bigint) TBLPROPERTIES ('owner' = 'b')")
    run("MERGE INTO bank.new t USING bank.ledger s ON t.id = s.id WHEN NOT MATCHED THEN INSERT (id) VALUES (s.id)")
    run(
        "MERGE INTO bank.new t USING (VALUES (3, 7)) s (id, n) ON t.id = s.id WHEN MATCHED THEN UPDATE SET amount = s.n"
    )
    run("DROP TABLE bank.accounts")
    done = end("COMMIT")
    assert set(done.tables) == {"bank.accounts", "bank.ledger", "bank.new"}
    assert lake.tables("bank") == ["bank.ledger", "bank.new"]
    ledger = lake.table("bank.ledger")
    assert (ledger.properties["owner"], ledger.spec.fields[0].name) == ("a", "day")
    assert [row[:3] for row in rows(lake, "bank.ledger")] == [(1, 11, "x"), (3, 6, "z")]
    found = lake.table("bank.new").scan().to_arrow().to_pylist()
    assert sorted(found, key=str) == [{"id": 1, "amount": None}, {"id": 3, "amount": 7}]


def test_statements_see_what_the_transaction_has_done(lake: frazil.Lake, begin: Begin) -> None:
    run, end = begin()
    run("CREATE TABLE bank.new (id bigint)")
    run("CREATE TABLE IF NOT EXISTS bank.new (other string)")
    run("DROP TABLE bank.ledger")
    run("ALTER TABLE bank.accounts ADD COLUMN note string COMMENT 'why'")
    assert [each["tableName"] for each in run("SHOW TABLES IN bank")] == ["accounts", "new"]
    assert [each["col_name"] for each in run("DESCRIBE bank.accounts")] == ["id", "balance", "note"]
    assert run("SHOW TBLPROPERTIES bank.new") is not None
    with pytest.raises(frazil.NoSuchTable, match="dropped by this transaction"):
        run("DELETE FROM bank.ledger")
    with pytest.raises(frazil.TableExists):
        run("CREATE TABLE bank.new (id bigint)")
    run("DROP TABLE IF EXISTS bank.ledger")
    run("DROP TABLE IF EXISTS bank.nothing")
    run("DROP TABLE bank.new")
    lake.create_table("bank.later", "id bigint")
    assert [each["tableName"] for each in run("SHOW TABLES")] == ["accounts"]
    end("ROLLBACK")
    assert lake.tables("bank") == ["bank.accounts", "bank.later", "bank.ledger"]


def test_one_written_table_gives_a_commit_and_nothing_gives_none(lake: frazil.Lake, begin: Begin) -> None:
    run, end = begin()
    run("INSERT INTO bank.ledger VALUES (1, 1)")
    assert isinstance(end("COMMIT"), frazil.Commit)
    run, end = begin()
    assert run("SHOW NAMESPACES") == [{"namespace": "bank"}]
    assert end("COMMIT") is None


# What does not


REFUSED = (
    ("CALL system.rewrite_data_files(table => 'bank.accounts')", "CALL is not for transactions: procedures"),
    ("CREATE NAMESPACE other", "CREATE NAMESPACE is not for transactions"),
    ("DROP NAMESPACE IF EXISTS other", "DROP NAMESPACE is not for transactions"),
    ("ALTER TABLE bank.ledger RENAME TO bank.other", "RENAME TO is not for transactions"),
    ("DROP TABLE bank.ledger PURGE", "files that are deleted cannot be rolled back"),
    ("SELECT * FROM bank.ledger", "needs a Spark session"),
    ("INSERT INTO bank.ledger SELECT * FROM bank.ledger", "needs a Spark session"),
    ("SAVEPOINT a", "does not support SAVEPOINT"),
    ("UPDATE bank.ledger SET nope = 1", "nope"),
    ("DELETE FROM bank.nothing", "no table bank.nothing"),
    ("DELETE FROM bank.ledger.snapshots", "metadata tables"),
    ("BEGIN", "BEGIN inside a transaction"),
)


def test_a_statement_that_is_refused_leaves_the_transaction_usable(lake: frazil.Lake, begin: Begin) -> None:
    run, end = begin()
    run("INSERT INTO bank.ledger VALUES (1, 1)")
    for text, message in REFUSED:
        with pytest.raises(frazil.FrazilError, match=message):
            run(text)
    run("INSERT INTO bank.ledger VALUES (2, 2)")
    end("COMMIT")
    assert rows(lake, "bank.ledger") == [(1, 1), (2, 2)]
    assert lake.namespaces() == ["bank"]
    assert lake.tables("bank") == ["bank.accounts", "bank.ledger"]


def test_a_statement_that_fails_in_the_middle_has_done_nothing(lake: frazil.Lake, begin: Begin) -> None:
    run, end = begin()
    run("ALTER TABLE bank.ledger ADD COLUMN note string")
    run("INSERT INTO bank.ledger VALUES (1, 1, 'x')")
    with pytest.raises(frazil.FrazilError, match="note"):
        run("ALTER TABLE bank.ledger ADD COLUMNS (other string, note int)")
    with pytest.raises(frazil.FrazilError, match="balance"):
        run("ALTER TABLE bank.accounts ADD COLUMNS (other string, balance string)")
    assert [each["col_name"] for each in run("DESCRIBE bank.ledger")] == ["id", "amount", "note"]
    run("INSERT INTO bank.ledger VALUES (2, 2, 'y')")
    assert isinstance(end("COMMIT"), frazil.Commit), "bank.accounts is unchanged"
    assert lake.table("bank.accounts").schema.column_names == ["id", "balance"]
    assert rows(lake, "bank.ledger") == [(1, 1, "x"), (2, 2, "y")]


def test_a_table_that_cannot_be_filled_is_not_created(lake: frazil.Lake) -> None:
    with lake.transaction() as tx:
        with pytest.raises(frazil.SchemaMismatch):
            tx.create_table("bank.new", "id int", as_=[{"id": "many"}])
        tx.create_table("bank.new", "id int", as_=[{"id": 1}])
    assert rows(lake, "bank.new") == [(1,)]


def test_rolling_back_leaves_no_file(lake: frazil.Lake, begin: Begin) -> None:
    run, end = begin()
    run("INSERT INTO bank.ledger VALUES (1, 1)")
    run("UPDATE bank.accounts SET balance = 0")
    assert end("ROLLBACK") is None
    for name in ("bank.ledger", "bank.accounts"):
        table = lake.table(name)
        assert {path.removeprefix("file://") for path in files_of(table)} == {
            path.removeprefix("file://") for path in named_files(table)
        }
    assert rows(lake, "bank.accounts") == [(1, 100), (2, 0)]


def test_a_merge_reads_its_source_into_the_read_set(lake: frazil.Lake, begin: Begin) -> None:
    lake.sql("INSERT INTO bank.ledger VALUES (7, 70)")
    merge = (
        "MERGE INTO bank.accounts t USING bank.ledger s ON t.id = s.id WHEN NOT MATCHED THEN INSERT VALUES (s.id, 0)"
    )
    run, end = begin()
    run(merge)
    lake.table("bank.ledger").delete("id = 7")
    with pytest.raises(frazil.ConflictError) as caught:
        end("COMMIT")
    assert caught.value.conflicts[0].table == "bank.ledger"
    run, end = begin()
    run(merge)
    lake.table("bank.accounts").append([{"id": 50, "balance": 0}])
    lake.table("bank.ledger").set_properties({"owner": "c"})
    end("COMMIT")
    assert rows(lake, "bank.accounts") == [(1, 100), (2, 0), (50, 0)]


def test_sql_and_python_are_one_transaction(lake: frazil.Lake) -> None:
    with lake.transaction(commit_id="both") as tx:
        tx.table("bank.ledger").append([{"id": 1, "amount": 1}])
        assert tx.sql("UPDATE bank.ledger SET amount = amount + 1").rows_updated == 1
        assert tx.table("bank.ledger").scan().to_arrow()["amount"].to_pylist() == [2]
    assert rows(lake, "bank.ledger") == [(1, 2)]
    with pytest.raises(frazil.InvalidInput, match="This transaction is committed"):
        tx.sql("DELETE FROM bank.ledger")


def test_a_function_that_is_called_again_may_use_sql(lake: frazil.Lake) -> None:
    calls: list[int] = []

    def move(tx: frazil.Transaction) -> None:
        found = tx.table("bank.accounts").scan("id = 1").to_arrow()["balance"][0].as_py()
        if not calls:
            lake.table("bank.accounts").update({"balance": "50"}, "id = 1")
        calls.append(found)
        tx.sql(f"UPDATE bank.accounts SET balance = {found} - 10 WHERE id = 1")
        tx.sql("INSERT INTO bank.ledger VALUES (1, 10)")

    lake.run(move)
    assert (calls, rows(lake, "bank.accounts")[0], rows(lake, "bank.ledger")) == ([100, 50], (1, 40), [(1, 10)])


@pytest.mark.parametrize("word", ["BEGIN", "COMMIT", "ROLLBACK", "START TRANSACTION"])
def test_the_ends_of_a_transaction_of_python_are_its_methods(lake: frazil.Lake, word: str) -> None:
    with lake.transaction() as tx, pytest.raises(frazil.InvalidInput, match=r"this is one already.*tx\.commit\(\)"):
        tx.sql(word)


# BEGIN, COMMIT and ROLLBACK


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("BEGIN", "serializable"),
        ("begin transaction;", "serializable"),
        ("START TRANSACTION", "serializable"),
        ("START TRANSACTION ISOLATION LEVEL SNAPSHOT", "snapshot"),
        ("BEGIN ISOLATION LEVEL serializable", "serializable"),
    ],
)
def test_begin_in_all_its_forms(lake: frazil.Lake, text: str, level: str) -> None:
    """Both balances are read, and one is changed: a serializable transaction minds a change of the other."""
    lake.sql(text)
    lake.sql(
        "MERGE INTO bank.ledger t USING bank.accounts s ON t.id = s.id WHEN NOT MATCHED THEN INSERT VALUES (s.id, 1)"
    )
    lake.table("bank.accounts").update({"balance": "1"}, "id = 2")
    if level == "serializable":
        with pytest.raises(frazil.ConflictError):
            lake.sql("COMMIT")
        assert rows(lake, "bank.ledger") == []
    else:
        lake.sql("COMMIT TRANSACTION")
        assert rows(lake, "bank.ledger") == [(1, 1), (2, 1)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("BEGIN WORK", "Expected the end of the statement at position 7"),
        ("BEGIN ISOLATION LEVEL READ COMMITTED", "Expected SERIALIZABLE or SNAPSHOT"),
        ("START", "does not support START"),
        ("COMMIT", "COMMIT without BEGIN"),
        ("ROLLBACK", "ROLLBACK without BEGIN"),
        ("COMMIT AND CHAIN", "Expected the end of the statement"),
    ],
)
def test_bad_boundaries(lake: frazil.Lake, text: str, message: str) -> None:
    with pytest.raises(frazil.FrazilError, match=message):
        lake.sql(text)
    lake.sql("BEGIN")
    lake.sql("ROLLBACK TRANSACTION")


def test_a_bad_end_leaves_the_transaction_open(lake: frazil.Lake) -> None:
    lake.sql("BEGIN")
    lake.sql("INSERT INTO bank.ledger VALUES (1, 1)")
    with pytest.raises(frazil.InvalidInput, match="Expected the end"):
        lake.sql("COMMIT NOW")
    with pytest.raises(frazil.InvalidInput, match=r"BEGIN inside a transaction.*lake.sql\(.COMMIT.\)"):
        lake.sql("BEGIN")
    lake.sql("COMMIT")
    assert rows(lake, "bank.ledger") == [(1, 1)]


def test_a_conflict_ends_the_transaction(lake: frazil.Lake) -> None:
    lake.sql("BEGIN")
    lake.sql("UPDATE bank.accounts SET balance = 1 WHERE id = 1")
    lake.sql("INSERT INTO bank.ledger VALUES (1, 1)")
    lake.table("bank.accounts").update({"balance": "2"}, "id = 1")
    with pytest.raises(frazil.ConflictError):
        lake.sql("COMMIT")
    with pytest.raises(frazil.InvalidInput, match="COMMIT without BEGIN"):
        lake.sql("COMMIT")
    lake.sql("INSERT INTO bank.ledger VALUES (2, 2)")
    assert (rows(lake, "bank.accounts")[0], rows(lake, "bank.ledger")) == ((1, 2), [(2, 2)])


def test_verbs_of_python_are_commits_of_their_own(lake: frazil.Lake) -> None:
    lake.sql("BEGIN")
    lake.sql("INSERT INTO bank.ledger VALUES (1, 1)")
    assert lake.table("bank.ledger").append([{"id": 2, "amount": 2}]).changed
    lake.sql("ROLLBACK")
    assert rows(lake, "bank.ledger") == [(2, 2)]


def test_each_thread_and_each_lake_has_its_own(lake: frazil.Lake) -> None:
    lake.sql("BEGIN")
    lake.sql("INSERT INTO bank.ledger VALUES (1, 1)")
    with ThreadPoolExecutor(1) as other:
        assert other.submit(lake.sql, "INSERT INTO bank.ledger VALUES (2, 2)").result().changed
        with pytest.raises(frazil.InvalidInput, match="COMMIT without BEGIN"):
            other.submit(lake.sql, "COMMIT").result()
        other.submit(lake.sql, "BEGIN").result()
        other.submit(lake.sql, "INSERT INTO bank.accounts VALUES (3, 3)").result()
        assert len(rows(lake, "bank.accounts")) == 2
        other.submit(lake.sql, "COMMIT").result()
    assert (len(rows(lake, "bank.accounts")), rows(lake, "bank.ledger")) == (3, [(2, 2)])
    if not lake.uri.startswith("memory"):
        with pickle.loads(pickle.dumps(lake)) as copy:
            copy.sql("INSERT INTO bank.ledger VALUES (3, 3)")
            assert rows(lake, "bank.ledger") == [(2, 2), (3, 3)]
    lake.sql("COMMIT")
    assert (1, 1) in rows(lake, "bank.ledger")


def test_a_transaction_of_a_thread_that_has_ended_is_rolled_back(lake: frazil.Lake) -> None:
    def leave() -> None:
        lake.sql("BEGIN")
        lake.sql("INSERT INTO bank.ledger VALUES (1, 1)")

    thread = threading.Thread(target=leave)
    thread.start()
    thread.join()
    assert files_of(lake.table("bank.ledger")) != named_files(lake.table("bank.ledger"))
    lake.sql("BEGIN")
    assert len(files_of(lake.table("bank.ledger"))) == len(named_files(lake.table("bank.ledger")))
    assert lake.sql("COMMIT") is None


def test_closing_a_lake_rolls_back(tmp_path: Path) -> None:
    with frazil.connect(str(tmp_path / "lake")) as lake:
        lake.create_namespace("bank")
        lake.sql("CREATE TABLE bank.ledger (id bigint)")
        lake.sql("BEGIN")
        lake.sql("INSERT INTO bank.ledger VALUES 1")
    with frazil.connect(str(tmp_path / "lake")) as again:
        table = again.table("bank.ledger")
        assert table.scan().count() == 0
        assert len(files_of(table)) == len(named_files(table))


def test_a_forked_process_is_not_in_it(tmp_path: Path) -> None:
    def child(lake: frazil.Lake, answers: Any) -> None:
        try:
            lake.sql("COMMIT")
        except frazil.InvalidInput as error:
            answers.put(error.problem)
        answers.put(lake.sql("INSERT INTO bank.ledger VALUES 2").changed)
        lake.sql("BEGIN")
        lake.sql("INSERT INTO bank.ledger VALUES 3")
        lake.close()
        answers.put("closed")

    with frazil.connect(str(tmp_path / "lake")) as lake:
        lake.create_namespace("bank")
        lake.sql("CREATE TABLE bank.ledger (id bigint)")
        lake.sql("BEGIN")
        lake.sql("INSERT INTO bank.ledger VALUES 1")
        context = multiprocessing.get_context("fork")
        answers = context.SimpleQueue()
        process = context.Process(target=child, args=(lake, answers))
        process.start()
        assert answers.get().startswith("COMMIT without BEGIN")
        assert answers.get() is True
        assert answers.get() == "closed"
        process.join(60)
        assert rows(lake, "bank.ledger") == [(2,)]
        lake.sql("COMMIT")
        assert rows(lake, "bank.ledger") == [(1,), (2,)]


def test_a_lake_that_is_only_read_begins_nothing(tmp_path: Path) -> None:
    frazil.connect(str(tmp_path / "lake")).close()
    with frazil.connect(str(tmp_path / "lake"), read_only=True) as lake:
        with pytest.raises(frazil.InvalidInput, match="read_only"):
            lake.sql("BEGIN")
        with pytest.raises(frazil.InvalidInput, match="without BEGIN"):
            lake.sql("COMMIT")
