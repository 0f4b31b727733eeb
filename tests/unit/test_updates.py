from __future__ import annotations

from typing import Any

import pytest
from pyiceberg.table.metadata import TableMetadataUtil

from frazil.errors import CorruptMetadata, Unsupported
from frazil.format.metadata import TableMetadata
from frazil.format.updates import apply, next_time_ms
from unit.samples import metadata, snapshot, with_snapshots


def added(snapshot_id: int, parent: int | None = None, ref: str = "main") -> list[dict[str, Any]]:
    return [
        {"action": "add-snapshot", "snapshot": snapshot(snapshot_id, parent)},
        {"action": "set-snapshot-ref", "ref-name": ref, "type": "branch", "snapshot-id": snapshot_id},
    ]


def test_a_snapshot_becomes_the_head_of_its_branch_and_the_old_value_is_not_touched() -> None:
    before = metadata()
    frozen = before.to_json()
    after = apply(before, added(1), now_ms=5_000, previous_location="m0.json")
    assert after.ref_snapshot_id() == 1
    assert after.last_sequence_number == 1
    assert after.raw["metadata-log"] == [{"metadata-file": "m0.json", "timestamp-ms": 1_000}]
    assert after.snapshot_log() == [(5_000, 1)]
    assert before.to_json() == frozen


def test_pyiceberg_parses_what_comes_out() -> None:
    after = apply(metadata(), [*added(1), *added(2, 1)], now_ms=5_000, previous_location="m0.json")
    theirs = TableMetadataUtil.parse_raw(after.to_json().decode())
    assert theirs.current_snapshot_id == 2


def test_another_branch_moves_neither_main_nor_its_log() -> None:
    before = apply(metadata(), added(1), now_ms=5_000, previous_location=None)
    after = apply(before, added(2, 1, ref="audit"), now_ms=6_000, previous_location=None)
    assert (after.ref_snapshot_id("main"), after.ref_snapshot_id("audit")) == (1, 2)
    assert after.raw["current-snapshot-id"] == 1
    assert after.snapshot_log() == [(5_000, 1)]


@pytest.mark.parametrize(
    ("logs", "expected"),
    [
        ({}, 9_000),
        ({"last_updated_ms": 10_000}, 10_000),
        ({"snapshot_log": [{"timestamp-ms": 11_000, "snapshot-id": 1}]}, 11_000),
        ({"metadata_log": [{"timestamp-ms": 12_000, "metadata-file": "m"}]}, 12_000),
    ],
)
def test_p7_time_never_runs_behind_the_head(logs: dict[str, Any], expected: int) -> None:
    before = metadata(**logs)
    assert next_time_ms(before, 9_000) == expected
    after = apply(before, added(1), now_ms=9_000, previous_location="m0.json")
    assert after.last_updated_ms == expected
    assert after.snapshot_log()[-1][0] == expected


def test_p7_only_the_last_snapshot_of_a_group_enters_the_log() -> None:
    after = apply(metadata(), [*added(1), *added(2, 1), *added(3, 2)], now_ms=5_000, previous_location=None)
    assert [snapshot_id for _, snapshot_id in after.snapshot_log()] == [3]
    assert after.has_snapshot(1)


def test_the_log_of_metadata_files_is_as_long_as_the_property_says() -> None:
    table = metadata(properties={"write.metadata.previous-versions-max": "2"})
    for number in range(5):
        table = apply(table, [], now_ms=number, previous_location=f"m{number}.json")
    assert [entry["metadata-file"] for entry in table.raw["metadata-log"]] == ["m3.json", "m4.json"]


def test_a_length_that_is_no_number_does_not_stop_the_commit_that_may_mend_it() -> None:
    table = metadata(properties={"write.metadata.previous-versions-max": "x"})
    after = apply(table, [], now_ms=1, previous_location="m0.json")
    assert [entry["metadata-file"] for entry in after.raw["metadata-log"]] == ["m0.json"]


def test_properties_schemas_specs_orders_refs_and_location() -> None:
    schema = {"type": "struct", "schema-id": 1, "fields": [{"id": 5, "name": "x", "type": "int", "required": False}]}
    field = {"source-id": 5, "field-id": 1000, "transform": "identity", "name": "x"}
    after = apply(
        metadata(properties={"a": "1", "b": "2"}),
        [
            {"action": "set-properties", "updates": {"b": "3", "c": "4"}},
            {"action": "remove-properties", "removals": ["a", "nothing"]},
            {"action": "add-schema", "schema": schema, "last-column-id": 5},
            {"action": "set-current-schema", "schema-id": -1},
            {"action": "add-spec", "spec": {"spec-id": 1, "fields": [field]}},
            {"action": "set-default-spec", "spec-id": -1},
            {"action": "add-sort-order", "sort-order": {"order-id": 1, "fields": []}},
            {"action": "set-default-sort-order", "sort-order-id": -1},
            {"action": "set-location", "location": "memory://elsewhere"},
            *added(1),
            {"action": "set-snapshot-ref", "ref-name": "v1", "type": "tag", "snapshot-id": 1},
            {"action": "remove-snapshot-ref", "ref-name": "main"},
        ],
        now_ms=5_000,
        previous_location=None,
    )
    assert after.properties == {"b": "3", "c": "4"}
    assert (after.current_schema_id, after.last_column_id) == (1, 5)
    assert (after.default_spec_id, after.raw["last-partition-id"]) == (1, 1000)
    assert after.default_sort_order_id == 1
    assert after.location == "memory://elsewhere"
    assert set(after.refs) == {"v1"}


def test_a_schema_tells_its_highest_id_where_nobody_else_does() -> None:
    fields = [{"id": 7, "name": "x", "type": "int", "required": False}]
    added = {"action": "add-schema", "schema": {"type": "struct", "schema-id": 1, "fields": fields}}
    assert apply(metadata(), [added], now_ms=1, previous_location=None).last_column_id == 7


def test_an_unknown_update_is_refused() -> None:
    with pytest.raises(Unsupported, match="rewrite-history"):
        apply(metadata(), [{"action": "rewrite-history"}], now_ms=1, previous_location=None)


def test_ancestors_stop_where_the_file_stops_knowing() -> None:
    table = with_snapshots(snapshot(2, 1), snapshot(3, 2))
    assert [each.snapshot_id for each in table.ancestors(3)] == [3, 2]
    assert table.is_ancestor(2, of=3)
    assert not table.is_ancestor(3, of=2)


@pytest.mark.parametrize(
    ("data", "error", "says"),
    [
        (b"{", CorruptMetadata, "not valid JSON"),
        (b"[]", CorruptMetadata, "not a table's metadata"),
        (b'{"format-version": 2, "location": "x"}', CorruptMetadata, "lacks table-uuid"),
        (b'{"format-version": 3, "location": "x"}', Unsupported, "format version 3"),
    ],
)
def test_files_that_are_no_metadata_are_refused_with_a_sentence(data: bytes, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        TableMetadata.parse(data, "x/metadata/v1.json")
