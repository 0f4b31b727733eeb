"""rewrite_manifests(), and manifests that a write rolls at the target size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import frazil
from frazil.commit.context import Phase
from frazil.format.manifests import read_manifest, read_manifest_list
from frazil.model import Entry, Manifest, Status
from surface.matrix import files_of, named_files

QUICK = frazil.Retry(tries=6, base_ms=0)
DDL = "id bigint not null, p string, v bigint"


@pytest.fixture
def lake() -> Iterator[frazil.Lake]:
    with frazil.connect("memory://") as found:
        found.create_namespace("s")
        yield found


@pytest.fixture
def table(lake: frazil.Lake) -> frazil.Table:
    """Six appends to three partitions: each manifest has files of all of them."""
    made = lake.create_table("s.t", DDL, partition_by=["p"], keys=["id"])
    for first in range(0, 36, 6):
        made.append([row(each) for each in range(first, first + 6)])
    return made


def row(number: int) -> dict[str, Any]:
    return {"id": number, "p": "abc"[number % 3], "v": number}


def manifests(table: frazil.Table, content: int = 0) -> list[Manifest]:
    snapshot: Any = table.snapshot()
    found = read_manifest_list(table._lake.storage, snapshot.manifest_list)
    live = [each for each in found if each.added_files_count or each.existing_files_count]
    return [each for each in live if each.content == content]


def entries(table: frazil.Table) -> dict[str, tuple[int | None, ...]]:
    """File → the snapshot and the sequence numbers that it was added with."""
    found = [entry for each in manifests(table) for entry in read_manifest(table._lake.storage, each)]
    return {each.file.file_path: _identity(each) for each in found}


def _identity(entry: Entry) -> tuple[int | None, ...]:
    return entry.snapshot_id, entry.sequence_number, entry.file_sequence_number


def partitions(table: frazil.Table) -> list[set[str]]:
    storage = table._lake.storage
    return [{entry.file.partition[0] for entry in read_manifest(storage, each)} for each in manifests(table)]


def ids(table: frazil.Table) -> list[int]:
    return sorted(each["id"] for each in table.scan().to_arrow().to_pylist())


def at_head(act: Callable[[], object]) -> Callable[[Phase, int], None]:
    left = [act]

    def on_phase(found: Phase, _attempt: int) -> None:
        if found is Phase.HEAD_READ and left:
            left.pop()()

    return on_phase


def small(table: frazil.Table) -> None:
    """A third of a manifest with all entries."""
    table.rewrite_manifests()
    (one,) = manifests(table)
    table.set_properties({"commit.manifest.target-size-bytes": str(one.manifest_length // 3 + 1)})


def test_manifests_are_clustered_by_partition(table: frazil.Table) -> None:
    before = entries(table)
    assert (len(manifests(table)), len(table.scan("p = 'a'").tasks())) == (6, 6)
    done = table.rewrite_manifests()
    assert done.changed
    assert (done.files_added, done.files_removed) == (0, 0)
    assert len(manifests(table)) == 1
    assert entries(table) == before
    assert not table.rewrite_manifests().changed
    small(table)
    done = table.rewrite_manifests()
    assert partitions(table) == [{"a"}, {"b"}, {"c"}]
    assert entries(table) == before
    assert not table.rewrite_manifests().changed, "they are clustered already"
    summary = table.history()[-1].summary
    assert (summary["manifests-replaced"], summary["manifests-created"]) == ("1", "3")
    assert (table.history()[-1].operation, ids(table)) == ("replace", list(range(36)))
    assert files_of(table) == named_files(table)


def test_p14_the_entries_are_existing_with_explicit_numbers(table: frazil.Table) -> None:
    table.rewrite_manifests()
    (one,) = manifests(table)
    found = read_manifest(table._lake.storage, one, live_only=False)
    assert {each.status for each in found} == {Status.EXISTING}
    assert {each.sequence_number for each in found} == set(range(1, 7))
    assert (one.min_sequence_number, one.sequence_number) == (1, 7)
    assert (one.existing_files_count, one.added_files_count) == (18, 0)


def test_delete_manifests_are_rewritten_as_well(table: frazil.Table) -> None:
    for each in (0, 7, 14):
        table.delete(f"id = {each}", mode="merge-on-read")
    assert len(manifests(table, content=1)) == 3
    table.rewrite_manifests()
    assert (len(manifests(table)), len(manifests(table, content=1))) == (1, 1)
    assert ids(table) == [each for each in range(36) if each not in (0, 7, 14)]


def test_the_fields_to_cluster_by_and_the_spec_are_chosen(lake: frazil.Lake) -> None:
    table = lake.create_table("s.two", DDL, partition_by=["p", "truncate(2, id)"])
    for _ in range(2):
        table.append([row(each) for each in range(6)])
    with pytest.raises(frazil.InvalidInput, match="no field 'nope'"):
        table.rewrite_manifests(sort_by=["nope"])
    with pytest.raises(frazil.InvalidInput, match="no partition spec 7"):
        table.rewrite_manifests(spec_id=7)
    assert table.rewrite_manifests(sort_by=["id_trunc"]).changed
    storage = table._lake.storage
    (found,) = [[each.file.partition[1] for each in read_manifest(storage, one)] for one in manifests(table)]
    assert found == sorted(found)
    table.set_partitioning([])
    for _ in range(2):
        table.append([row(9)])
    table.rewrite_manifests(spec_id=table.spec.spec_id)
    assert sorted(each.partition_spec_id for each in manifests(table)) == [0, 1]


CHANGES: dict[str, Callable[..., object]] = {
    "append": lambda t, **how: t.append([row(100)], **how),
    "delete of files": lambda t, **how: t.delete("p = 'a'", **how),
    "delete by copying": lambda t, **how: t.delete("id = 3", mode="copy-on-write", **how),
    "delete by position": lambda t, **how: t.delete("id = 3", mode="merge-on-read", **how),
    "upsert": lambda t, **how: t.upsert([row(3)], **how),
    "compaction": lambda t, **how: t.compact(**how),
    "the same": lambda t, **how: t.rewrite_manifests(**how),
}
LEFT: dict[str, list[int]] = {
    "append": [*range(36), 100],
    "delete of files": [each for each in range(36) if each % 3],
    "delete by copying": [each for each in range(36) if each != 3],
    "delete by position": [each for each in range(36) if each != 3],
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_lands_meanwhile_stays(table: frazil.Table, change: str) -> None:
    table.rewrite_manifests(retry=QUICK, on_phase=at_head(lambda: CHANGES[change](table)))
    assert ids(table) == LEFT.get(change, list(range(36)))
    assert files_of(table) == named_files(table)
    table.rewrite_manifests()
    assert len(manifests(table)) == 1


@pytest.mark.parametrize("change", CHANGES)
def test_what_began_before_lands_after(table: frazil.Table, change: str) -> None:
    CHANGES[change](table, retry=QUICK, on_phase=at_head(table.rewrite_manifests))
    assert ids(table) == LEFT.get(change, list(range(36)))
    assert files_of(table) == named_files(table)


def test_appends_do_not_conflict_with_it(table: frazil.Table) -> None:
    done = table.rewrite_manifests(retry=QUICK, on_phase=at_head(lambda: table.append([row(100)])))
    assert (done.attempts, done.redone) == (2, 0)
    # The append's own manifest is beside the new one.
    assert [each.existing_files_count for each in manifests(table)] == [0, 18]


def test_a_manifest_that_was_replaced_meanwhile_is_planned_again(table: frazil.Table) -> None:
    late = at_head(lambda: table.delete("id in (0, 3)", mode="copy-on-write"))
    done = table.rewrite_manifests(retry=QUICK, on_phase=late)
    assert done.redone == 1
    assert len(manifests(table)) == 1
    assert files_of(table) == named_files(table)


# Rolled when they are written


def test_a_write_rolls_its_manifests_at_the_target_size(lake: frazil.Lake) -> None:
    properties = {"commit.manifest.target-size-bytes": "4000", "commit.manifest-merge.enabled": "false"}
    table = lake.create_table("s.wide", DDL, partition_by=["bucket(64, id)"], properties=properties)
    table.append([row(each) for each in range(400)])
    found = manifests(table)
    assert len(found) > 1
    assert max(each.manifest_length for each in found) < 8000
    assert sum(each.added_files_count for each in found) == 64
    assert ids(table) == list(range(400))
    table.delete("id = 7", mode="merge-on-read")
    assert ids(table) == [each for each in range(400) if each != 7]
    assert files_of(table) == named_files(table)
