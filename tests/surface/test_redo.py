"""Statements that meet a conflict are evaluated again on what changed (rule P39), and only on that."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

import frazil
from frazil.commit.context import Phase
from frazil.model import Ident
from surface.matrix import files_of, named_files

QUICK = frazil.Retry(tries=4, base_ms=0)
Rows = list[tuple[int, int]]


@pytest.fixture
def lake() -> Iterator[frazil.Lake]:
    with frazil.connect("memory://") as found:
        found.create_namespace("s")
        yield found


@pytest.fixture
def table(lake: frazil.Lake) -> frazil.Table:
    """Twenty files of ten rows: id 0 to 199, v = id % 10."""
    made = lake.create_table("s.t", "id bigint not null, v bigint", keys=["id"])
    for first in range(0, 200, 10):
        made.append(rows(range(first, first + 10)))
    return made


def rows(ids: Any, v: int | None = None) -> list[dict[str, int]]:
    return [{"id": each, "v": each % 10 if v is None else v} for each in ids]


def iter_rows(ids: list[int]) -> pa.RecordBatchReader:
    """Rows that can be read once."""
    table = pa.table({"id": pa.array(ids, pa.int64()), "v": pa.array([-1] * len(ids), pa.int64())})
    return table.to_reader()


def content(table: Any) -> Rows:
    return sorted((row["id"], row["v"]) for row in table.scan().to_arrow().to_pylist())


def base_rows() -> dict[int, int]:
    return {each: each % 10 for each in range(200)}


def at_head_read(act: Callable[[], object], times: int = 1) -> Callable[[Phase, int], None]:
    """``act`` when the head has been read, in the first so many attempts."""
    return at(act, Phase.HEAD_READ, times)


def at(act: Callable[[], object], when: Phase, times: int) -> Callable[[Phase, int], None]:
    left = [act] * times

    def on_phase(phase: Phase, _attempt: int) -> None:
        if phase is when and left:
            left.pop()()

    return on_phase


def data_files_read(table: frazil.Table, patch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each file is opened from now on."""
    storage: Any = table._lake.storage
    opened: Counter[str] = Counter()
    open_input = storage.open_input

    def counting(path: str) -> Any:
        opened[path] += 1
        return open_input(path)

    patch.setattr(storage, "open_input", counting)
    return opened


STATEMENTS: dict[str, tuple[Callable[..., frazil.Commit], Callable[[dict[int, int]], dict[int, int]]]] = {
    "delete": (
        lambda table, **how: table.delete("v = 7", **how),
        lambda found: {each: v for each, v in found.items() if v != 7},
    ),
    "delete in place": (
        lambda table, **how: table.delete("v = 7", mode="merge-on-read", **how),
        lambda found: {each: v for each, v in found.items() if v != 7},
    ),
    "update": (
        lambda table, **how: table.update({"v": "v + 100"}, "v = 7", **how),
        lambda found: {each: v + 100 if v == 7 else v for each, v in found.items()},
    ),
    "update in place": (
        lambda table, **how: table.update({"v": "v + 100"}, "v = 7", mode="merge-on-read", **how),
        lambda found: {each: v + 100 if v == 7 else v for each, v in found.items()},
    ),
    "overwrite": (
        lambda table, **how: table.overwrite(rows([7_000], v=7), "v = 7", **how),
        lambda found: {**{each: v for each, v in found.items() if v != 7}, 7_000: 7},
    ),
    "upsert by position": (
        lambda table, **how: table.upsert(rows([7, 500, 900], v=-1), mode="position", **how),
        lambda found: {**found, 7: -1, 500: -1, 900: -1},
    ),
    "upsert by copies": (
        lambda table, **how: table.upsert(rows([7, 500, 900], v=-1), mode="copy-on-write", **how),
        lambda found: {**found, 7: -1, 500: -1, 900: -1},
    ),
    "upsert as a merge": (
        lambda table, **how: (
            table.merge(rows([7, 500, 900], v=-1), **how).when_matched_update_all().when_not_matched_insert_all()
        ).execute(),
        lambda found: {**found, 7: -1, 500: -1, 900: -1},
    ),
    "upsert as a merge in place": (
        lambda table, **how: (
            table.merge(iter_rows([7, 500, 900]), mode="merge-on-read", **how)
            .when_matched_update_all()
            .when_not_matched_insert_all()
        ).execute(),
        lambda found: {**found, 7: -1, 500: -1, 900: -1},
    ),
    "merge with deletes": (
        lambda table, **how: (
            table.merge(rows([7, 500, 900], v=-1), **how)
            .when_matched_delete(condition="target.v = 7")
            .when_not_matched_insert_all()
            .when_not_matched_by_source_update({"v": "v + 100"}, condition="target.v = 7")
        ).execute(),
        lambda found: {
            **{
                each: v + 100 if v == 7 and each not in (7, 500, 900) else v
                for each, v in found.items()
                if v != 7 or each not in (7, 500, 900)
            },
            **{each: -1 for each in (7, 500, 900) if each not in found},
        },
    ),
}


@pytest.mark.parametrize("isolation", ["serializable", "snapshot"])
@pytest.mark.parametrize("verb", STATEMENTS)
def test_p39_rows_that_arrive_are_part_of_the_statement(table: frazil.Table, verb: str, isolation: str) -> None:
    call, model = STATEMENTS[verb]
    theirs = at_head_read(lambda: table.append(rows(range(500, 510))))
    done = call(table, retry=QUICK, isolation=isolation, on_phase=theirs)
    after = {**base_rows(), **dict.fromkeys(range(500, 510), 0)}
    after.update({each: each % 10 for each in range(500, 510)})
    if isolation == "serializable":
        assert done.redone == 1
        assert content(table) == sorted(model(after).items())
    else:
        # Rows that arrive are no conflict at this level: an upsert of a new key does not see them.
        assert done.redone == 0
    assert files_of(table) == named_files(table)


@pytest.mark.parametrize("verb", STATEMENTS)
def test_p39_rows_that_changed_are_read_again(table: frazil.Table, verb: str) -> None:
    call, model = STATEMENTS[verb]
    theirs = at_head_read(lambda: table.update({"v": "7"}, "id in (7, 8, 9)", mode="merge-on-read"))
    done = call(table, retry=QUICK, on_phase=theirs)
    assert done.redone == 1
    assert content(table) == sorted(model({**base_rows(), 8: 7, 9: 7}).items())
    assert files_of(table) == named_files(table)


@pytest.mark.parametrize("verb", STATEMENTS)
def test_p39_a_statement_is_redone_as_often_as_it_loses(table: frazil.Table, verb: str) -> None:
    call, model = STATEMENTS[verb]
    given = iter(range(500, 600))

    def add() -> None:
        table.append(rows([each := next(given)], v=7 if verb[:6] != "upsert" else 0))
        del each

    done = call(table, retry=QUICK, on_phase=at_head_read(add, times=3))
    added = dict.fromkeys((500, 501, 502), 7 if verb[:6] != "upsert" else 0)
    expected = model({**base_rows(), **added})
    assert content(table) == sorted(expected.items())
    assert done.redone == (1 if verb[:6] == "upsert" else 3)


@pytest.mark.parametrize("verb", STATEMENTS)
def test_p39_on_conflict_abort_keeps_the_refusal(table: frazil.Table, verb: str) -> None:
    call, _ = STATEMENTS[verb]
    theirs = at_head_read(lambda: table.append(rows(range(500, 510))))
    with pytest.raises(frazil.ConflictError, match="no added rows"):
        call(table, retry=QUICK, on_phase=theirs, on_conflict="abort")
    assert content(table)[-1] == (509, 9)
    assert len(content(table)) == 210


def test_p39_the_table_may_say_that_statements_abort(table: frazil.Table) -> None:
    table.set_properties({"frazil.on-conflict": "abort"})
    theirs = at_head_read(lambda: table.append(rows([507])))
    with pytest.raises(frazil.ConflictError):
        table.delete("v = 7", retry=QUICK, on_phase=theirs)
    assert table.delete("v = 7", retry=QUICK, on_phase=theirs, on_conflict="redo").rows_deleted == 21
    table.set_properties({"frazil.on-conflict": "sometimes"})
    with pytest.raises(frazil.InvalidInput, match=r"frazil\.on-conflict must be"):
        table.delete("v = 7")


def test_p39_only_what_changed_is_read(table: frazil.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """A delete over 20 files that loses to 3 new files reads these 3."""
    opened = data_files_read(table, monkeypatch)

    def add() -> None:
        for each in (500, 510, 520):
            table.append(rows(range(each, each + 10)))
        opened.clear()

    done = table.delete("v = 7", mode="merge-on-read", retry=QUICK, on_phase=at_head_read(add))
    assert (done.redone, done.rows_deleted) == (1, 23)
    # The check opens them to see whether a row matches, the redo to find which rows do.
    assert sorted(count for path, count in opened.items() if path.endswith(".parquet")) == [2, 2, 2]


def test_p39_counts_are_those_of_the_statement_run_at_the_head(table: frazil.Table) -> None:
    def theirs() -> None:
        table.delete("id = 7", mode="merge-on-read")
        table.append(rows([507, 517]))

    done = table.update({"v": "70"}, "v = 7", retry=QUICK, on_phase=at_head_read(theirs))
    assert (done.rows_updated, done.rows_deleted, done.redone) == (21, 0, 1)
    gone = table.delete("v = 70", retry=QUICK, on_phase=at_head_read(lambda: table.delete("id = 17")))
    assert gone.rows_deleted == 20


@pytest.mark.parametrize("mode", ["position", "copy-on-write"])
def test_p39_a_key_with_several_rows_counts_as_updated_once(table: frazil.Table, mode: Any) -> None:
    """Whether they are in files that changed, in files that did not, or in both."""
    table.append([*rows([7, 8], v=-7), *rows([300], v=-7)])

    def theirs() -> None:
        table.append(rows([7, 9], v=-8))
        table.delete("id in (8, 9) and v >= 0", mode="merge-on-read")

    given = rows([7, 8, 9, 300, 400], v=1)
    done = table.upsert(given, mode=mode, retry=QUICK, on_phase=at_head_read(theirs))
    assert (done.redone, done.rows_inserted, done.rows_updated, done.rows_deleted) == (1, 1, 4, 2)
    assert content(table) == sorted({**base_rows(), **{row["id"]: row["v"] for row in given}}.items())


def test_p39_a_statement_that_loses_too_often_says_how_far_it_came(table: frazil.Table) -> None:
    given = iter(range(500, 600))
    add = lambda: table.append(rows([next(given)], v=7))  # noqa: E731
    first, later = at_head_read(add), at(add, Phase.REDONE, 10)

    def on_phase(phase: Phase, attempt: int) -> None:
        first(phase, attempt)
        later(phase, attempt)

    with pytest.raises(frazil.ConflictError, match="evaluated again 3 times") as caught:
        table.delete("v = 7", retry=QUICK, on_phase=on_phase)
    assert [each.check for each in caught.value.conflicts] == ["no added rows match my filter"]
    assert files_of(table) == named_files(table)
    assert len(content(table)) == 204


def test_p39_redos_that_stay_slow_end_under_the_commit_lock(
    lake: frazil.Lake, table: frazil.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside an appender that commits whenever the lock is free, and each redo takes as long as the one before."""
    late, given = [0.0], iter(range(500, 600))
    monkeypatch.setattr(lake, "runtime", replace(lake.runtime, monotonic=lambda: time.monotonic() + late[0]))
    locks, ident = lake.catalog.locks, Ident.parse("s.t")
    assert locks is not None

    def append_if_free() -> None:
        release = locks.try_lock(ident)
        if release is not None:
            release()
            table.append(rows([next(given)], v=7))

    def on_phase(phase: Phase, _attempt: int) -> None:
        if phase is Phase.REDONE:
            late[0] += 0.9
        if phase in (Phase.HEAD_READ, Phase.REDONE):
            append_if_free()

    done = table.delete("v = 7", retry=frazil.Retry(tries=16, base_ms=0), on_phase=on_phase)
    # Two before the lock, the second no shorter than the first, and one under it.
    assert (done.redone, done.rows_deleted) == (3, 23)
    assert content(table) == sorted((each, v) for each, v in base_rows().items() if v != 7)
    assert files_of(table) == named_files(table)


def test_p39_a_statement_that_fails_when_it_is_redone_leaves_nothing(table: frazil.Table) -> None:
    def theirs() -> None:
        table.append(rows([507], v=7))
        table.append([{"id": 508, "v": 2**62}])

    with pytest.raises(frazil.FrazilError):
        table.update({"v": "v * 4"}, "v = 7 or v > 100", retry=QUICK, on_phase=at_head_read(theirs))
    assert files_of(table) == named_files(table)
    assert len(content(table)) == 202


def test_p39_compaction_lands_without_the_groups_that_it_lost(lake: frazil.Lake) -> None:
    table = lake.create_table("s.c", "id bigint, p string", partition_by=["p"])
    for n in range(3):
        for p in "ab":
            table.append([{"id": n, "p": p}])
    done = table.compact(retry=QUICK, on_phase=at_head_read(lambda: table.compact("p = 'a'")))
    assert done.redone == 1
    assert done.files_removed == 3
    assert Counter(each.partition["p"] for each in table.files()) == {"a": 1, "b": 1}
    assert sorted((row["id"], row["p"]) for row in table.scan().to_arrow().to_pylist()) == [
        (n, p) for n in range(3) for p in "ab"
    ]
    assert files_of(table) == named_files(table)


def test_p39_inside_a_transaction_the_transaction_decides(lake: frazil.Lake, table: frazil.Table) -> None:
    with pytest.raises(frazil.InvalidInput, match="on_conflict belongs to the transaction"), lake.transaction() as tx:
        tx.table("s.t").delete("v = 7", on_conflict="redo")
    tx = lake.transaction()
    tx.table("s.t").delete("v = 7")
    table.append(rows([507]))
    with pytest.raises(frazil.ConflictError):
        tx.commit()


def test_p39_a_commit_id_is_applied_once_however_often_it_is_redone(table: frazil.Table) -> None:
    theirs = at_head_read(lambda: table.append(rows([507])))
    first = table.delete("v = 7", retry=QUICK, on_phase=theirs, commit_id="gone")
    again = table.delete("v = 7", commit_id="gone")
    assert (first.redone, first.rows_deleted) == (1, 21)
    assert (again.already_committed, again.rows_deleted, again.snapshot_id) == (True, 21, first.snapshot_id)


@pytest.mark.parametrize("new", [(), ("id",), ("truncate(1, part)",), ("bucket(3, id)",), ("part", "id")], ids=str)
def test_p39_a_redo_replaces_the_partitions_that_the_rows_were_staged_for(
    lake: frazil.Lake, new: tuple[str, ...]
) -> None:
    """Whatever partitions the table has meanwhile."""
    table = lake.create_table("s.p", "id bigint, part string", partition_by=["part"])
    table.append([{"id": 1, "part": "a"}, {"id": 2, "part": "b"}, {"id": 3, "part": "ab"}])

    def theirs() -> None:
        table.set_partitioning(list(new))
        table.append([{"id": 4, "part": "a"}, {"id": 5, "part": "b"}])

    done = table.replace_partitions([{"id": 9, "part": "a"}], retry=QUICK, on_phase=at_head_read(theirs))
    assert (done.redone, done.rows_inserted, done.rows_deleted) == (1, 1, 2)
    found = sorted((row["id"], row["part"]) for row in table.scan().to_arrow().to_pylist())
    assert found == [(2, "b"), (3, "ab"), (5, "b"), (9, "a")]
    assert files_of(table) == named_files(table)


def test_p39_a_redo_does_not_take_other_buckets_for_the_same(lake: frazil.Lake) -> None:
    made = [lake.create_table(name, "id bigint", partition_by=["bucket(4, id)"]) for name in ("s.b", "s.c")]
    for each in made:
        each.append([{"id": n} for n in range(20)])

    def theirs(table: frazil.Table) -> None:
        table.set_partitioning(["bucket(3, id)"])
        table.append([{"id": n} for n in range(20, 40)])

    raced, alone = made
    done = raced.replace_partitions([{"id": 100}], retry=QUICK, on_phase=at_head_read(lambda: theirs(raced)))
    alone.append([{"id": n} for n in range(20, 40)])
    alone.replace_partitions([{"id": 100}])
    assert done.redone == 1
    assert raced.scan().to_arrow().sort_by("id") == alone.scan().to_arrow().sort_by("id")


BY_NAME: dict[str, Callable[..., frazil.Commit]] = {
    "update": lambda table, **how: table.update({"v": "v + 100"}, "id >= 0", **how),
    "update in place": lambda table, **how: table.update({"v": "w"}, "id >= 0", mode="merge-on-read", **how),
    "upsert on": lambda table, **how: table.upsert([{"id": 3, "v": 1, "w": 7}], on=["v", "w"], **how),
    "upsert latest by": lambda table, **how: table.upsert([{"id": 3, "v": 1, "w": 7}], latest_by="w", **how),
    "delete keys": lambda table, **how: table.delete_keys([{"v": 1, "w": 7}], on=["v", "w"], mode="position", **how),
    "merge": lambda table, **how: (
        table.merge([{"id": each, "v": 5, "w": 6} for each in (2, 3)], on=["id"], **how)
        .when_matched_update({"v": "source.w"})
        .execute()
    ),
}


@pytest.fixture
def three(lake: frazil.Lake) -> frazil.Table:
    made = lake.create_table("s.three", "id bigint not null, v bigint, w bigint, u bigint", keys=["id"])
    made.append([{"id": 1, "v": 1, "w": 7}, {"id": 2, "v": 7, "w": 1}])
    return made


@pytest.mark.parametrize("verb", BY_NAME)
def test_p39_a_statement_is_not_redone_with_columns_that_took_its_names(three: frazil.Table, verb: str) -> None:
    def theirs() -> None:
        three.rename_column("v", "x")
        three.rename_column("w", "v")
        three.rename_column("x", "w")
        three.append([{"id": 3, "w": 1, "v": 7}])

    with pytest.raises(frazil.ConflictError):
        BY_NAME[verb](three, retry=QUICK, on_phase=at_head_read(theirs))
    found = sorted((row["id"], row["w"], row["v"]) for row in three.scan().to_arrow().to_pylist())
    assert found == [(1, 1, 7), (2, 7, 1), (3, 1, 7)]
    assert files_of(three) == named_files(three)


@pytest.mark.parametrize("verb", BY_NAME)
def test_p39_a_statement_is_redone_with_other_columns_in_another_order(
    lake: frazil.Lake, three: frazil.Table, verb: str
) -> None:
    other = lake.create_table("s.other", "id bigint not null, v bigint, w bigint, u bigint", keys=["id"])
    other.append(three.scan().to_arrow())

    def theirs(table: frazil.Table) -> None:
        table.move_column("w", first=True)
        table.drop_column("u")
        table.add_column("n", "bigint")
        table.append([{"id": 3, "v": 1, "w": 7, "n": 4}, {"id": 4, "v": 7, "w": 1, "n": 4}])

    done = BY_NAME[verb](three, retry=QUICK, on_phase=at_head_read(lambda: theirs(three)))
    theirs(other)
    BY_NAME[verb](other)
    assert done.redone == 1
    assert three.scan().to_arrow().sort_by("id") == other.scan().to_arrow().sort_by("id")


@pytest.mark.parametrize("verb", STATEMENTS)
def test_p39_rows_of_files_that_were_rewritten_are_read_again(table: frazil.Table, verb: str) -> None:
    """Some of them match only since, and the files that the statement staged for are gone."""
    call, model = STATEMENTS[verb]

    def theirs() -> None:
        table.update({"v": "7"}, "id in (8, 9)", mode="copy-on-write")
        table.compact()

    done = call(table, retry=QUICK, on_phase=at_head_read(theirs))
    assert content(table) == sorted(model({**base_rows(), 8: 7, 9: 7}).items())
    # What an upsert does to these rows is rebased.
    assert done.redone == (0 if verb[:6] == "upsert" else 1)
    assert files_of(table) == named_files(table)
