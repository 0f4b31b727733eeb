"""Rule P43: a delete that another engine's rewrite dropped, and that still applies, is put back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

import frazil
from frazil.catalog.base import Proposal
from frazil.commit.context import Phase
from frazil.commit.loop import commit
from frazil.commit.operations import Identity
from frazil.commit.snapshot_layout import add_snapshot
from frazil.errors import CommitFailed
from frazil.format.manifests import (
    DATA_MANIFEST,
    DELETE_MANIFEST,
    read_manifest,
    read_manifest_list,
    write_manifest,
    write_manifest_list,
)
from frazil.model import Entry, Status
from frazil.services.resurrection import RESTORED, returned, write_back

QUICK = frazil.Retry(tries=6, base_ms=0)


@pytest.fixture
def lake() -> Iterator[frazil.Lake]:
    with frazil.connect("memory://") as found:
        found.create_namespace("s")
        yield found


@pytest.fixture
def table(lake: frazil.Lake) -> frazil.Table:
    made = lake.create_table("s.t", "id bigint not null, v bigint", keys=["id"])
    made.append(rows(range(10)))
    return made


def rows(ids: Any, v: int | None = None) -> list[dict[str, int]]:
    return [{"id": each, "v": each if v is None else v} for each in ids]


def content(table: Any) -> list[tuple[int, int]]:
    return sorted((each["id"], each["v"]) for each in table.scan().to_arrow().to_pylist())


def foreign_rewrite(table: frazil.Table, *, age: int, drops: bool = True, operation: str = "replace") -> None:
    """What Iceberg Java 1.12 does (#10312): a rewrite that read the snapshot with the sequence number ``age``, and that
    drops the delete files of the head. Its output has the rows of the first data file, under another path.
    """
    lake, storage = table._lake, table._lake.storage
    head = lake.catalog.load(table._source.ident)
    metadata: Any = head.metadata
    parent = metadata.head_snapshot()
    listed = read_manifest_list(storage, parent.manifest_list)
    data = [entry for each in listed if each.content == DATA_MANIFEST for entry in read_manifest(storage, each)]
    first, *others = sorted(data, key=lambda entry: entry.sequence_number or 0)
    copy = f"{metadata.location}/data/java-{metadata.last_sequence_number}.parquet"
    storage.write(copy, storage.read(first.file.file_path))
    number, snapshot_id = metadata.last_sequence_number + 1, 10_000 + metadata.last_sequence_number
    output = Entry(Status.ADDED, replace(first.file, file_path=copy), None, age)
    left = [replace(entry, status=Status.EXISTING) for entry in others]
    made = write_manifest(
        storage,
        f"{metadata.metadata_folder}/java-{number}.avro",
        [output, *left],
        spec=metadata.spec(),
        schema=metadata.schema(),
    ).named_by(snapshot_id, number)
    gone = sum(each.content == DELETE_MANIFEST for each in listed) if drops else 0
    kept = [] if drops else [each for each in listed if each.content == DELETE_MANIFEST]
    path = f"{metadata.metadata_folder}/snap-java-{number}.avro"
    write_manifest_list(
        storage,
        path,
        [made, *kept],
        snapshot_id=snapshot_id,
        parent_snapshot_id=parent.snapshot_id,
        sequence_number=number,
    )
    snapshot = {
        "snapshot-id": snapshot_id,
        "parent-snapshot-id": parent.snapshot_id,
        "sequence-number": number,
        "timestamp-ms": head.now_ms,
        "manifest-list": path,
        "summary": {
            "operation": operation,
            "engine-name": "spark",
            "added-data-files": "1",
            "deleted-data-files": "1",
            "removed-delete-files": str(gone),
        },
        "schema-id": metadata.current_schema_id,
    }
    proposal = Proposal(tuple(add_snapshot(metadata, "main", snapshot)), (), None, (), None, None)
    lake.catalog.swap(lake.catalog.prepare(table._source.ident, head, proposal))


AFTER = sorted([*((each, each) for each in range(10) if each != 3), (3, 30)])
BACK = sorted([*AFTER, (3, 3)])


def broken(table: frazil.Table) -> None:
    """An upsert, and a rewrite that began before it and drops its delete."""
    table.upsert(rows([3], v=30), mode="equality")
    assert content(table) == AFTER
    foreign_rewrite(table, age=1)
    assert content(table) == BACK, "the row is back"


@pytest.mark.parametrize("has_expired", [False, True])
def test_p42_a_delete_that_an_expiry_is_going_to_delete_is_not_put_back(
    lake: frazil.Lake, table: frazil.Table, *, has_expired: bool
) -> None:
    """The guard has found it, and the snapshot that names the file expires before the guard commits."""
    broken(table)
    storage, metadata = lake.storage, lake.catalog.load(table._source.ident).metadata
    back = write_back(metadata, "main", returned(storage, metadata, "main"))
    if has_expired:
        table.expire_snapshots("2100-01-01T00:00:00Z", 1, delete_files=False)
    context, identity = lake.commit_context(table._source.ident), Identity("back", "", given=False)
    if has_expired:
        with pytest.raises(CommitFailed, match="may be deleted"):
            commit(context, [back], identity, QUICK)
        assert content(table) == BACK
    else:
        commit(context, [back], identity, QUICK)
        assert content(table) == AFTER
    table.expire_snapshots("2100-01-01T00:00:00Z", 1)
    table.append(rows([100]))
    assert content(table) == [*(BACK if has_expired else AFTER), (100, 100)]


def restored(table: frazil.Table) -> list[str]:
    return [each.summary[RESTORED] for each in table.history() if RESTORED in each.summary]


VERBS: dict[str, tuple[Callable[..., Any], list[tuple[int, int]]]] = {
    "append": (lambda t, **how: t.append(rows([100]), **how), [*AFTER, (100, 100)]),
    "upsert": (lambda t, **how: t.upsert(rows([100]), mode="equality", **how), [*AFTER, (100, 100)]),
    "update by copying": (
        lambda t, **how: t.update({"v": "v + 1"}, "id = 3", mode="copy-on-write", **how),
        sorted([*(each for each in AFTER if each[0] != 3), (3, 31)]),
    ),
    "update by position": (
        lambda t, **how: t.update({"v": "v + 1"}, "id in (2, 3)", mode="merge-on-read", **how),
        sorted([*(each for each in AFTER if each[0] not in (2, 3)), (2, 3), (3, 31)]),
    ),
    "delete": (lambda t, **how: t.delete("id = 2", **how), [each for each in AFTER if each[0] != 2]),
    "compact": (lambda t, **how: t.compact(**how), AFTER),
    "cluster": (lambda t, **how: t.compact(strategy="hilbert", by=["id", "v"], **how), AFTER),
    "resolve": (lambda t, **how: t.resolve_deletes(**how), AFTER),
}


@pytest.mark.parametrize("verb", VERBS)
def test_p43_the_next_statement_puts_the_delete_back(table: frazil.Table, verb: str) -> None:
    broken(table)
    call, expected = VERBS[verb]
    call(table)
    assert content(table) == expected
    assert restored(table) == ["1"]
    table.compact()
    assert content(table) == expected


@pytest.mark.parametrize("verb", VERBS)
def test_p43_also_if_the_rewrite_lands_while_a_statement_runs(table: frazil.Table, verb: str) -> None:
    table.upsert(rows([3], v=30), mode="equality")
    left = [lambda: foreign_rewrite(table, age=1)]

    def on_phase(phase: Phase, _attempt: int) -> None:
        if phase is Phase.HEAD_READ and left:
            left.pop()()

    call, expected = VERBS[verb]
    call(table, retry=QUICK, on_phase=on_phase)
    table.append(rows([200]))
    assert content(table) == sorted([*expected, (200, 200)])


@pytest.mark.parametrize("verb", VERBS)
def test_p43_the_delete_is_back_before_the_statement_is_evaluated(
    lake: frazil.Lake, table: frazil.Table, verb: str
) -> None:
    """Another writer commits while it runs."""
    broken(table)
    call, expected = VERBS[verb]
    left = [lambda: lake.table("s.t").append(rows([200]))]
    guard_has_run: list[bool] = []

    def on_phase(phase: Phase, _attempt: int) -> None:
        if phase is Phase.HEAD_READ and left:
            guard_has_run.append(bool(restored(table)))
            left.pop()()

    call(table, retry=QUICK, on_phase=on_phase)
    assert guard_has_run == [True], "before the statement was evaluated"
    assert content(table) == sorted([*expected, (200, 200)])


def test_p43_rows_seen_in_a_transaction_are_a_conflict(lake: frazil.Lake, table: frazil.Table) -> None:
    broken(table)
    tx = lake.transaction(isolation="snapshot")
    tx.table("s.t").update({"v": "v + 1"}, "id = 2", mode="copy-on-write")
    table.append(rows([100]))
    assert restored(table) == ["1"]
    with pytest.raises(frazil.ConflictError, match="put back"):
        tx.commit()
    assert content(table) == sorted([*AFTER, (100, 100)])


def test_p43_the_delete_has_its_own_sequence_number(table: frazil.Table) -> None:
    broken(table)
    table.upsert(rows([3], v=31), mode="equality")
    assert dict(content(table))[3] == 31
    numbers = {ref.sequence_number for task in table.scan().tasks() for ref in task.deletes}
    # The upsert's, which the rewrite dropped, and that of the second upsert, after the rewrite and the repair.
    assert numbers == {2, 5}


def test_p43_what_was_dropped_rightly_stays_dropped(table: frazil.Table) -> None:
    """The output is as young as the delete, and the delete was applied to it: here no row matches."""
    table.delete("id = 5", mode="merge-on-read")
    table.compact()
    table.upsert([{"id": 5, "v": 1}], mode="equality")
    table.delete("id = 5")
    foreign_rewrite(table, age=1)
    table.append(rows([100]))
    assert restored(table) == []
    table.upsert(rows([3], v=30), mode="equality")
    foreign_rewrite(table, age=8)
    table.append(rows([101]))
    assert restored(table) == [], "an equality delete reaches older files only"


def test_p43_a_rewrite_that_drops_nothing_is_left_alone(table: frazil.Table) -> None:
    table.upsert(rows([3], v=30), mode="equality")
    foreign_rewrite(table, age=1, drops=False)
    assert content(table) == AFTER
    table.append(rows([100]))
    assert restored(table) == []


def test_p43_only_rewrites_are_examined(table: frazil.Table) -> None:
    """An overwrite may mean that the rows are to be there."""
    table.upsert(rows([3], v=30), mode="equality")
    foreign_rewrite(table, age=1, operation="overwrite")
    table.append(rows([100]))
    assert restored(table) == []


def test_p43_two_rewrites_one_after_the_other(table: frazil.Table) -> None:
    table.upsert(rows([3], v=30), mode="equality")
    foreign_rewrite(table, age=1)
    table.append(rows([100]))
    table.upsert(rows([4], v=40), mode="equality")
    foreign_rewrite(table, age=1)
    table.append(rows([101]))
    found = dict(content(table))
    assert (len(content(table)), found[3], found[4]) == (12, 30, 40)


def test_p43_a_dry_run_and_a_reader_change_nothing(table: frazil.Table) -> None:
    broken(table)
    count = len(table.history())
    table.delete("id = 2", dry_run=True)
    content(table)
    assert len(table.history()) == count


def test_what_came_back_can_be_named(table: frazil.Table) -> None:
    broken(table)
    metadata = table._metadata()
    (found,) = returned(table._lake.storage, metadata, "main")
    assert (found.snapshot.summary["engine-name"], sum(found.rows.values())) == ("spark", 1)
    assert found.entry.sequence_number == 2
    table.append(rows([100]))
    assert returned(table._lake.storage, table._metadata(), "main") == ()
