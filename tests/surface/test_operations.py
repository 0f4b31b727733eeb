"""Each verb alone: the rows, what the commit tells, and what is refused with nothing written."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import frazil
from frazil.commit.context import Phase
from surface.matrix import QUICK, files_of, named_files, once, rows_of

DDL = "id bigint not null, part string, v bigint"
ChangeMode = Literal["merge-on-read", "copy-on-write"]
UpsertMode = Literal["equality", "position", "copy-on-write"]
MODES: tuple[ChangeMode, ...] = ("merge-on-read", "copy-on-write")
UPSERT_MODES: tuple[UpsertMode, ...] = ("equality", "position", "copy-on-write")


def row(key: int, part: str | None, v: int | None) -> dict[str, Any]:
    return {"id": key, "part": part, "v": v}


A = [row(1, "A", 10), row(2, "A", 20), row(3, "A", 30)]
B = [row(11, "B", 110), row(12, "B", None)]
NULLS = [row(21, None, 210)]


@pytest.fixture
def lake() -> frazil.Lake:
    lake = frazil.connect("memory://")
    lake.create_namespace("ns")
    return lake


@pytest.fixture
def empty(lake: frazil.Lake) -> frazil.Table:
    return lake.create_table("ns.t", DDL, partition_by=["part"], keys=["id"])


@pytest.fixture
def table(empty: frazil.Table) -> frazil.Table:
    """Three files, one for each partition."""
    empty.append([*A, *B, *NULLS])
    return empty


def ids(table: Any, **scan: Any) -> list[int]:
    return [each["id"] for each in rows_of(table, **scan)]


def summary_of(table: frazil.Table) -> dict[str, str]:
    snapshot = table.snapshot()
    assert snapshot is not None
    return dict(snapshot.summary)


def counts(done: frazil.Commit) -> tuple[int, int, int]:
    return done.rows_inserted, done.rows_updated, done.rows_deleted


def assert_refused(table: frazil.Table, call: Callable[[], object], error: type[Exception], *says: str) -> None:
    """The call raises a sentence with all of ``says``; no file appears, and the table is the same."""
    before, location = files_of(table), table.metadata_location
    with pytest.raises(error) as caught:
        call()
    text = str(caught.value)
    for part in says:
        assert part in text, text
    assert text.endswith((".", "!", "?")), text
    assert files_of(table) == before
    assert table.metadata_location == location


# Verbs that every table takes, each with a change it makes to ``table``

VERBS: dict[str, Callable[..., frazil.Commit]] = {
    "append": lambda table, **how: table.append([row(4, "A", 40)], **how),
    "overwrite": lambda table, **how: table.overwrite([row(5, "A", 50)], where="part = 'A'", **how),
    "overwrite in part": lambda table, **how: table.overwrite([row(2, "A", -2)], where="id = 2", **how),
    "replace_partitions": lambda table, **how: table.replace_partitions([row(6, "B", 60)], **how),
    "delete": lambda table, **how: table.delete("part = 'A'", **how),
    "delete some": lambda table, **how: table.delete("id = 1", mode="merge-on-read", **how),
    "delete by copying": lambda table, **how: table.delete("id = 1", mode="copy-on-write", **how),
    "update": lambda table, **how: table.update(set={"v": "v + 1"}, where="id = 1", mode="merge-on-read", **how),
    "update by copying": lambda table, **how: table.update(
        set={"v": "v + 1"}, where="id = 1", mode="copy-on-write", **how
    ),
    "upsert": lambda table, **how: table.upsert([row(1, "A", -1), row(7, "B", 70)], mode="equality", **how),
    "upsert by position": lambda table, **how: table.upsert([row(1, "A", -1), row(7, "B", 70)], mode="position", **how),
    "upsert by copying": lambda table, **how: table.upsert(
        [row(1, "A", -1), row(7, "B", 70)], mode="copy-on-write", **how
    ),
}
AFTERWARDS: dict[str, list[dict[str, Any]]] = {
    "append": [*A, row(4, "A", 40), *B, *NULLS],
    "overwrite": [row(5, "A", 50), *B, *NULLS],
    "overwrite in part": [A[0], row(2, "A", -2), A[2], *B, *NULLS],
    "replace_partitions": [*A, row(6, "B", 60), *NULLS],
    "delete": [*B, *NULLS],
    "delete some": [*A[1:], *B, *NULLS],
    "delete by copying": [*A[1:], *B, *NULLS],
    "update": [row(1, "A", 11), *A[1:], *B, *NULLS],
    "update by copying": [row(1, "A", 11), *A[1:], *B, *NULLS],
    "upsert": [row(1, "A", -1), *A[1:], row(7, "B", 70), *B, *NULLS],
    "upsert by position": [row(1, "A", -1), *A[1:], row(7, "B", 70), *B, *NULLS],
    "upsert by copying": [row(1, "A", -1), *A[1:], row(7, "B", 70), *B, *NULLS],
}
# rows inserted, updated, deleted
COUNTS: dict[str, tuple[int, int, int]] = {
    "append": (1, 0, 0),
    "overwrite": (1, 0, 3),
    "overwrite in part": (1, 0, 1),
    "replace_partitions": (1, 0, 2),
    "delete": (0, 0, 3),
    "delete some": (0, 0, 1),
    "delete by copying": (0, 0, 1),
    "update": (0, 1, 0),
    "update by copying": (0, 1, 0),
    # Equality deletes do not check which keys exist.
    "upsert": (2, 0, 0),
    "upsert by position": (1, 1, 0),
    "upsert by copying": (1, 1, 0),
}
# Iceberg's word in the snapshot
WORDS: dict[str, str] = {
    "append": "append",
    "overwrite": "overwrite",
    "overwrite in part": "overwrite",
    "replace_partitions": "overwrite",
    "delete": "delete",
    "delete some": "delete",
    "update": "overwrite",
    "update by copying": "overwrite",
    "upsert": "overwrite",
    "upsert by position": "overwrite",
    "upsert by copying": "overwrite",
}


@pytest.mark.parametrize("verb", VERBS)
def test_what_a_verb_does_and_what_its_commit_tells(table: frazil.Table, verb: str) -> None:
    before = table.snapshot()
    assert before is not None
    done = VERBS[verb](table)
    assert rows_of(table) == AFTERWARDS[verb]
    assert (done.changed, done.attempts, done.engine) == (True, 1, "arrow")
    assert counts(done) == COUNTS[verb]
    after = table.snapshot()
    assert after is not None
    assert (done.snapshot_id, done.sequence_number) == (after.snapshot_id, after.sequence_number)
    assert after.parent_snapshot_id == before.snapshot_id
    if verb in WORDS:
        assert after.operation == WORDS[verb]
    assert files_of(table) == named_files(table)


@pytest.mark.parametrize("verb", VERBS)
def test_the_summary_counts_the_rows_there_are(table: frazil.Table, verb: str) -> None:
    VERBS[verb](table)
    snapshot = table.snapshot()
    assert snapshot is not None
    total, by_position = int(snapshot.summary["total-records"]), int(snapshot.summary["total-position-deletes"])
    if verb != "upsert":
        assert total - by_position == len(AFTERWARDS[verb])
    assert int(snapshot.summary["total-data-files"]) == len(table.files())


def test_files_that_match_whole_go_by_metadata_alone(table: frazil.Table) -> None:
    for done in (table.delete("part = 'A'"), table.delete("part is null")):
        assert (done.files_added, done.files_removed, done.bytes_written) == (0, 1, 0)
    assert ids(table) == [11, 12]


def test_a_file_whose_bounds_match_whole_goes_by_metadata_alone(lake: frazil.Lake) -> None:
    flat = lake.create_table("ns.flat", DDL)
    flat.append(A)
    flat.append([row(11, "B", 110)])
    done = flat.delete("v < 100")
    assert (done.files_added, done.files_removed, done.rows_deleted) == (0, 1, 3)
    assert ids(flat) == [11]


def test_copy_on_write_replaces_the_file_and_merge_on_read_keeps_it(table: frazil.Table) -> None:
    old = {each.path for each in table.scan(where="part = 'A'").files()}
    table.delete("id = 1", mode="merge-on-read")
    kept = table.scan(where="part = 'A'").files()
    assert [(each.path, each.deletes) for each in kept] == [(path, 1) for path in old]
    done = table.delete("id = 2", mode="copy-on-write")
    (new,) = table.scan(where="part = 'A'").files()
    assert (new.path not in old, new.rows, new.deletes) == (True, 1, 0)
    assert (done.files_removed, done.rows_deleted) == (2, 1), "the file, and the delete file that was for it alone"
    assert ids(table, where="part = 'A'") == [3]


@pytest.mark.parametrize("mode", MODES)
def test_the_modes_come_from_the_tables_properties(lake: frazil.Lake, mode: ChangeMode) -> None:
    properties = {f"write.{verb}.mode": mode for verb in ("delete", "update")}
    table = lake.create_table("ns.m", DDL, properties=properties)
    table.append(A)
    (old,) = table.files()
    table.delete("id = 1")
    assert (table.files()[0].path == old.path) == (mode == "merge-on-read")
    table.update(set={"v": "0"}, where="id = 2")
    assert rows_of(table) == [row(2, "A", 0), row(3, "A", 30)]
    assert (old.path in {each.path for each in table.files()}) == (mode == "merge-on-read")


@pytest.mark.parametrize("mode", UPSERT_MODES)
def test_the_upserts_mode_comes_from_the_tables_properties(lake: frazil.Lake, mode: UpsertMode) -> None:
    table = lake.create_table("ns.m", DDL, keys=["id"], properties={"frazil.upsert.mode": mode})
    table.append(A)
    (old,) = table.files()
    table.upsert([row(1, "B", -1)])
    assert rows_of(table) == [row(1, "B", -1), *A[1:]]
    assert (old.path in {each.path for each in table.files()}) == (mode != "copy-on-write")
    assert summary_of(table)["total-equality-deletes"] == ("1" if mode == "equality" else "0")


# Options that every verb takes


@pytest.mark.parametrize("verb", VERBS)
def test_a_dry_run_counts_and_writes_nothing(table: frazil.Table, verb: str) -> None:
    before, location = files_of(table), table.metadata_location
    done = VERBS[verb](table, dry_run=True)
    assert (done.changed, counts(done)) == (False, COUNTS[verb])
    assert files_of(table) == before
    assert table.metadata_location == location


@pytest.mark.parametrize("verb", VERBS)
def test_a_commit_id_is_applied_once(table: frazil.Table, verb: str) -> None:
    done = VERBS[verb](table, commit_id="job-7")
    before, location = files_of(table), table.metadata_location
    again = VERBS[verb](table, commit_id="job-7")
    assert (again.already_committed, again.snapshot_id, counts(again)) == (True, done.snapshot_id, counts(done))
    assert (again.commit_id, again.changed) == ("job-7", True)
    assert rows_of(table) == AFTERWARDS[verb]
    assert (files_of(table), table.metadata_location) == (before, location)
    other = "delete" if verb.startswith("append") else "append"
    assert_refused(
        table, lambda: VERBS[other](table, commit_id="job-7"), frazil.InvalidInput, "job-7", "another operation"
    )


def test_one_commit_id_for_two_filters_is_refused(table: frazil.Table) -> None:
    table.delete("id = 1", commit_id="job-7")
    assert_refused(table, lambda: table.delete("id = 2", commit_id="job-7"), frazil.InvalidInput, "another operation")
    table.update(set={"v": "1"}, where="id = 2", commit_id="job-8")
    again = lambda: table.update(set={"v": "2"}, where="id = 2", commit_id="job-8")  # noqa: E731
    assert_refused(table, again, frazil.InvalidInput, "another operation")
    assert rows_of(table)[0] == row(2, "A", 1)


@pytest.mark.parametrize("verb", VERBS)
def test_a_branch_of_its_own(table: frazil.Table, verb: str) -> None:
    table.create_branch("audit")
    VERBS[verb](table, branch="audit")
    assert rows_of(table) == [*A, *B, *NULLS]
    assert rows_of(table, ref="audit") == AFTERWARDS[verb]
    table.append([row(99, "Z", 0)])
    assert rows_of(table, ref="audit") == AFTERWARDS[verb]


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("mine_is_on_the_branch", [True, False], ids=["mine on the branch", "theirs on the branch"])
def test_two_branches_do_not_meet(table: frazil.Table, verb: str, mine_is_on_the_branch: bool) -> None:
    """The same rows, the same files, changed on two branches at once: both land, each on its own."""
    table.create_branch("audit")
    mine, theirs = ("audit", "main") if mine_is_on_the_branch else ("main", "audit")

    def land_theirs() -> None:
        table.update(set={"v": "0"}, where="part = 'A'", branch=theirs)
        table.delete("part = 'B'", branch=theirs)

    done = VERBS[verb](table, branch=mine, retry=QUICK, on_phase=once(Phase.HEAD_READ, land_theirs))
    assert (done.attempts, rows_of(table, ref=mine)) == (2, AFTERWARDS[verb])
    assert rows_of(table, ref=theirs) == [{**each, "v": 0} for each in A] + NULLS


@pytest.mark.parametrize("verb", VERBS)
def test_an_unknown_branch_and_a_tag_are_refused(table: frazil.Table, verb: str) -> None:
    table.create_tag("v1")
    assert_refused(table, lambda: VERBS[verb](table, branch="nope"), frazil.InvalidInput, "nope")
    assert_refused(table, lambda: VERBS[verb](table, branch="v1"), frazil.InvalidInput, "tag")


@pytest.mark.parametrize("verb", VERBS)
def test_snapshot_properties_are_kept(table: frazil.Table, verb: str) -> None:
    VERBS[verb](table, snapshot_properties={"job": "nightly"})
    assert summary_of(table)["job"] == "nightly"
    assert_refused(
        table, lambda: VERBS[verb](table, snapshot_properties={"added-records": "1"}), frazil.InvalidInput, "reserved"
    )


@pytest.mark.parametrize("verb", VERBS)
def test_bad_choices_are_refused(table: frazil.Table, verb: str) -> None:
    bad: list[tuple[dict[str, Any], str]] = [
        ({"isolation": "read committed"}, "isolation"),
        ({"retry": 5}, "retry"),
        ({"engine": "dask"}, "engine"),
        ({"on_deleted": "maybe"}, "on_deleted"),
        ({"commit_id": " "}, "commit_id"),
        ({"branch": ""}, "branch"),
    ]
    for how, says in bad:
        assert_refused(table, lambda how=how: VERBS[verb](table, **how), frazil.InvalidInput, says)  # type: ignore[misc]


@pytest.mark.parametrize("verb", VERBS)
def test_a_read_only_lake_refuses(verb: str) -> None:
    with frazil.connect("memory://read-only-verbs") as lake:
        lake.create_namespace("ns", exists_ok=True)
        lake.create_table("ns.t", DDL, partition_by=["part"], keys=["id"], exists_ok=True)
    looking = frazil.connect("memory://read-only-verbs", read_only=True).table("ns.t")
    assert_refused(looking, lambda: VERBS[verb](looking), frazil.InvalidInput, "read_only")


# Nothing to do

IDLE: dict[str, Callable[..., frazil.Commit]] = {
    "append": lambda table, **how: table.append([], **how),
    "overwrite": lambda table, **how: table.overwrite([], where="id = 999", **how),
    "replace_partitions": lambda table, **how: table.replace_partitions([], **how),
    "delete": lambda table, **how: table.delete("id = 999", **how),
    "delete false": lambda table, **how: table.delete("false", **how),
    "delete null": lambda table, **how: table.delete("v = null", **how),
    "update": lambda table, **how: table.update(set={"v": "0"}, where="id = 999", **how),
    "upsert": lambda table, **how: table.upsert([], **how),
    "compact": lambda table, **how: table.compact(**how),
}


@pytest.mark.parametrize("verb", IDLE)
def test_nothing_to_do_makes_no_snapshot_and_keeps_the_id(table: frazil.Table, verb: str) -> None:
    before, head = rows_of(table), table.snapshot()
    assert head is not None
    done = IDLE[verb](table, commit_id="idle")
    assert (done.changed, done.snapshot_id, counts(done)) == (False, head.snapshot_id, (0, 0, 0))
    assert (len(table.history()), rows_of(table)) == (1, before)
    again = IDLE[verb](table, commit_id="idle")
    assert (again.already_committed, again.changed) == (True, False)
    assert files_of(table) == named_files(table)


@pytest.mark.parametrize("verb", IDLE)
def test_nothing_to_do_on_an_empty_table(empty: frazil.Table, verb: str) -> None:
    done = IDLE[verb](empty)
    assert (done.changed, done.snapshot_id, empty.history()) == (False, None, [])


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_on_an_empty_table(empty: frazil.Table, verb: str) -> None:
    done = VERBS[verb](empty)
    brings = {"append": [4], "overwrite": [5], "overwrite in part": [2], "replace_partitions": [6]}
    expected = brings.get(verb, [1, 7] if "upsert" in verb else [])
    assert (ids(empty), done.changed) == (expected, bool(expected))
    assert counts(done) == (len(expected), 0, 0)


# overwrite


def test_overwrite_the_whole_table(table: frazil.Table) -> None:
    done = table.overwrite([row(7, "C", 70)], where="true")
    assert counts(done) == (1, 0, 6)
    assert rows_of(table) == [row(7, "C", 70)]
    table.overwrite([], where="true")
    assert rows_of(table) == []


def test_overwrite_keeps_rows_for_which_the_condition_is_unknown(table: frazil.Table) -> None:
    table.overwrite([row(13, "B", 130)], where="v > 100")
    assert rows_of(table) == [*A, B[1], row(13, "B", 130)]


def test_overwrite_refuses_rows_that_do_not_match(table: frazil.Table) -> None:
    for stray in (row(7, "B", 70), row(7, None, 70)):
        call = lambda stray=stray: table.overwrite([row(6, "A", 60), stray], where="part = 'A'")  # noqa: E731
        assert_refused(table, call, frazil.InvalidInput, "part = 'A'")


def test_overwrite_needs_a_condition(table: frazil.Table) -> None:
    with pytest.raises(TypeError):
        table.overwrite([row(6, "A", 60)])  # type: ignore[call-arg]
    assert_refused(table, lambda: table.overwrite([], where=""), frazil.InvalidInput)


# replace_partitions


def test_replace_partitions_takes_null_for_a_partition(table: frazil.Table) -> None:
    done = table.replace_partitions([row(22, None, 220), row(31, "C", 310)])
    assert counts(done) == (2, 0, 1)
    assert rows_of(table) == [*A, *B, row(22, None, 220), row(31, "C", 310)]


def test_replace_partitions_goes_by_the_transformed_value(lake: frazil.Lake) -> None:
    table = lake.create_table("ns.days", "id bigint, ts timestamp", partition_by=["day(ts)"])
    first, second = dt.datetime(2026, 11, 1, tzinfo=dt.UTC), dt.datetime(2026, 11, 2, tzinfo=dt.UTC)
    late = second - dt.timedelta(seconds=1)
    table.append([{"id": 1, "ts": first}, {"id": 2, "ts": late}, {"id": 3, "ts": second}])
    table.replace_partitions([{"id": 4, "ts": first + dt.timedelta(hours=12)}])
    assert ids(table) == [3, 4]


def test_replace_partitions_refuses_an_unpartitioned_table(lake: frazil.Lake) -> None:
    flat = lake.create_table("ns.flat", DDL)
    flat.append(A)
    assert_refused(flat, lambda: flat.replace_partitions([row(9, "A", 90)]), frazil.InvalidInput, "partition")


# delete and update


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("where", "left"),
    [
        ("v > 10", [1, 12]),
        ("v <> 20", [2, 12]),
        ("not (v > 10)", [2, 3, 11, 12, 21]),
        ("v is null", [1, 2, 3, 11, 21]),
        ("part is null or id = 2", [1, 3, 11, 12]),
        ("part = 'A' and v >= 20", [1, 11, 12, 21]),
        ("id in (1, 12, 999)", [2, 3, 11, 21]),
        ("coalesce(v, 0) = 0", [1, 2, 3, 11, 21]),
        ("PART like 'B%'", [1, 2, 3, 21]),
        ("true", []),
    ],
)
def test_delete_takes_the_rows_for_which_the_condition_is_true(
    table: frazil.Table, mode: ChangeMode, where: str, left: list[int]
) -> None:
    done = table.delete(where, mode=mode)
    assert ids(table) == left
    assert done.rows_deleted == 6 - len(left)


@pytest.mark.parametrize("mode", MODES)
def test_update_computes_from_the_old_row(table: frazil.Table, mode: ChangeMode) -> None:
    done = table.update(set={"v": "v * 2 + id", "part": "concat(part, '!')"}, where="part = 'A'", mode=mode)
    assert counts(done) == (0, 3, 0)
    assert rows_of(table) == [row(1, "A!", 21), row(2, "A!", 42), row(3, "A!", 63), *B, *NULLS]


@pytest.mark.parametrize("mode", MODES)
def test_update_swaps_two_columns(lake: frazil.Lake, mode: ChangeMode) -> None:
    table = lake.create_table("ns.two", "a int, b int")
    table.append([{"a": 1, "b": 2}, {"a": 3, "b": 4}])
    table.update(set={"a": "b", "b": "a"}, where="a = 1", mode=mode)
    assert rows_of(table) == [{"a": 2, "b": 1}, {"a": 3, "b": 4}]


def test_update_takes_values_of_python_and_literals(lake: frazil.Lake) -> None:
    table = lake.create_table("ns.kinds", "id int, s string, d decimal(9,2), t timestamp, f double, n int")
    table.append([{"id": 1, "s": "old"}, {"id": 2, "s": "kept"}])
    at = dt.datetime(2026, 11, 1, tzinfo=dt.UTC)
    table.update(set={"s": frazil.lit("it's n + 1"), "d": Decimal("1.50"), "t": at, "f": 0.5, "n": 7}, where="id = 1")
    assert rows_of(table)[0] == {"id": 1, "s": "it's n + 1", "d": Decimal("1.50"), "t": at, "f": 0.5, "n": 7}
    table.update(set={"s": None, "n": "null"}, where="id = 1")
    found = rows_of(table)
    assert (found[0]["s"], found[0]["n"], found[1]["s"]) == (None, None, "kept")


def test_update_of_every_row(table: frazil.Table) -> None:
    assert table.update(set={"v": "0"}, where="true").rows_updated == 6
    assert {each["v"] for each in rows_of(table)} == {0}


def test_update_refuses_what_it_cannot_do(table: frazil.Table) -> None:
    bad: list[tuple[Callable[[], object], type[Exception], str]] = [
        (lambda: table.update(set={"nope": "1"}, where="id = 1"), frazil.InvalidInput, "nope"),
        (lambda: table.update(set={}, where="id = 1"), frazil.InvalidInput, "set"),
        (lambda: table.update(set={"v": "nope + 1"}, where="id = 1"), frazil.InvalidInput, "nope"),
        (lambda: table.update(set={"v": "v +"}, where="id = 1"), frazil.InvalidInput, "v +"),
        (lambda: table.update(set={"v": "1"}, where="nope = 1"), frazil.InvalidInput, "nope"),
        (lambda: table.update(set={"id": "null"}, where="id = 1"), frazil.FrazilError, "id"),
        (lambda: table.update(set={"v": "1"}, where="id = 1", mode="sideways"), frazil.InvalidInput, "mode"),  # type: ignore[arg-type]
        (lambda: table.update(set="v = 1", where="id = 1"), frazil.InvalidInput, "set"),  # type: ignore[arg-type]
    ]
    for call, error, says in bad:
        assert_refused(table, call, error, says)


def test_delete_refuses_what_it_cannot_do(table: frazil.Table) -> None:
    bad: list[tuple[Callable[[], object], str]] = [
        (lambda: table.delete("nope = 1"), "nope"),
        (lambda: table.delete("id ="), "id ="),
        (lambda: table.delete(""), ""),
        (lambda: table.delete("id + 1"), ""),
        (lambda: table.delete("id = 1", mode="equality"), "mode"),  # type: ignore[arg-type]
        (lambda: table.delete(None), ""),  # type: ignore[arg-type]
    ]
    for call, says in bad:
        assert_refused(table, call, frazil.InvalidInput, says)


# upsert


@pytest.mark.parametrize("mode", UPSERT_MODES)
def test_upsert_replaces_and_inserts_wherever_the_row_was(table: frazil.Table, mode: UpsertMode) -> None:
    table.upsert([row(1, "B", 1), row(12, None, 2), row(21, "A", 3), row(99, "C", 4)], mode=mode)
    assert rows_of(table) == [row(1, "B", 1), *A[1:], B[0], row(12, None, 2), row(21, "A", 3), row(99, "C", 4)]
    table.upsert([row(1, "A", 5)], mode=mode)
    assert rows_of(table, where="id = 1") == [row(1, "A", 5)]


@pytest.mark.parametrize("mode", UPSERT_MODES)
def test_upsert_of_a_key_that_is_there_twice_leaves_one(table: frazil.Table, mode: UpsertMode) -> None:
    table.append([row(1, "B", 1000)])
    table.upsert([row(1, "A", 0)], mode=mode)
    assert rows_of(table, where="id = 1") == [row(1, "A", 0)]


@pytest.mark.parametrize("mode", UPSERT_MODES)
def test_upsert_by_two_keys(lake: frazil.Lake, mode: UpsertMode) -> None:
    table = lake.create_table("ns.two", "a bigint, b string, v double", keys=["a", "b"])
    table.append([{"a": 1, "b": "x", "v": 1.0}, {"a": 1, "b": "y", "v": 2.0}, {"a": 2, "b": "x", "v": 3.0}])
    table.upsert([{"a": 1, "b": "y", "v": -2.0}, {"a": 2, "b": "y", "v": 4.0}], mode=mode)
    assert [each["v"] for each in rows_of(table)] == [1.0, -2.0, 3.0, 4.0]


@pytest.mark.parametrize("mode", UPSERT_MODES)
def test_upsert_refuses_batches_that_cannot_be(table: frazil.Table, lake: frazil.Lake, mode: UpsertMode) -> None:
    twice = [row(1, "A", 1), row(1, "B", 2)]
    assert_refused(table, lambda: table.upsert(twice, mode=mode), frazil.InvalidInput, "id")
    assert_refused(table, lambda: table.upsert([{"part": "A", "v": 1}], mode=mode), frazil.InvalidInput, "id")
    nothing = {"id": None, "part": "A", "v": 1}
    assert_refused(table, lambda: table.upsert([nothing], mode=mode), frazil.InvalidInput, "id")
    keyless = lake.create_table("ns.keyless", DDL)
    keyless.append(A)
    assert_refused(keyless, lambda: keyless.upsert([row(1, "A", 1)], mode=mode), frazil.InvalidInput, "keys")


def test_upsert_refuses_an_unknown_mode(table: frazil.Table) -> None:
    call = lambda: table.upsert([row(1, "A", 1)], mode="magic")  # type: ignore[arg-type]  # noqa: E731
    assert_refused(table, call, frazil.InvalidInput, "magic")


# compact


def test_compact_puts_small_files_together(empty: frazil.Table) -> None:
    for each in (*A, *B):
        empty.append([each])
    empty.delete("id = 2", mode="merge-on-read")
    empty.upsert([row(3, "A", 31)], mode="equality")
    before = rows_of(empty)
    done = empty.compact()
    assert rows_of(empty) == before == [A[0], row(3, "A", 31), *B]
    assert sorted((each.partition["part"], each.rows) for each in empty.files()) == [("A", 2), ("B", 2)]
    assert (done.changed, counts(done), done.files_added) == (True, (0, 0, 0), 2)
    snapshot = empty.snapshot()
    assert snapshot is not None
    assert snapshot.operation == "replace"
    assert not empty.compact().changed


def test_compact_of_a_part(empty: frazil.Table) -> None:
    for each in (*A, *B):
        empty.append([each])
    empty.compact(where="part = 'A'")
    assert sorted((each.partition["part"], each.rows) for each in empty.files()) == [("A", 3), ("B", 1), ("B", 1)]
    assert rows_of(empty) == [*A, *B]


# Tables that have been through something


def test_a_table_with_a_dot_in_its_name(lake: frazil.Lake) -> None:
    table = lake.create_table("ns.`a.b`", DDL, partition_by=["part"], keys=["id"])
    table.append([*A, *B, *NULLS])
    for verb, call in VERBS.items():
        call(table, branch="main", snapshot_properties={"verb": verb})
    assert lake.table(("ns", "a.b")).scan().count() == table.scan().count() > 0
    with lake.transaction() as tx:
        tx.table("ns.`a.b`").delete("true")
    assert rows_of(table) == []


@pytest.mark.parametrize("mode", MODES)
def test_columns_that_came_and_went_between_files(empty: frazil.Table, mode: ChangeMode) -> None:
    empty.append(A)
    empty.add_column("extra", "int")
    empty.append([{**row(4, "A", 40), "extra": 4}])
    empty.rename_column("v", "value")
    empty.append([{"id": 5, "part": "A", "value": 50, "extra": 5}])
    empty.update(set={"extra": "id * 10"}, where="extra is null and value >= 20", mode=mode)
    empty.delete("extra = 5 or value = 10", mode=mode)
    empty.overwrite([{"id": 6, "part": "A", "value": 60, "extra": 6}], where="id = 6 or id = 4")
    expected = [(2, 20, 20), (3, 30, 30), (6, 60, 6)]
    assert [(each["id"], each["value"], each["extra"]) for each in rows_of(empty)] == expected
    empty.compact()
    assert [(each["id"], each["value"], each["extra"]) for each in rows_of(empty)] == expected
    empty.drop_column("extra")
    empty.update(set={"value": "value + 1"}, where="true", mode=mode)
    assert [(each["id"], each["value"]) for each in rows_of(empty)] == [(2, 21), (3, 31), (6, 61)]


@pytest.mark.parametrize("mode", MODES)
def test_rows_that_equality_deletes_took_out_stay_out(table: frazil.Table, mode: ChangeMode) -> None:
    table.upsert([row(1, "A", -1), row(11, "B", -11)], mode="equality")
    assert table.delete("v > 0 and part = 'A'", mode=mode).rows_deleted == 2
    assert rows_of(table) == [row(1, "A", -1), row(11, "B", -11), B[1], *NULLS]
    assert table.update(set={"v": "v - 1"}, where="id in (1, 2, 11)", mode=mode).rows_updated == 2
    assert rows_of(table) == [row(1, "A", -2), row(11, "B", -12), B[1], *NULLS]
    table.overwrite([row(12, "B", 0)], where="id = 12")
    table.upsert([row(12, "A", 1)], mode="position")
    assert rows_of(table) == [row(1, "A", -2), row(11, "B", -12), row(12, "A", 1), *NULLS]
    table.compact()
    assert rows_of(table) == [row(1, "A", -2), row(11, "B", -12), row(12, "A", 1), *NULLS]


@pytest.mark.parametrize("mode", MODES)
def test_deletes_on_deletes(table: frazil.Table, mode: ChangeMode) -> None:
    for each in (1, 2, 3):
        assert table.delete(f"id = {each}", mode="merge-on-read").rows_deleted == 1
        assert table.delete(f"id = {each}", mode=mode).changed is False
    assert ids(table) == [11, 12, 21]


@pytest.mark.parametrize("mode", MODES)
def test_files_of_several_partition_specs(table: frazil.Table, mode: ChangeMode) -> None:
    table.set_partitioning(["truncate(10, id)"])
    table.append([row(4, "A", 40), row(13, "B", 130)])
    table.delete("part = 'A' and v >= 30", mode=mode)
    table.update(set={"v": "0"}, where="part = 'B'", mode=mode)
    assert rows_of(table) == [*A[:2], row(11, "B", 0), row(12, "B", 0), row(13, "B", 0), *NULLS]
    table.compact()
    assert rows_of(table) == [*A[:2], row(11, "B", 0), row(12, "B", 0), row(13, "B", 0), *NULLS]


def test_a_sorted_table_stays_sorted_within_files(lake: frazil.Lake) -> None:
    table = lake.create_table("ns.sorted", DDL, sort_by=["v desc"])
    table.append([*A, B[0]])
    table.update(set={"v": "v + 5"}, where="id >= 2", mode="copy-on-write")
    assert rows_of(table) == [A[0], row(2, "A", 25), row(3, "A", 35), row(11, "B", 115)]
    table.overwrite([row(7, "A", 1), row(8, "A", 2)], where="true")
    assert [each["v"] for each in table.scan().to_arrow().to_pylist()] == [2, 1]


@pytest.mark.parametrize("level", ["serializable", "snapshot"])
def test_the_isolation_level_comes_from_the_tables_properties(lake: frazil.Lake, level: str) -> None:
    properties = {f"write.{verb}.isolation-level": level for verb in ("delete", "update", "merge")}
    table = lake.create_table("ns.levels", DDL, keys=["id"], properties=properties)
    table.append(A)

    def after_theirs() -> dict[str, Any]:
        theirs = once(Phase.HEAD_READ, lambda: table.append([row(4, "A", 40)]))
        return {"retry": QUICK, "on_phase": theirs, "on_conflict": "abort"}

    verbs: list[Callable[..., frazil.Commit]] = [
        lambda **how: table.delete("part = 'A'", **how),
        lambda **how: table.update(set={"v": "0"}, where="part = 'A'", **how),
    ]
    for verb in verbs:
        if level == "snapshot":
            verb(**after_theirs())
        else:
            with pytest.raises(frazil.ConflictError):
                verb(**after_theirs())
            verb(**after_theirs(), isolation="snapshot")
        table.overwrite(A, where="true")


def test_a_million_rows(lake: frazil.Lake) -> None:
    count = 1_000_000
    numbers = pa.array(range(count), pa.int64())
    parts = pa.DictionaryArray.from_arrays(
        pc.cast(pc.bit_wise_and(numbers, 3), pa.int32()), pa.array(["A", "B", "C", "D"])
    )
    table = lake.create_table("ns.big", DDL, partition_by=["part"], keys=["id"])
    table.append(pa.table({"id": numbers, "part": parts.cast(pa.string()), "v": numbers}))
    assert table.delete("part = 'D'").rows_deleted == count // 4
    assert table.delete("v >= 10 and v < 1000", mode="merge-on-read").rows_deleted == 742
    assert table.update(set={"v": "v + 1"}, where="id >= 500000", mode="copy-on-write").rows_updated == 375_000
    first = pa.array(range(0, 100_000, 4), pa.int64())
    table.upsert(pa.table({"id": first, "part": pa.array(["A"] * len(first)), "v": first}), mode="equality")
    table.upsert(pa.table({"id": first, "part": pa.array(["B"] * len(first)), "v": first}), mode="position")
    # Of the keys below 1000 the upsert brings those back that the delete took: every fourth from 12 to 996.
    left = count * 3 // 4 - 742 + 247
    assert table.scan().count() == left
    table.compact()
    found = table.scan(columns=["id", "v"]).to_arrow()
    assert found.num_rows == left
    assert pc.count_distinct(found["id"]).as_py() == left
    assert pc.sum(pc.subtract(found["v"], found["id"])).as_py() == 375_000
