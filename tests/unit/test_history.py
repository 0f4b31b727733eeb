"""What happened between a base and a head: from memory, from summaries, from manifests."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from frazil.commit.history import History, change_of, history
from frazil.commit.operations import Base
from frazil.errors import CorruptMetadata, Unsupported
from frazil.format.manifests import DATA_MANIFEST, DELETE_MANIFEST, read_manifest, write_manifest, write_manifest_list
from frazil.format.metadata import TableMetadata
from frazil.format.storage import Storage
from frazil.model import Change, Content, DataFile, Entry, Manifest, Predicate, Snapshot, Status
from unit.samples import metadata

FOLDER = "memory://w/t/metadata"


class CountingStorage(Storage):
    """Remembers what was read."""

    def __init__(self) -> None:
        super().__init__()
        self.paths: list[str] = []

    def read(self, path: str) -> bytes:
        self.paths.append(path.rsplit("/", 1)[-1])
        return super().read(path)

    def forget(self) -> None:
        """As a new process would find it."""
        self.parsed = type(self.parsed)()
        self.paths.clear()


@dataclass
class Table:
    """A table's history, written snapshot by snapshot as a writer would: real manifests, no data files."""

    storage: CountingStorage = field(default_factory=CountingStorage)
    snapshots: dict[int, dict[str, Any]] = field(default_factory=dict)
    manifests: dict[int, list[Manifest]] = field(default_factory=dict)
    refs: dict[str, int] = field(default_factory=dict)
    written: int = 0

    def commit(
        self,
        *added: DataFile | tuple[DataFile, int],
        remove: Iterable[str] = (),
        operation: str = "append",
        branch: str = "main",
        merge: bool = False,
        counts: bool = True,
        forgetful: bool = False,
        summary: Mapping[str, str] | None = None,
    ) -> int:
        """One snapshot. A file may come with an explicit data sequence number."""
        number = max((each["sequence-number"] for each in self.snapshots.values()), default=0) + 1
        snapshot_id = 100 + number
        parent = self.refs.get(branch)
        gone = set(remove)
        before = self.manifests[parent] if parent is not None else []
        new: list[Manifest] = []
        fresh = [each if isinstance(each, tuple) else (each, None) for each in added]
        for content in (DATA_MANIFEST, DELETE_MANIFEST):
            mine = [
                Entry(Status.ADDED, file, sequence_number=age)
                for file, age in fresh
                if (file.content != Content.DATA) == (content == DELETE_MANIFEST)
            ]
            if mine and not (merge and content == DATA_MANIFEST):
                new.append(self.manifest(mine, snapshot_id, number, content))
        kept: list[Manifest] = []
        removed = 0
        for manifest in before:
            entries = read_manifest(self.storage, manifest)
            if not entries:
                continue
            hit = [each for each in entries if each.file.file_path in gone]
            removed += len(hit)
            if not hit:
                kept.append(manifest)
                continue
            rest = [replace(each, status=Status.EXISTING) for each in entries if each not in hit]
            dead = [] if forgetful else [replace(each, status=Status.DELETED, snapshot_id=None) for each in hit]
            if rest or dead:
                new.append(self.manifest([*rest, *dead], snapshot_id, number, manifest.content))
        if merge:
            entries = [Entry(Status.ADDED, file, sequence_number=age) for file, age in fresh]
            for manifest in [each for each in kept if each.content == DATA_MANIFEST]:
                kept.remove(manifest)
                entries += [replace(each, status=Status.EXISTING) for each in read_manifest(self.storage, manifest)]
            new.append(self.manifest(entries, snapshot_id, number, DATA_MANIFEST))
        summary = dict(summary or {})
        if counts:
            deletes = sum(file.content != Content.DATA for file, _ in fresh)
            summary |= {"added-data-files": str(len(fresh) - deletes)}
            summary |= {"added-delete-files": str(deletes)} if deletes else {}
            summary |= {"deleted-data-files": str(removed)} if removed else {}
        listed = f"{FOLDER}/snap-{snapshot_id}.avro"
        self.manifests[snapshot_id] = [*new, *kept]
        write_manifest_list(
            self.storage, listed, self.manifests[snapshot_id],
            snapshot_id=snapshot_id, parent_snapshot_id=parent, sequence_number=number,
        )  # fmt: skip
        self.snapshots[snapshot_id] = {
            "snapshot-id": snapshot_id,
            "sequence-number": number,
            "timestamp-ms": 1_000 * number,
            "manifest-list": listed,
            "summary": {"operation": operation, **summary},
            "schema-id": 0,
            **({} if parent is None else {"parent-snapshot-id": parent}),
        }
        self.refs[branch] = snapshot_id
        self.storage.forget()
        return snapshot_id

    def manifest(self, entries: Sequence[Entry], snapshot_id: int, number: int, content: int) -> Manifest:
        self.written += 1
        head = metadata()
        new = write_manifest(
            self.storage, f"{FOLDER}/m{self.written}.avro", entries,
            spec=head.spec(), schema=head.schema(), content=content,
        )  # fmt: skip
        return new.named_by(snapshot_id, number)

    def head(self, *, without: Iterable[int] = ()) -> TableMetadata:
        kept = [each for key, each in self.snapshots.items() if key not in set(without)]
        refs = {name: {"snapshot-id": each, "type": "branch"} for name, each in self.refs.items()}
        return metadata(snapshots=kept, refs=refs, last_sequence_number=len(self.snapshots))

    def snapshot(self, snapshot_id: int) -> Snapshot:
        found = self.head().snapshot(snapshot_id)
        assert found is not None
        return found

    def base(self, snapshot_id: int | None) -> Base:
        return Base.of(None if snapshot_id is None else self.snapshot(snapshot_id))

    def since(self, base: int | None, summaries: Any = None, head: TableMetadata | None = None) -> History:
        return history(self.storage, head or self.head(), "main", self.base(base), summaries or Kept())


class Kept:
    """What a SQL catalog would answer."""

    def __init__(self, *changes: Change, **predicates: Predicate) -> None:
        self._found: dict[int, Change | Predicate] = {each.snapshot_id: each for each in changes}
        self._found |= {int(key.removeprefix("of_")): each for key, each in predicates.items()}
        self.asked: list[tuple[int, int]] = []

    def __call__(self, after: int, up_to: int) -> Mapping[int, Change | Predicate]:
        self.asked.append((after, up_to))
        return self._found


@pytest.fixture
def table() -> Table:
    return Table()


def data(name: str, **changes: Any) -> DataFile:
    return replace(DataFile(name, 10, 100, value_counts={1: 10}, lower_bounds={1: b"\x01" * 8}), **changes)


def positions(name: str, of: str) -> DataFile:
    return data(name, content=Content.POSITION_DELETES, referenced_data_file=of)


def names(files: Iterable[DataFile | Entry]) -> list[str]:
    return [(each.file if isinstance(each, Entry) else each).file_path for each in files]


def told(change: Change) -> dict[str, list[str]]:
    parts: dict[str, Sequence[DataFile | Entry]] = {
        "added": change.added,
        "removed": change.removed,
        "deletes": change.deletes,
        "removed_deletes": change.removed_deletes,
    }
    return {key: names(files) for key, files in parts.items() if files}


# One snapshot


def test_an_appends_files_come_with_their_age_and_statistics(table: Table) -> None:
    table.commit(data("a"))
    second = table.commit(data("b"), data("c"))
    change = change_of(table.storage, table.head(), table.snapshot(second))
    assert (change.snapshot_id, change.sequence_number, change.operation) == (second, 2, "append")
    assert told(change) == {"added": ["b", "c"]}
    assert [(e.snapshot_id, e.sequence_number, e.file_sequence_number) for e in change.added] == [(second, 2, 2)] * 2
    assert change.added[0].file.lower_bounds == {1: b"\x01" * 8}
    assert (change.is_delete, change.lineage_path, change.predicate) == (False, None, None)


def test_existing_files_of_a_merged_or_rewritten_manifest_are_no_change(table: Table) -> None:
    table.commit(data("a"), data("b"))
    merged = table.commit(data("c"), merge=True)
    cut = table.commit(remove=["a"], operation="delete")
    assert told(change_of(table.storage, table.head(), table.snapshot(merged))) == {"added": ["c"]}
    change = change_of(table.storage, table.head(), table.snapshot(cut))
    assert told(change) == {"removed": ["a"]}
    assert change.is_delete


def test_p20_a_copys_explicit_age_is_kept_and_its_sidecar_is_named(table: Table) -> None:
    table.commit(data("a"))
    table.commit(data("b"))
    rewrite = table.commit((data("c"), 1), remove=["a"], operation="replace", summary={"frazil.lineage": "side.car"})
    change = change_of(table.storage, table.head(), table.snapshot(rewrite))
    assert told(change) == {"added": ["c"], "removed": ["a"]}
    assert [(e.sequence_number, e.file_sequence_number) for e in change.added] == [(1, 3)]
    assert (change.operation, change.lineage_path, change.is_delete) == ("replace", "side.car", False)


def test_delete_files_are_told_apart_from_data_files(table: Table) -> None:
    table.commit(data("a"))
    first = table.commit(positions("p", of="a"), operation="delete")
    second = table.commit(data("b"), remove=["a", "p"], operation="overwrite")
    change = change_of(table.storage, table.head(), table.snapshot(first))
    assert told(change) == {"deletes": ["p"]}
    assert change.deletes[0].file.referenced_data_file == "a"
    assert change.is_delete
    change = change_of(table.storage, table.head(), table.snapshot(second))
    assert told(change) == {"added": ["b"], "removed": ["a"], "removed_deletes": ["p"]}
    assert not change.is_delete


def test_a_copy_on_write_delete_of_ours_is_a_delete(table: Table) -> None:
    table.commit(data("a"))
    verb = {"frazil.verb": "delete"}
    change = change_of(
        table.storage,
        table.head(),
        table.snapshot(table.commit(data("b"), remove=["a"], operation="overwrite", summary=verb)),
    )
    assert change.is_delete


def test_a_writer_that_hides_what_it_removed_is_found_out_by_its_counts(table: Table) -> None:
    table.commit(data("a"))
    table.commit(data("b"))
    silent = table.commit(data("c"), remove=["a"], operation="overwrite", forgetful=True)
    change = change_of(table.storage, table.head(), table.snapshot(silent))
    assert told(change) == {"added": ["c"], "removed": ["a"]}
    assert (change.operation, change.sequence_number) == ("overwrite", 3)


def test_a_snapshot_without_a_manifest_list_is_refused(table: Table) -> None:
    first = table.commit(data("a"))
    del table.snapshots[first]["manifest-list"]
    with pytest.raises(Unsupported, match="format version 1"):
        change_of(table.storage, table.head(), table.snapshot(first))


# The walk


def test_changes_come_oldest_first_and_without_the_base(table: Table) -> None:
    ids = [table.commit(data(name)) for name in "abcd"]
    found = table.since(ids[1])
    assert found.base_is_ancestor
    assert [change.snapshot_id for change in found.changes] == ids[2:]
    assert table.since(ids[3]) == History((), base_is_ancestor=True)


def test_without_a_base_it_is_the_whole_history(table: Table) -> None:
    assert table.since(None) == History((), base_is_ancestor=True)
    ids = [table.commit(data(name)) for name in "ab"]
    found = table.since(None)
    assert found.base_is_ancestor
    assert [change.snapshot_id for change in found.changes] == ids


def test_another_branchs_commits_do_not_count(table: Table) -> None:
    first = table.commit(data("a"))
    table.refs["audit"] = first
    table.commit(data("b"), branch="audit")
    mine = table.commit(data("c"))
    assert [change.snapshot_id for change in table.since(first).changes] == [mine]
    elsewhere = history(table.storage, table.head(), "audit", table.base(first), Kept())
    assert [told(change) for change in elsewhere.changes] == [{"added": ["b"]}]


def test_p25_a_base_that_was_rolled_back_is_no_ancestor(table: Table) -> None:
    first = table.commit(data("a"))
    second = table.commit(data("b"))
    table.refs["main"] = first
    assert table.since(second) == History((), base_is_ancestor=False)
    third = table.commit(data("c"))
    found = table.since(second)
    assert not found.base_is_ancestor
    assert [change.snapshot_id for change in found.changes] == [third]


def test_p25_a_branch_that_is_gone_has_no_ancestors(table: Table) -> None:
    first = table.commit(data("a"))
    assert not history(table.storage, table.head(), "gone", table.base(first), Kept()).base_is_ancestor


def test_p25_a_table_that_was_replaced_does_not_lead_back_to_the_base(table: Table) -> None:
    first = table.commit(data("a"))
    del table.refs["main"]
    second = table.commit(data("b"))
    found = table.since(first)
    assert not found.base_is_ancestor
    assert [change.snapshot_id for change in found.changes] == [second]


def test_a_base_of_format_version_1_has_no_number_and_is_found(table: Table) -> None:
    ids = [table.commit(data(name)) for name in "abc"]
    for each in ids[:2]:
        table.snapshots[each]["sequence-number"] = 0
    found = table.since(ids[0])
    assert found.base_is_ancestor
    assert [change.snapshot_id for change in found.changes] == ids[1:]


# A chain that expiry broke (rule P18)


def test_p18_over_expired_snapshots_the_net_difference_counts(table: Table) -> None:
    base = table.commit(data("a"), data("b"), data("c"))
    gone = [
        table.commit(data("passing")),
        table.commit(remove=["passing", "a"], operation="delete"),
        table.commit((data("copy"), 1), remove=["b"], operation="replace"),
        table.commit(positions("p", of="c"), operation="delete"),
    ]
    newest = table.commit(data("d"))
    found = table.since(base, head=table.head(without=gone))
    assert found.base_is_ancestor
    (change,) = found.changes
    assert (change.snapshot_id, change.sequence_number, change.operation) == (newest, 6, "overwrite")
    assert {key: sorted(files) for key, files in told(change).items()} == {
        "added": ["copy", "d"],
        "removed": ["a", "b"],
        "deletes": ["p"],
    }
    assert {e.file.file_path: (e.status, e.sequence_number) for e in (*change.added, *change.deletes)} == {
        "copy": (Status.ADDED, 1),
        "d": (Status.ADDED, 6),
        "p": (Status.ADDED, 5),
    }


def test_p18_a_parent_that_expiry_cleared_is_a_break_too(table: Table) -> None:
    base = table.commit(data("a"))
    gone = table.commit(remove=["a"], operation="delete")
    newest = table.commit(data("b"))
    table.commit(data("c"))
    head = table.head(without=[gone])
    assert [told(change) for change in table.since(base, head=head).changes] == [
        {"added": ["b"], "removed": ["a"]},
        {"added": ["c"]},
    ]
    del table.snapshots[newest]["parent-snapshot-id"]
    head = table.head(without=[gone])
    # Its manifests are all its own, as those of a replaced table: nothing says that the base was its ancestor.
    assert not table.since(base, head=head).base_is_ancestor


def test_p18_a_kept_snapshot_without_parent_that_carries_older_files_was_cut_off(table: Table) -> None:
    base = table.commit(data("a"), data("z"))
    gone = table.commit(remove=["a"], operation="delete")
    newest = table.commit(data("b"))
    del table.snapshots[newest]["parent-snapshot-id"]
    found = table.since(base, head=table.head(without=[gone]))
    assert found.base_is_ancestor
    assert [told(change) for change in found.changes] == [{"added": ["b"], "removed": ["a"]}]


def test_p18_an_expired_base_of_which_nothing_is_known_is_no_ancestor(table: Table) -> None:
    base = table.commit(data("a"))
    newest = table.commit(data("b"))
    number = table.snapshot(base).sequence_number
    found = history(table.storage, table.head(without=[base]), "main", Base(base, number), Kept())
    assert not found.base_is_ancestor
    assert [change.snapshot_id for change in found.changes] == [newest]


def test_p18_an_expired_base_whose_child_is_kept_leaves_no_gap(table: Table) -> None:
    base = table.commit(data("a"), data("z"))
    # A writer that drops a manifest without a word: only the base says what it took out.
    table.commit(remove=["a"], operation="delete", forgetful=True)
    table.commit(data("b"))
    found = table.since(base, head=table.head(without=[base]))
    assert found.base_is_ancestor
    assert [told(change) for change in found.changes] == [{"removed": ["a"]}, {"added": ["b"]}]


def test_p18_an_expired_base_behind_a_gap_is_compared_with_the_oldest_that_is_kept(table: Table) -> None:
    base = table.commit(data("a"), data("b"))
    gone = [base, table.commit(remove=["a"], operation="delete"), table.commit(data("c"))]
    table.commit(data("d"))
    table.commit(remove=["c"], operation="delete")
    found = table.since(base, head=table.head(without=gone))
    assert found.base_is_ancestor
    assert [told(change) for change in found.changes] == [{"added": ["d", "c"], "removed": ["a"]}, {"removed": ["c"]}]


def test_p25_a_base_that_was_rolled_back_and_then_expired_is_no_ancestor(table: Table) -> None:
    first = table.commit(data("a"))
    second = table.commit(data("b"))
    table.refs["main"] = first
    third = table.commit(data("c"))
    found = table.since(second, head=table.head(without=[second]))
    assert (found.base_is_ancestor, found.base_is_lost) == (False, False)
    assert [change.snapshot_id for change in found.changes] == [third]


def test_p18_a_base_whose_files_were_removed_is_lost(table: Table) -> None:
    base = table.commit(data("a"))
    gone = [base, table.commit(data("b"))]
    newest = table.commit(data("c"))
    table.storage.delete([f"{FOLDER}/snap-{base}.avro"])
    table.storage.forget()
    found = table.since(base, Kept(of_102=Predicate("id = 1", 0)), head=table.head(without=gone))
    assert (found.base_is_ancestor, found.base_is_lost) == (False, True)
    # What was asked to go is known all the same, for those who only add rows.
    assert [change.predicate for change in found.changes] == [Predicate("id = 1", 0), None]
    assert found.changes[-1].snapshot_id == newest


def test_p18_summaries_that_come_to_the_difference_tell_what_the_expired_did(table: Table) -> None:
    base = table.commit(data("a"), data("b"))
    gone = [
        table.commit((data("copy"), 1), remove=["a"], operation="replace"),
        table.commit(remove=["b"], operation="delete"),
    ]
    table.commit(data("c"))
    kept = table.since(base).changes[:2]
    lineage = replace(kept[0], lineage_path="sidecar")
    head = table.head(without=[base, *gone])
    found = table.since(base, Kept(lineage, kept[1]), head=head)
    assert found.base_is_ancestor
    assert [told(change) for change in found.changes] == [
        {"added": ["copy"], "removed": ["a"]},
        {"removed": ["b"]},
        {"added": ["c"]},
    ]
    assert found.changes[0].lineage_path == "sidecar"


@pytest.mark.parametrize("unfit", ["missing", "of another branch"])
def test_p18_summaries_that_do_not_come_to_the_difference_give_their_predicates_only(table: Table, unfit: str) -> None:
    base = table.commit(data("a"), data("b"))
    gone = [
        table.commit(remove=["a"], operation="delete"),
        table.commit(remove=["b"], operation="delete"),
    ]
    table.commit(data("c"))
    first, second, _ = table.since(base).changes
    first = replace(first, predicate=Predicate("id = 1", 0))
    if unfit == "of another branch":
        second = replace(second, added=(Entry(Status.ADDED, data("elsewhere")),))
    kept = Kept(first) if unfit == "missing" else Kept(first, second)
    found = table.since(base, kept, head=table.head(without=[base, *gone]))
    asked, net = found.changes
    assert (told(asked), asked.predicate) == ({}, Predicate("id = 1", 0))
    assert {key: sorted(files) for key, files in told(net).items()} == {"added": ["c"], "removed": ["a", "b"]}


def test_p18_a_delete_by_key_that_expired_counts_while_its_keys_can_be_read(table: Table) -> None:
    base = table.commit(data("a"))
    keys = data("keys", content=Content.EQUALITY_DELETES, equality_ids=(1,))
    gone = [table.commit(keys, operation="delete"), table.commit(data("b"))]
    table.commit(data("c"))
    (by_key, *_) = table.since(base).changes
    assert by_key.is_delete
    found = table.since(base, Kept(by_key), head=table.head(without=[base, *gone]))
    asked, net = found.changes
    assert told(asked) == {"deletes": ["keys"]}
    assert told(net)["deletes"] == ["keys"]


@pytest.mark.parametrize("cleared", [False, True])
def test_p18_without_a_base_all_live_files_are_new(table: Table, cleared: bool) -> None:
    gone = table.commit(data("a"), data("z"))
    kept = table.commit(remove=["z"], operation="delete")
    table.commit(data("b"))
    if cleared:
        del table.snapshots[kept]["parent-snapshot-id"]
    found = table.since(None, head=table.head(without=[gone]))
    assert found.base_is_ancestor
    assert {e.file.file_path: e.sequence_number for change in found.changes for e in change.added} == {"a": 1, "b": 3}
    assert not any(change.removed for change in found.changes)


def test_the_net_difference_does_not_read_what_both_have(table: Table) -> None:
    base = table.commit(data("a"))
    gone = table.commit(data("b"))
    table.commit(data("c"))
    table.since(base, head=table.head(without=[gone]))
    assert sorted(set(table.storage.paths)) == ["m2.avro", "m3.avro", "snap-101.avro", "snap-103.avro"]


# Sources


def test_the_second_look_reads_nothing_and_asks_nobody(table: Table) -> None:
    ids = [table.commit(data(name)) for name in "abc"]
    first = table.since(ids[0])
    table.storage.paths.clear()
    kept = Kept()
    second = table.since(ids[0], kept)
    assert second == first
    assert (table.storage.paths, kept.asked) == ([], [])
    fourth = table.commit(data("d"))
    assert table.since(ids[0]).changes[-1].snapshot_id == fourth


def test_what_is_missing_is_asked_for_once_and_with_its_range(table: Table) -> None:
    ids = [table.commit(data(name)) for name in "abcdef"]
    kept = Kept()
    table.since(ids[0], kept)
    assert kept.asked == [(1, 6)]
    older = Kept()
    table.since(None, older)
    assert older.asked == [(0, 1)]


def test_summaries_save_all_reading(table: Table) -> None:
    ids = [table.commit(data(name)) for name in "abc"]
    kept = Kept(*table.since(ids[0]).changes)
    table.storage.forget()
    found = table.since(ids[0], kept)
    assert [told(change) for change in found.changes] == [{"added": ["b"]}, {"added": ["c"]}]
    assert table.storage.paths == []


def test_a_summary_that_is_missing_or_of_another_attempt_is_read_from_manifests(table: Table) -> None:
    ids = [table.commit(data(name)) for name in "abc"]
    lost = replace(table.since(ids[0]).changes[0], sequence_number=9, added=())
    table.storage.forget()
    found = table.since(ids[0], Kept(lost))
    assert [told(change) for change in found.changes] == [{"added": ["b"]}, {"added": ["c"]}]


def test_p23_a_predicate_alone_is_put_to_what_the_manifests_say(table: Table) -> None:
    base = table.commit(data("a"))
    table.commit(remove=["a"], operation="delete")
    (change,) = table.since(base, Kept(of_102=Predicate("id = 1", 0))).changes
    assert told(change) == {"removed": ["a"]}
    assert change.predicate == Predicate("id = 1", 0)
    assert table.since(base).changes[0].predicate == Predicate("id = 1", 0)


def test_p23_a_change_read_from_manifests_before_still_gets_its_predicate(table: Table) -> None:
    base = table.commit(data("a"))
    second = table.commit(remove=["a"], operation="delete")
    plain = change_of(table.storage, table.head(), table.snapshot(second))
    kept = Kept(replace(plain, predicate=Predicate("id = 1", 0)))
    assert table.since(base, kept).changes[0].predicate == Predicate("id = 1", 0)
    assert kept.asked == [(1, 2)]


def test_appends_are_read_through_the_newest_list_alone(table: Table) -> None:
    ids = [table.commit(data(name)) for name in "abcde"]
    found = table.since(ids[0])
    assert [told(change) for change in found.changes] == [{"added": [name]} for name in "bcde"]
    assert sorted(table.storage.paths) == ["m2.avro", "m3.avro", "m4.avro", "m5.avro", "snap-105.avro"]


def test_an_append_whose_manifest_was_merged_away_is_read_through_its_own_list(table: Table) -> None:
    base = table.commit(data("a"))
    table.commit(data("b"))
    table.commit(data("c"), merge=True)
    table.commit(data("d"))
    found = table.since(base)
    assert [told(change) for change in found.changes] == [{"added": [name]} for name in "bcd"]
    assert [path for path in table.storage.paths if path.startswith("snap")] == ["snap-104.avro", "snap-102.avro"]


def test_an_append_of_which_a_part_was_rewritten_is_read_through_its_own_list(table: Table) -> None:
    base = table.commit(data("a"))
    second = table.commit(data("b"), data("c"))
    third = table.commit(remove=["b"], operation="delete")
    found = table.since(base)
    assert [told(change) for change in found.changes] == [{"added": ["b", "c"]}, {"removed": ["b"]}]
    assert [change.snapshot_id for change in found.changes] == [second, third]


def test_an_append_without_counts_is_read_through_its_own_list(table: Table) -> None:
    base = table.commit(data("a"))
    table.commit(data("b"), counts=False)
    table.commit(data("c"))
    assert [told(change) for change in table.since(base).changes] == [{"added": ["b"]}, {"added": ["c"]}]
    assert "snap-102.avro" in table.storage.paths


def test_a_manifest_that_was_expired_meanwhile_is_said(table: Table) -> None:
    base = table.commit(data("a"))
    table.commit(data("b"))
    table.storage.delete([f"{FOLDER}/m2.avro"])
    with pytest.raises(CorruptMetadata, match="m2"):
        table.since(base)


def test_two_attempts_of_one_commit_are_not_mixed_up_in_memory(table: Table) -> None:
    base = table.commit(data("a"))
    second = table.commit(data("b"))
    table.since(base)
    other = Table(storage=table.storage)
    other.snapshots, other.manifests = dict(table.snapshots), dict(table.manifests)
    listed = f"{FOLDER}/snap-{second}-2.avro"
    again = table.manifest([Entry(Status.ADDED, data("c"))], second, 2, DATA_MANIFEST)
    write_manifest_list(
        table.storage, listed, [again], snapshot_id=second, parent_snapshot_id=base, sequence_number=2
    )  # fmt: skip
    other.snapshots[second] = {**table.snapshots[second], "manifest-list": listed}
    other.refs = dict(table.refs)
    assert [told(change) for change in other.since(base).changes] == [{"added": ["c"]}]


def test_large_changes_do_not_push_everything_else_out_of_memory(table: Table) -> None:
    base = table.commit(data("a"))
    table.storage.parsed.put("metadata", "precious", 1_000)
    table.commit(*(data(f"f{n}") for n in range(4_000)))
    table.storage.parsed.put("metadata", "precious", 1_000)
    assert len(table.since(base).changes[0].added) == 4_000
    assert table.storage.parsed.get("metadata") == "precious"
    assert table.storage.parsed._used < 4 << 20


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_goes_on_with_what_its_parent_knew(table: Table) -> None:
    base = table.commit(data("a"))
    table.commit(data("b"))
    table.since(base)
    table.storage.paths.clear()
    pid = os.fork()
    if pid == 0:
        kept = Kept()
        found = table.since(base, kept)
        os._exit(0 if len(found.changes) == 1 and not kept.asked and not table.storage.paths else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
