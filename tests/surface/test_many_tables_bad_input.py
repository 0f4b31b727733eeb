"""What a transaction over several tables meets besides conflicts: names, other lakes, tables that go, a thousand."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import frazil
from frazil.commit.context import Phase
from surface.matrix import rows_of
from surface.three_tables import DATABASES, DDL, NAMES, heads, held, move, row, stray_files, three_tables, values

HARD_NAMES = (("s", "a.b"), ("s", "q\"u'o"), ("s", "żółć 表"), ("s", "a;-- b"), ("s", "A"))


@pytest.fixture(params=DATABASES)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[frazil.Lake]:
    with three_tables(request, tmp_path, request.param) as lake:
        yield lake


# Names


def test_names_with_dots_quotes_and_other_letters(lake: frazil.Lake) -> None:
    for name in HARD_NAMES:
        lake.create_table(name, DDL, keys=["id"]).append([row(1, 10)])
    made = ("s", "ü.x'\"")
    with lake.transaction() as tx:
        for name in HARD_NAMES:
            tx.table(name).update({"v": "v + 1"}, "id = 1")
        tx.create_table(made, DDL).append([row(2, 2)])
    assert isinstance(tx.result, frazil.TransactionCommit)
    assert set(tx.result.tables) == {"s.`a.b`", "s.q\"u'o", "s.żółć 表", "s.a;-- b", "s.A", "s.`ü.x'\"`"}
    assert all(rows_of(lake.table(name)) == [row(1, 11)] for name in HARD_NAMES)
    assert rows_of(lake.table(made)) == [row(2, 2)]


@pytest.mark.parametrize("name", HARD_NAMES)
def test_p40_a_conflict_names_a_table_with_a_hard_name(lake: frazil.Lake, name: tuple[str, str]) -> None:
    table = lake.create_table(name, DDL, keys=["id"])
    table.append([row(1, 10)])
    tx = held(lake, Phase.PREPARED, lambda: table.update({"v": "0"}, "id = 1"))
    tx.table(name).update({"v": "v + 1"}, "id = 1")
    tx.table("s.b").append([row(3, 3)])
    with pytest.raises(frazil.ConflictError) as caught:
        tx.commit()
    assert {each.table for each in caught.value.conflicts} == {table.name}
    assert values(lake, "s.b") == {1: 10, 2: 20}


# Tables that change their names, or go


def exchange(lake: frazil.Lake) -> None:
    lake.rename_table("s.a", "s.z")
    lake.rename_table("s.b", "s.a")
    lake.rename_table("s.z", "s.b")


@pytest.mark.parametrize("at", [Phase.HEAD_READ, Phase.TABLE_PREPARED, Phase.PREPARED])
@pytest.mark.parametrize("is_only_read", [False, True])
def test_p40_two_tables_that_exchange_their_names_are_refused(lake: frazil.Lake, at: Phase, is_only_read: bool) -> None:
    lake.table("s.b").update({"v": "v + 1"}, "id = 2")
    tx = held(lake, at, lambda: exchange(lake))
    if is_only_read:
        assert tx.table("s.a").scan().count() == 2
        tx.table("s.c").append([row(101, 0)])
    else:
        move(tx)
    with pytest.raises(frazil.ConflictError, match="another one took its name"):
        tx.commit()
    assert (values(lake, "s.a"), values(lake, "s.b"), values(lake, "s.c")) == (
        {1: 10, 2: 21},
        {1: 10, 2: 20},
        {1: 10, 2: 20},
    )


@pytest.mark.parametrize("is_only_read", [False, True])
def test_p40_a_table_that_was_renamed_refuses_the_whole(lake: frazil.Lake, is_only_read: bool) -> None:
    tx = held(lake, Phase.PREPARED, lambda: lake.rename_table("s.b", "s.z"))
    tx.table("s.a").append([row(3, 3)])
    if is_only_read:
        assert tx.table("s.b").scan().count() == 2
    else:
        tx.table("s.b").append([row(3, 3)])
    with pytest.raises(frazil.NoSuchTable, match=r"s\.b"):
        tx.commit()
    assert (values(lake, "s.a"), values(lake, "s.z")) == ({1: 10, 2: 20}, {1: 10, 2: 20})
    assert stray_files(lake, "s.a") == stray_files(lake, "s.z") == set()


def test_a_table_that_was_renamed_there_and_back_is_the_same(lake: frazil.Lake) -> None:
    def there_and_back() -> None:
        lake.rename_table("s.b", "s.z")
        lake.rename_table("s.z", "s.b")

    tx = held(lake, Phase.PREPARED, there_and_back)
    move(tx)
    done = tx.commit()
    assert isinstance(done, frazil.TransactionCommit)
    assert (done.attempts, values(lake, "s.b")[1]) == (1, 11)


@pytest.mark.parametrize("is_replaced", [False, True])
@pytest.mark.parametrize("at", [Phase.HEAD_READ, Phase.PREPARED])
def test_p40_a_table_that_was_only_read_and_is_gone_refuses_the_whole(
    lake: frazil.Lake, at: Phase, is_replaced: bool
) -> None:
    def drop() -> None:
        lake.drop_table("s.b")
        if is_replaced:
            lake.create_table("s.b", DDL).append([row(1, 10), row(2, 20)])

    tx = held(lake, at, drop)
    tx.table("s.a").append([row(3, tx.table("s.b").scan().count())])
    tx.table("s.c").append([row(3, 3)])
    expected: type[frazil.FrazilError] = frazil.ConflictError if is_replaced else frazil.NoSuchTable
    with pytest.raises(expected, match=r"s\.b"):
        tx.commit()
    assert (values(lake, "s.a"), values(lake, "s.c")) == ({1: 10, 2: 20}, {1: 10, 2: 20})
    assert stray_files(lake, "s.a") == stray_files(lake, "s.c") == set()


def test_p40_a_table_that_is_dropped_and_was_replaced_meanwhile_stays(lake: frazil.Lake) -> None:
    def replace_it() -> None:
        lake.drop_table("s.b")
        lake.create_table("s.b", DDL).append([row(5, 5)])

    tx = held(lake, Phase.PREPARED, replace_it)
    tx.drop_table("s.b")
    tx.table("s.a").append([row(3, 3)])
    with pytest.raises(frazil.ConflictError, match=r"s\.b: "):
        tx.commit()
    assert (values(lake, "s.a"), values(lake, "s.b")) == ({1: 10, 2: 20}, {5: 5})


def test_p40_one_table_under_two_names_is_refused_whichever_is_first(lake: frazil.Lake) -> None:
    lake.register_table("s.alias", heads(lake)["s.a"])
    for first, second in (("s.a", "s.alias"), ("s.alias", "s.a")):
        with lake.transaction() as tx:
            assert tx.table(first).scan().count() == 2
            with pytest.raises(frazil.InvalidInput, match="one and the same table"):
                tx.drop_table(second)
            with pytest.raises(frazil.InvalidInput, match="one and the same table"):
                tx.table(second)


# What is read


def test_p40_the_source_of_a_merge_is_part_of_what_was_read(lake: frazil.Lake) -> None:
    tx = held(lake, Phase.PREPARED, lambda: lake.table("s.b").update({"v": "0"}, "id = 1"))
    source = tx.table("s.b").scan()
    tx.table("s.a").merge(source, on="target.id = source.id").when_matched_update({"v": "source.v"}).execute()
    with pytest.raises(frazil.ConflictError, match=r"s\.b: "):
        tx.commit()


@pytest.mark.parametrize(("branch", "is_refused"), [("main", False), ("dev", True)])
def test_p40_of_a_table_that_was_only_read_the_branch_counts(lake: frazil.Lake, branch: str, is_refused: bool) -> None:
    lake.table("s.b").create_branch("dev")
    tx = held(lake, Phase.PREPARED, lambda: lake.table("s.b").update({"v": "0"}, "id = 1", branch=branch))
    tx.table("s.a").append([row(3, tx.table("s.b").scan(ref="dev").count())])
    with pytest.raises(frazil.ConflictError, match=r"s\.b: ") if is_refused else contextlib.nullcontext():
        tx.commit()
    assert (3 in values(lake, "s.a")) is not is_refused


def test_p40_branches_of_several_tables_change_together(lake: frazil.Lake) -> None:
    for name in NAMES:
        lake.table(name).create_branch("dev")
    tx = held(lake, Phase.PREPARED, lambda: lake.table("s.b").append([row(9, 9)]))
    for name in NAMES:
        tx.table(name).update({"v": "v + 1"}, "id = 1", branch="dev")
    done = tx.commit()
    assert isinstance(done, frazil.TransactionCommit)
    assert done.attempts == 2
    found = [lake.table(name).scan(where="id = 1", ref="dev").to_arrow()["v"].to_pylist() for name in NAMES]
    assert found == [[11]] * 3
    assert (values(lake, "s.a")[1], values(lake, "s.b")) == (10, {1: 10, 2: 20, 9: 9})


# Other lakes, threads and processes


def test_a_transaction_has_the_tables_of_its_own_lake(lake: frazil.Lake, tmp_path: Path) -> None:
    with frazil.connect(str(tmp_path / "other")) as other:
        other.create_namespace("s")
        theirs = other.create_table("s.a", DDL, keys=["id"])
        theirs.append([row(8, 80)])
        with lake.transaction() as tx, other.transaction() as second:
            with pytest.raises(frazil.InvalidInput, match="must be a string"):
                tx.table(theirs)  # type: ignore[arg-type]
            # Rows are rows, wherever they come from; what they were read from is not compared.
            tx.table("s.a").append(second.table("s.a").scan())
            tx.table("s.b").merge(theirs.scan(), on="target.id = source.id").when_not_matched_insert_all().execute()
            second.table("s.a").append(tx.table("s.c").scan())
        assert (values(lake, "s.a")[8], values(lake, "s.b")[8]) == (80, 80)
        assert values(other, "s.a") == {8: 80, 1: 10, 2: 20}


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_two_catalogs_in_one_database_have_nothing_in_common(
    request: pytest.FixtureRequest, tmp_path: Path, database: str
) -> None:
    """Both have the tables s.a and s.b; a transaction of one neither sees nor compares those of the other."""
    uri = request.getfixturevalue("postgres_uri") if database == "postgres" else f"sqlite:///{tmp_path}/catalog.db"
    lakes = [
        frazil.connect(uri, warehouse=str(tmp_path / name), name=name, create=True) for name in ("first", "second")
    ]
    for lake in lakes:
        lake.create_namespace("s")
        for name in ("s.a", "s.b"):
            lake.create_table(name, DDL, keys=["id"]).append([row(1, 10)])
    first, second = lakes

    def others() -> None:
        with second.transaction(commit_id="same") as tx:
            for name in ("s.a", "s.b"):
                tx.table(name).update({"v": "v + 5"}, "id = 1")

    tx = held(first, Phase.PREPARED, others, commit_id="same")
    for name in ("s.a", "s.b"):
        tx.table(name).update({"v": "v + 1"}, "id = 1")
    done = tx.commit()
    assert isinstance(done, frazil.TransactionCommit)
    assert (done.attempts, done.already_committed) == (1, False)
    assert [values(lake, name)[1] for lake in lakes for name in ("s.a", "s.b")] == [11, 11, 15, 15]
    for lake in lakes:
        lake.close()


def test_a_transaction_is_refused_in_another_thread_and_after_its_end(lake: frazil.Lake) -> None:
    tx = lake.transaction()
    move(tx)
    mine = tx.table("s.a")
    uses: list[Callable[[], object]] = [
        tx.commit,
        mine.scan,
        lambda: mine.append([row(4, 4)]),
        lambda: tx.table("s.b"),
        lambda: tx.create_table("s.new", DDL),
        lambda: tx.drop_table("s.b"),
        tx.__enter__,
    ]

    def refused(evidence: str) -> None:
        for use in uses:
            with pytest.raises(frazil.InvalidInput, match=evidence):
                use()

    failures: list[BaseException] = []

    def elsewhere() -> None:
        try:
            refused("another thread")
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert failures == []
    tx.commit()
    refused("is committed")
    assert values(lake, "s.a") == {1: 9, 2: 20}


def test_a_forked_process_cannot_end_the_transaction(lake: frazil.Lake) -> None:
    with lake.transaction() as tx:
        move(tx)
        child = os.fork()
        if not child:
            code = 1
            with contextlib.suppress(frazil.InvalidInput):
                try:
                    tx.commit()
                finally:
                    tx.rollback()
                    code = 0
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (values(lake, "s.a")[1], values(lake, "s.b")[1], 101 in values(lake, "s.c")) == (9, 11, True)


# Nothing, and a thousand


@pytest.mark.parametrize("isolation", ["serializable", "snapshot"])
def test_an_empty_transaction_has_no_result_and_leaves_no_record(lake: frazil.Lake, isolation: str) -> None:
    before = heads(lake)
    with lake.transaction(commit_id="nothing", isolation=isolation) as tx:
        pass
    assert tx.result is None
    with lake.transaction(commit_id="nothing", isolation=isolation) as tx:
        tx.create_table("s.new", DDL)
        tx.drop_table("s.new")
    assert tx.result is None
    assert heads(lake) == before
    with lake.transaction(commit_id="nothing", isolation=isolation) as tx:
        move(tx)
    assert isinstance(tx.result, frazil.TransactionCommit)
    assert not tx.result.already_committed


COUNT = int(os.environ.get("FRAZIL_MANY_TABLES", "60"))
"""``make many-tables`` sets a thousand."""


@pytest.mark.timeout(600)
def test_p40_many_tables_are_created_changed_and_dropped_in_one_commit_each(lake: frazil.Lake) -> None:
    names = [f"s.t{n:04}" for n in range(COUNT)]
    with lake.transaction() as tx:
        for n, name in enumerate(names):
            tx.create_table(name, DDL).append([row(n, n)])
    assert isinstance(tx.result, frazil.TransactionCommit)
    assert len(tx.result.tables) == COUNT
    # Another writer is faster in the last of them: all are checked and built again, under a thousand commit locks.
    tx = held(lake, Phase.PREPARED, lambda: lake.table(names[-1]).append([row(-1, 0)]))
    for name in names:
        tx.table(name).append([row(COUNT, 1)])
    done = tx.commit()
    assert isinstance(done, frazil.TransactionCommit)
    assert (done.attempts, len(done.tables)) == (2, COUNT)
    instant = lake.snapshot()
    rows = [each for name in names for each in rows_of(instant.table(name))]
    assert (len(rows), sum(each["v"] for each in rows)) == (2 * COUNT + 1, sum(range(COUNT)) + COUNT)
    with lake.transaction() as tx:
        for name in names:
            tx.drop_table(name)
    assert lake.tables() == list(NAMES)
