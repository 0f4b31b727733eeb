"""Commit ids inside a table's metadata, and requirements as pure functions."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from contract.foreign_tables import empty_metadata, summary_of
from frazil.catalog.base import CommitRecord
from frazil.catalog.records import (
    KEPT,
    PROPERTY,
    find_record,
    keeps_records_since,
    keeps_since,
    property_updates,
    record_from_summary,
    records_are_full,
)
from frazil.catalog.requirements import merged, requirements_for, unmet
from frazil.format.metadata import TableMetadata
from frazil.format.updates import apply


def record(commit_id: str, snapshot_id: int | None = None) -> CommitRecord:
    return CommitRecord("uuid-1", commit_id, "digest-1", snapshot_id, 7, {"rows_inserted": 3, "bytes_written": 10})


def metadata_with(**more: Any) -> TableMetadata:
    return TableMetadata({**empty_metadata("/t").raw, "table-uuid": "uuid-1", **more})


def kept(metadata: TableMetadata, *records: CommitRecord) -> TableMetadata:
    for n, each in enumerate(records):
        metadata = apply(metadata, property_updates(metadata, each, n), now_ms=n, previous_location=None)
    return metadata


def test_a_record_in_a_snapshots_summary_is_found_with_its_counts() -> None:
    summary = {"operation": "append", "added-records": "3", "added-files-size": "10", **summary_of(record("a", 5))}
    snapshot = {"snapshot-id": 5, "sequence-number": 7, "timestamp-ms": 1, "summary": summary}
    assert find_record(metadata_with(snapshots=[snapshot]), "a") == record("a", 5)
    assert find_record(metadata_with(snapshots=[snapshot]), "b") is None


def test_a_snapshot_of_another_engine_has_no_record() -> None:
    assert record_from_summary("u", {"snapshot-id": 5, "summary": {"operation": "append"}}) is None
    assert record_from_summary("u", {"snapshot-id": 5}) is None


def test_p12_a_record_without_a_snapshot_is_found_in_its_property() -> None:
    metadata = kept(metadata_with(), record("a"), record("b"))
    assert find_record(metadata, "a") == record("a")
    assert find_record(metadata, "b") == record("b")


def test_two_writers_from_one_head_do_not_erase_each_others_record() -> None:
    head = metadata_with()
    updates = (*property_updates(head, record("a"), 1), *property_updates(head, record("b"), 1))
    both = apply(head, updates, now_ms=1, previous_location=None)
    assert find_record(both, "a") == record("a")
    assert find_record(both, "b") == record("b")


def test_only_the_newest_records_stay() -> None:
    metadata = kept(metadata_with(), *(record(f"c{n}") for n in range(KEPT + 3)))
    assert [find_record(metadata, f"c{n}") is None for n in (0, 2, 3, KEPT + 2)] == [True, True, False, False]
    assert sum(key.startswith(PROPERTY) for key in metadata.properties) == KEPT
    assert records_are_full(metadata)
    assert not records_are_full(kept(metadata_with(), record("a")))
    assert metadata.properties["owner"] == "tests"


def test_the_same_record_again_takes_no_second_place() -> None:
    full = kept(metadata_with(), *(record(f"c{n}") for n in range(KEPT)))
    again = kept(full, record("c5"))
    assert sum(key.startswith(PROPERTY) for key in again.properties) == KEPT
    assert find_record(again, "c0") is not None


@pytest.mark.parametrize("commit_id", ["x" * 5000, "ü" * 300, "with spaces, 'quotes' and \n"])
def test_odd_commit_ids_are_kept_whole_under_a_bearable_name(commit_id: str) -> None:
    metadata = kept(metadata_with(), record(commit_id))
    assert find_record(metadata, commit_id) == record(commit_id)
    assert max(len(key) for key in metadata.properties) <= 255


@pytest.mark.parametrize("text", ["not json", "[]", "{}", "7"])
def test_another_applications_property_under_the_prefix_is_not_a_record(text: str) -> None:
    metadata = metadata_with(properties={PROPERTY + "a": text})
    assert find_record(metadata, "a") is None
    assert not records_are_full(metadata)


def test_p29_requirements_are_never_folded_by_type() -> None:
    refs = [{"type": "assert-ref-snapshot-id", "ref": ref, "snapshot-id": 1} for ref in ("a", "b", "a")]
    assert merged(refs) == (refs[0], refs[1])


def test_p29_a_ref_that_does_not_exist_must_not_exist() -> None:
    moving = {"action": "set-snapshot-ref", "ref-name": "new", "type": "branch", "snapshot-id": 1}
    asked = requirements_for(metadata_with(), [moving])
    assert {"type": "assert-ref-snapshot-id", "ref": "new", "snapshot-id": None} in asked


def test_p29_expiry_names_every_ref() -> None:
    refs = {"main": {"snapshot-id": 2, "type": "branch"}, "t": {"snapshot-id": 1, "type": "tag"}}
    asked = requirements_for(metadata_with(refs=refs), [{"action": "remove-snapshots", "snapshot-ids": [1]}])
    assert [each["ref"] for each in asked if each["type"] == "assert-ref-snapshot-id"] == ["main", "t"]


def test_what_was_asked_of_a_head_is_met_by_it_and_unmet_once_it_changed() -> None:
    refs = {"main": {"snapshot-id": 2, "type": "branch"}}
    head = metadata_with(refs=refs)
    updates = [
        {"action": "add-snapshot"},
        {"action": "set-snapshot-ref", "ref-name": "main"},
        {"action": "add-schema"},
        {"action": "add-spec"},
        {"action": "add-sort-order"},
    ]
    asked = requirements_for(head, updates)
    assert len(asked) == 7
    assert unmet(asked, head) == ()
    changes: dict[str, Any] = {
        "table-uuid": "another",
        "refs": {"main": {"snapshot-id": 3, "type": "branch"}},
        "current-schema-id": 9,
        "last-column-id": 9,
        "default-spec-id": 9,
        "last-partition-id": 9,
        "default-sort-order-id": 9,
    }
    for key, value in changes.items():
        assert len(unmet(asked, TableMetadata({**head.raw, key: value}))) == 1, key
    assert unmet([{"type": "assert-of-the-future"}], head) == ()
    assert orjson.loads(orjson.dumps(asked)) == list(asked)


@pytest.mark.parametrize(("later", "is_kept"), [(KEPT - 1, True), (KEPT, True), (KEPT + 1, False)])
def test_p40_a_record_is_known_to_be_kept_while_too_few_versions_followed_to_push_it_out(
    later: int, is_kept: bool
) -> None:
    metadata = empty_metadata("memory:///t")
    records = {f"{PROPERTY}{n}": "{}" for n in range(KEPT)}
    log = [{"metadata-file": name, "timestamp-ms": 0} for name in ("older", "base", *map(str, range(later - 1)))]
    full = TableMetadata({**metadata.raw, "properties": records, "metadata-log": log})
    assert keeps_records_since(full, "base") is is_kept
    assert not keeps_records_since(full, "unknown")
    assert keeps_records_since(TableMetadata({**full.raw, "properties": {}}), "unknown")


def test_p40_a_record_is_missing_only_where_no_snapshot_since_has_expired() -> None:
    metadata = empty_metadata("memory:///t")

    def table(*numbers: int, last: int) -> TableMetadata:
        snapshots = [
            {"snapshot-id": n, "sequence-number": n, "timestamp-ms": n * 1_000_000, "summary": {"operation": "append"}}
            for n in numbers
        ]
        return TableMetadata({**metadata.raw, "snapshots": snapshots, "last-sequence-number": last})

    assert keeps_since(table(last=0), 0)
    assert keeps_since(table(1, 2, 3, last=3), 0)
    assert keeps_since(table(2, 3, last=3), 3_000_000), "an older snapshot than the commit is kept"
    assert not keeps_since(table(3, last=3), 3_000_000)
    assert not keeps_since(table(1, 3, last=3), 2_000_000)
