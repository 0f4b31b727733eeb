from __future__ import annotations

import pyarrow as pa
import pytest

from frazil.commit.operations import Append, MetadataChange, NewRef, PropertyChange, SchemaUnion
from frazil.commit.rebase import add_snapshot, append_summary, lay_out, metadata_change
from frazil.errors import InvalidInput, SchemaMismatch
from frazil.format.updates import apply
from frazil.model import DataFile, Manifest
from unit.samples import metadata, snapshot, with_snapshots

UUID = metadata().uuid


def manifest(path: str, *, size: int = 100, spec: int = 0, content: int = 0) -> Manifest:
    return Manifest(path, size, spec, content, 1, 1, 1, added_files_count=1)


def paths(bins: tuple[tuple[Manifest, ...], ...]) -> list[list[str]]:
    return [[each.manifest_path for each in group] for group in bins]


def append(*files: DataFile) -> Append:
    return Append(UUID, files, 0, 0, {1: "id", 2: "name"})


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


def test_merging_can_be_switched_off() -> None:
    properties = {"commit.manifest.min-count-to-merge": "2", "commit.manifest-merge.enabled": "false"}
    assert len(lay_out([manifest("a")], [manifest("new")], properties, attempt=1).bins) == 2


def test_bins_respect_the_target_size_and_full_old_ones_merge_early() -> None:
    properties = {"commit.manifest.min-count-to-merge": "4", "commit.manifest.target-size-bytes": "200"}
    layout = lay_out([manifest("a"), manifest("b"), manifest("c")], [manifest("new")], properties, attempt=1)
    assert paths(layout.bins) == [["new"], ["a"], ["b", "c"]]


def test_p15_manifests_of_two_specs_never_share_a_bin_and_deletes_stay_alone() -> None:
    properties = {"commit.manifest.min-count-to-merge": "2"}
    existing = [manifest("a", spec=0), manifest("b", spec=0), manifest("d", content=1), manifest("e", content=1)]
    layout = lay_out(existing, [manifest("new", spec=1), manifest("new2", spec=1)], properties, attempt=1)
    assert paths(layout.bins) == [["new", "new2"], ["a", "b"], ["d"], ["e"]]


@pytest.mark.parametrize("text", ["many", "0", "-3"])
def test_a_merge_property_that_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="min-count-to-merge"):
        lay_out([], [manifest("new")], {"commit.manifest.min-count-to-merge": text}, attempt=1)


# Snapshots


def test_totals_grow_from_the_parents() -> None:
    file = DataFile("f", record_count=10, file_size_in_bytes=1000)
    first = append_summary(append(file), None)
    assert (first["total-records"], first["total-data-files"], first["total-delete-files"]) == ("10", "1", "0")
    parent = with_snapshots(snapshot(1, None, **first)).head_snapshot()
    second = append_summary(append(file, file), parent)
    assert (second["added-records"], second["total-records"], second["total-files-size"]) == ("20", "30", "3000")


def test_a_total_that_the_parent_does_not_know_is_not_invented() -> None:
    parent = with_snapshots(snapshot(1)).head_snapshot()
    assert not [key for key in append_summary(append(), parent) if key.startswith("total-")]


def test_p29_a_snapshot_requires_its_table_its_branch_and_its_schema() -> None:
    head = with_snapshots(snapshot(7))
    _, requirements = add_snapshot(head, "main", snapshot(8, 7))
    assert {each["type"]: each for each in requirements} == {
        "assert-table-uuid": {"type": "assert-table-uuid", "uuid": UUID},
        "assert-ref-snapshot-id": {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 7},
        "assert-current-schema-id": {"type": "assert-current-schema-id", "current-schema-id": 0},
    }


def test_a_branch_keeps_its_retention_settings_when_it_moves() -> None:
    refs = {"main": {"snapshot-id": 7, "type": "branch", "max-ref-age-ms": 99}}
    head = metadata(snapshots=[snapshot(7)], refs=refs)
    updates, _ = add_snapshot(head, "main", snapshot(8, 7))
    assert updates[1]["max-ref-age-ms"] == 99


# Changes without rows, replayed on whatever head there is


def union(**columns: pa.DataType) -> MetadataChange:
    return MetadataChange(UUID, SchemaUnion(pa.schema(list(columns.items()))))


def test_p16_a_union_replayed_on_a_new_head_takes_ids_from_that_head() -> None:
    change = union(id=pa.int64(), mine=pa.string())
    head = metadata()
    other = metadata_change(union(theirs=pa.int32()), head)
    assert other is not None
    moved = apply(head, other[0], now_ms=1, previous_location=None)
    mine = metadata_change(change, moved)
    assert mine is not None
    landed = apply(moved, mine[0], now_ms=1, previous_location=None).schema()
    assert (landed.find_field("theirs").field_id, landed.find_field("mine").field_id) == (3, 4)
    types = {each["type"] for each in mine[1]}
    assert types == {"assert-table-uuid", "assert-current-schema-id", "assert-last-assigned-field-id"}


def test_a_name_mapping_grows_with_the_schema() -> None:
    names = '[{"field-id": 1, "names": ["id", "ident"]}, {"field-id": 2, "names": ["name"]}]'
    head = metadata(properties={"schema.name-mapping.default": names})
    change = metadata_change(union(more=pa.struct([("x", pa.int32())])), head)
    assert change is not None
    after = apply(head, change[0], now_ms=1, previous_location=None)
    assert after.name_mapping is not None
    more = after.schema().find_field("more").field_id
    first, _, last = after.name_mapping.root
    assert (first.field_id, first.names) == (1, ["id", "ident"])
    assert (last.field_id, last.names, last.fields[0].names) == (more, ["more"], ["x"])


def test_the_same_column_with_the_same_type_is_nothing_to_do() -> None:
    assert metadata_change(union(id=pa.int64(), name=pa.string()), metadata()) is None


def test_the_same_column_with_another_type_is_refused() -> None:
    with pytest.raises(SchemaMismatch, match="name"):
        metadata_change(union(name=pa.int64()), metadata())


def test_property_changes_keep_what_others_set() -> None:
    head = metadata(properties={"theirs": "1", "gone": "x"})
    change = MetadataChange(UUID, PropertyChange({"mine": "2"}, ("gone", "never-there")))
    updates = metadata_change(change, head)
    assert updates is not None
    assert apply(head, updates[0], now_ms=1, previous_location=None).properties == {"theirs": "1", "mine": "2"}
    assert metadata_change(MetadataChange(UUID, PropertyChange({"theirs": "1"})), head) is None


def test_a_new_ref_requires_that_nobody_has_the_name() -> None:
    head = with_snapshots(snapshot(7))
    change = metadata_change(MetadataChange(UUID, NewRef("v1", "tag")), head)
    assert change is not None
    assert {"type": "assert-ref-snapshot-id", "ref": "v1", "snapshot-id": None} in change[1]
    taken = apply(head, change[0], now_ms=1, previous_location=None)
    assert metadata_change(MetadataChange(UUID, NewRef("v1", "tag", 7)), taken) is None
    with pytest.raises(InvalidInput, match="already has a tag"):
        metadata_change(MetadataChange(UUID, NewRef("v1", "branch", 7)), taken)
    with pytest.raises(InvalidInput, match="needs a snapshot"):
        metadata_change(MetadataChange(UUID, NewRef("v2", "tag", 99)), taken)
