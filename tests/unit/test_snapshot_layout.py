from __future__ import annotations

import pytest

from frazil.commit.operations import Kind
from frazil.commit.snapshot_layout import (
    Effect,
    ManifestLayout,
    add_snapshot,
    lay_out,
    summary_counts,
    write_requirements,
)
from frazil.errors import InvalidInput
from frazil.model import DataFile, Manifest
from unit.samples import appending, metadata, snapshot, with_snapshots

UUID = metadata().uuid


def manifest(path: str, *, size: int = 100, spec: int = 0, content: int = 0) -> Manifest:
    return Manifest(path, size, spec, content, 1, 1, 1, added_files_count=1)


def paths(bins: tuple[tuple[Manifest, ...], ...]) -> list[list[str]]:
    return [[each.manifest_path for each in group] for group in bins]


def append(*files: DataFile) -> Effect:
    return Effect(Kind.APPEND, files)


# Which manifests are merged


def test_below_the_count_nothing_is_merged_and_the_newest_comes_first() -> None:
    layout = lay_out([manifest("a"), manifest("b")], [manifest("new")], {}, attempt=1)
    assert paths(layout.bins) == [["new"], ["a"], ["b"]]


def test_at_the_count_the_filling_bin_is_merged() -> None:
    properties = {"commit.manifest.min-count-to-merge": "3"}
    layout = lay_out([manifest("a"), manifest("b")], [manifest("new")], properties, attempt=1)
    assert paths(layout.bins) == [["new", "a", "b"]]


def test_a_repeated_attempt_waits_for_twice_the_count() -> None:
    properties = {"commit.manifest.min-count-to-merge": "3"}
    three = [manifest("a"), manifest("b")]
    assert len(lay_out(three, [manifest("new")], properties, attempt=2).bins) == 3
    six = [manifest(name) for name in "abcde"]
    assert len(lay_out(six, [manifest("new")], properties, attempt=2).bins) == 1


def test_a_commit_that_others_wait_for_leaves_the_merge_to_be_made_beside_it() -> None:
    properties = {"commit.manifest.min-count-to-merge": "8"}

    def layout(there: int) -> ManifestLayout:
        return lay_out([manifest(str(n)) for n in range(there)], [manifest("new")], properties, attempt=1, later=True)

    assert [there + 1 for there in range(20) if layout(there).is_due] == [8, 10, 12, 14, 16, 18, 20]
    assert [there + 1 for there in range(20) if len(layout(there).bins) == 1] == [1, 16, 17, 18, 19, 20]
    assert not lay_out([manifest(str(n)) for n in range(7)], [manifest("new")], properties, attempt=1).is_due


def test_an_old_manifest_is_not_copied_again_for_a_few_small_new_ones() -> None:
    properties = {"commit.manifest.min-count-to-merge": "4"}
    small = [manifest(name, size=100) for name in "abc"]

    def merged(*old: int) -> list[list[str]]:
        existing = [*small, *(manifest(f"old-{size}", size=size) for size in old)]
        return paths(lay_out(existing, [manifest("new")], properties, attempt=1).bins)

    assert merged(10_000) == [["new", "a", "b", "c"], ["old-10000"]]
    assert merged(800, 10_000) == [["new", "a", "b", "c", "old-800"], ["old-10000"]]
    assert merged(801, 10_000) == [["new", "a", "b", "c"], ["old-801"], ["old-10000"]]
    assert merged(2_000, 2_000) == [["new", "a", "b", "c", "old-2000", "old-2000"]], "two alike are worth it"


def test_merging_can_be_switched_off() -> None:
    properties = {"commit.manifest.min-count-to-merge": "2", "commit.manifest-merge.enabled": "false"}
    assert len(lay_out([manifest("a")], [manifest("new")], properties, attempt=1).bins) == 2


def test_bins_respect_the_target_size_and_full_old_ones_merge_early() -> None:
    properties = {"commit.manifest.min-count-to-merge": "4", "commit.manifest.target-size-bytes": "200"}
    layout = lay_out([manifest("a"), manifest("b"), manifest("c")], [manifest("new")], properties, attempt=1)
    assert paths(layout.bins) == [["new"], ["a"], ["b", "c"]]


def test_p15_manifests_of_two_specs_or_contents_never_share_a_bin() -> None:
    properties = {"commit.manifest.min-count-to-merge": "2"}
    existing = [manifest("a", spec=0), manifest("b", spec=0), manifest("d", content=1), manifest("e", content=1)]
    layout = lay_out(existing, [manifest("new", spec=1), manifest("new2", spec=1)], properties, attempt=1)
    assert paths(layout.bins) == [["new", "new2"], ["a", "b"], ["d", "e"]]


@pytest.mark.parametrize("text", ["many", "0", "-3"])
def test_a_merge_property_that_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="min-count-to-merge"):
        lay_out([], [manifest("new")], {"commit.manifest.min-count-to-merge": text}, attempt=1)


# Snapshots


def test_totals_grow_from_the_parents() -> None:
    file = DataFile("f", record_count=10, file_size_in_bytes=1000)
    first = summary_counts(append(file), None)
    assert (first["total-records"], first["total-data-files"], first["total-delete-files"]) == ("10", "1", "0")
    parent = with_snapshots(snapshot(1, None, **first)).head_snapshot()
    second = summary_counts(append(file, file), parent)
    assert (second["added-records"], second["total-records"], second["total-files-size"]) == ("20", "30", "3000")


def test_a_total_that_the_parent_does_not_know_is_not_invented() -> None:
    parent = with_snapshots(snapshot(1)).head_snapshot()
    assert not [key for key in summary_counts(append(), parent) if key.startswith("total-")]


def test_p29_a_snapshot_requires_its_table_its_branch_and_its_schema() -> None:
    head = with_snapshots(snapshot(7))
    requirements = write_requirements(appending(), head)
    assert {each["type"]: each for each in requirements} == {
        "assert-table-uuid": {"type": "assert-table-uuid", "uuid": UUID},
        "assert-ref-snapshot-id": {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 7},
        "assert-current-schema-id": {"type": "assert-current-schema-id", "current-schema-id": 0},
    }


def test_a_branch_keeps_its_retention_settings_when_it_moves() -> None:
    refs = {"main": {"snapshot-id": 7, "type": "branch", "max-ref-age-ms": 99}}
    head = metadata(snapshots=[snapshot(7)], refs=refs)
    updates = add_snapshot(head, "main", snapshot(8, 7))
    assert updates[1]["max-ref-age-ms"] == 99


@pytest.mark.parametrize(
    ("kind", "operation"), [(Kind.DELETE, "delete"), (Kind.APPEND, "append"), (Kind.REWRITE, "replace")]
)
def test_p23_a_delete_that_found_nothing_left_is_a_delete_all_the_same(kind: Kind, operation: str) -> None:
    assert Effect(kind).operation == operation
