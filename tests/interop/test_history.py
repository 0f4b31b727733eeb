"""Iceberg Java's incremental scans, conflict checks and maintenance see Frazil's commits (rule P14)."""

from __future__ import annotations

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from frazil.commit.context import Phase
from frazil.errors import ConflictError
from frazil.lake import Lake
from frazil.model import Commit
from frazil.table.table import Table
from interop.conftest import Place, ids
from interop.iceberg_java import JavaError, JavaTable
from interop.race import local_path, unreferenced

pytestmark = pytest.mark.interop

IDS = Schema(NestedField(1, "id", LongType()))


def _table(place: Place, lake: Lake, **properties: str) -> tuple[Table, JavaTable]:
    lake.create_namespace("shop")
    events = lake.create_table("shop.events", IDS, properties=properties)
    return events, place.iceberg_java().table("shop.events")


def _snapshot_id(commit: Commit) -> int:
    assert commit.snapshot_id is not None
    return commit.snapshot_id


def test_p14_java_entries_carry_the_snapshot_and_sequence_number_that_committed_them(place: Place) -> None:
    with place.lake() as lake:
        events, table = _table(place, lake)
        commits = [events.append([{"id": n}]) for n in range(3)]
    expected = {(_snapshot_id(commit), commit.sequence_number) for commit in commits}
    entries = table.entries()
    assert {(entry["snapshot_id"], entry["sequence_number"]) for entry in entries} == expected
    assert all(entry["file_sequence_number"] == entry["sequence_number"] for entry in entries)
    assert {m["snapshot_id"] for m in table.manifests()} == {_snapshot_id(commit) for commit in commits}


@pytest.mark.parametrize("merging", ["true", "false"])
def test_p14_java_incremental_scan_returns_each_append_once(sqlite_place: Place, merging: str) -> None:
    merge = {"commit.manifest-merge.enabled": merging, "commit.manifest.min-count-to-merge": "3"}
    with sqlite_place.lake() as lake:
        events, table = _table(sqlite_place, lake, **merge)
        commits = [_snapshot_id(events.append([{"id": n}])) for n in range(8)]
        paths = [file["path"] for file in sorted(table.plan(), key=lambda file: file["sequence_number"])]
    assert (len(table.manifests()) < 8) == (merging == "true")
    assert {entry["snapshot_id"] for entry in table.entries()} == set(commits)
    for since in range(7):
        for until in range(since + 1, 8):
            added = table.appends_between(commits[since], commits[until])
            assert sorted(file["path"] for file in added) == sorted(paths[since + 1 : until + 1])


def test_p14_an_append_that_lost_a_race_reuses_its_manifest_and_java_dates_it_by_the_commit(place: Place) -> None:
    with place.lake() as lake:
        events, table = _table(place, lake)
        base = _snapshot_id(events.append([{"id": 0}]))

        def java_goes_first(phase: Phase, attempt: int) -> None:
            if phase is Phase.PREPARED and attempt <= 2:
                table.append([{"id": 100 + attempt}])

        commit = events.append([{"id": 1}], on_phase=java_goes_first)
        assert commit.attempts == 3
        assert commit.rebased_over == 2
    (ours,) = [entry for entry in table.entries() if entry["snapshot_id"] == commit.snapshot_id]
    assert ours["sequence_number"] == ours["file_sequence_number"] == commit.sequence_number == 4
    assert len(table.appends_between(base)) == 3
    assert sorted(row["id"] for row in table.rows()) == [0, 1, 101, 102]
    assert unreferenced(place.pyiceberg().load_table("shop.events")) == set()


@pytest.mark.parametrize("kind", ["overwrite", "row_delta"])
def test_p14_java_conflict_checks_see_rows_that_frazil_appended(sqlite_place: Place, kind: str) -> None:
    with sqlite_place.lake() as lake:
        events, table = _table(sqlite_place, lake)
        base = _snapshot_id(events.append([{"id": 1}]))
        events.append([{"id": 50}])
        touched = {"type": "gt", "term": "id", "value": 40}
        with pytest.raises(JavaError) as refused:
            table.commit_unless_conflict(kind, base, touched, [{"id": 60}])
        assert refused.value.kind == "ValidationException"
        # The bounds of the appended file let Java see that other rows are not concerned.
        untouched = {"type": "lt", "term": "id", "value": 40}
        table.commit_unless_conflict(kind, base, untouched, [{"id": 2}])
        assert ids(events.scan()) == [1, 2, 50]


def test_java_expires_snapshots_of_frazil_and_both_read_on(place: Place) -> None:
    with place.lake() as lake:
        events, table = _table(place, lake)
        for number in range(4):
            events.append([{"id": number}])
        table.expire_all_but_head()
        assert len(table.metadata()["snapshots"]) == 1
        assert ids(events.scan()) == [0, 1, 2, 3]
        events.append([{"id": 4}])
    assert sorted(row["id"] for row in table.rows()) == [0, 1, 2, 3, 4]
    kept = place.pyiceberg().load_table("shop.events").snapshots()
    assert all(local_path(snapshot.manifest_list).exists() for snapshot in kept)


def test_java_reads_and_writes_on_after_frazil_expired_snapshots(place: Place) -> None:
    with place.lake() as lake:
        events, table = _table(place, lake)
        for number in range(5):
            events.append([{"id": number}])
        tagged = _snapshot_id(events.append([{"id": 5}]))
        events.create_tag("kept", tagged)
        events.delete("id = 0")
        last = _snapshot_id(events.append([{"id": 6}]))
        assert events.expire_snapshots(older_than=10**15, retain_last=1).changed
        seen = table.metadata()
        assert [each["snapshot_id"] for each in seen["snapshots"]] == [tagged, last]
        assert [each["snapshot_id"] for each in seen["history"]] == [last]
        assert sorted(row["id"] for row in table.rows()) == [1, 2, 3, 4, 5, 6]
        table.append([{"id": 7}])
        assert ids(events.scan()) == [1, 2, 3, 4, 5, 6, 7]
        # Java finds nothing more to expire than its own append made old.
        table.expire_all_but_head()
        assert len(events.history()) == 2
        assert ids(events.scan(ref="kept")) == [0, 1, 2, 3, 4, 5]
        assert ids(events.scan()) == [1, 2, 3, 4, 5, 6, 7]


def test_p18_a_delete_whose_base_java_expired_with_its_files_is_told_so(sqlite_place: Place) -> None:
    with sqlite_place.lake() as lake:
        events, table = _table(sqlite_place, lake)
        events.append([{"id": 1}, {"id": 2}])
        late = lake.transaction()
        late.table("shop.events").delete("id = 1")
        for number in range(10, 13):
            table.append([{"id": number}])
        table.expire_all_but_head()
        # Another process has nothing in memory.
        lake.storage.parsed = type(lake.storage.parsed)()
        with pytest.raises(ConflictError, match="has expired and its files were removed"):
            late.commit()
        assert ids(events.scan()) == [1, 2, 10, 11, 12]


def test_history_reads_the_same_in_java(sqlite_place: Place) -> None:
    with sqlite_place.lake() as lake:
        events, table = _table(sqlite_place, lake)
        for number in range(3):
            events.append([{"id": number}], snapshot_properties={"job": f"j{number}"})
            table.append([{"id": 10 + number}])
        ours = events.history()
    seen = table.metadata()
    theirs = seen["snapshots"]
    assert [each.snapshot_id for each in ours] == [each["snapshot_id"] for each in theirs]
    assert [each.parent_snapshot_id for each in ours] == [each["parent_id"] for each in theirs]
    assert [each.sequence_number for each in ours] == [each["sequence_number"] for each in theirs] == [1, 2, 3, 4, 5, 6]
    assert [each["snapshot_id"] for each in seen["history"]] == [each["snapshot_id"] for each in theirs]
    totals = [(s["summary"]["total-records"], s["summary"]["total-data-files"]) for s in theirs]
    assert totals == [(str(n), str(n)) for n in range(1, 7)]
    assert [s["summary"].get("job") for s in theirs[::2]] == ["j0", "j1", "j2"]
    times = [each["timestamp_ms"] for each in theirs]
    assert times == sorted(times)
