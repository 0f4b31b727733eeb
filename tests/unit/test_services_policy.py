"""When a service is due, from numbers alone; and what a plan may say in the timeline."""

from __future__ import annotations

from dataclasses import replace

import pytest

import frazil
from frazil.errors import InvalidInput
from frazil.format.metadata import TableMetadata
from frazil.format.retention import MAX_SNAPSHOT_AGE
from frazil.model import ActionState, TimelineEntry
from frazil.services import policy
from frazil.services.health import TableHealth
from frazil.services.leases import group_scopes
from frazil.services.policy import Mode
from frazil.services.timeline import redacted

NOW = 1_800_000_000_000
PLAIN = TableHealth(data_files=10, rows=1000, small_files=9, snapshots=10, manifests=10)
DAY_MS = 24 * 3_600_000


def names(health: TableHealth, properties: dict[str, str] | None = None, *last: TimelineEntry) -> list[str]:
    return [each.service for each in policy.due(health, properties or {}, NOW, last)]


def action(service: str, state: ActionState, ago_ms: int) -> TimelineEntry:
    over = state in (ActionState.COMPLETED, ActionState.FAILED)
    return TimelineEntry("a", "t", service, state, completed_ms=NOW - ago_ms if over else None)


@pytest.mark.parametrize(
    ("health", "service", "reason"),
    [
        (replace(PLAIN, small_files=50), policy.COMPACT, "50 small files"),
        (replace(PLAIN, position_deletes=300, equality_deletes=9000), policy.COMPACT, "30 % of the rows are deleted"),
        (replace(PLAIN, equality_delete_files=100), policy.RESOLVE, "100 equality delete files"),
        (replace(PLAIN, position_delete_files=50), policy.REWRITE_DELETES, "50 position delete files"),
        (replace(PLAIN, expired_snapshots=100), policy.EXPIRE, "100 expired snapshots"),
        (replace(PLAIN, manifests=200), policy.MANIFESTS, "200 manifests"),
    ],
)
def test_each_trigger_has_its_service_and_a_healthy_table_none(health: TableHealth, service: str, reason: str) -> None:
    assert names(replace(PLAIN, equality_deletes=9000)) == []
    (found,) = policy.due(health, {}, NOW)
    assert (found.service, found.reason) == (service, reason)
    assert found.to_dict() == {"service": service, "reason": reason, "found": found.found, "limit": found.limit}
    off = dict.fromkeys(policy.DEFAULTS, "0")
    assert names(health, off) == []


def test_thresholds_are_properties() -> None:
    assert names(PLAIN, {policy.SMALL_FILES: "9"}) == [policy.COMPACT]
    assert names(PLAIN, {policy.SMALL_FILES: "10"}) == []
    assert names(PLAIN, {policy.SMALL_FILES: "many"}) == [], "what is not a number counts as the default"


def test_the_most_urgent_comes_first() -> None:
    bad = TableHealth(rows=1, small_files=99, equality_delete_files=999, expired_snapshots=999, manifests=999)
    assert names(bad) == [policy.RESOLVE, policy.COMPACT, policy.EXPIRE, policy.MANIFESTS]


def test_by_age_a_service_runs_if_there_is_something_to_do() -> None:
    daily = {policy.MAX_AGE: str(DAY_MS)}
    ran = [action(policy.COMPACT, ActionState.COMPLETED, ago) for ago in (DAY_MS - 1, DAY_MS)]
    assert names(PLAIN, daily) == [policy.COMPACT]
    assert names(PLAIN, daily, ran[0]) == []
    assert names(PLAIN, daily, ran[1]) == [policy.COMPACT]
    assert names(replace(PLAIN, small_files=0), daily) == []
    assert names(PLAIN, {policy.ORPHANS_EVERY: str(DAY_MS)}) == [policy.ORPHANS]


def test_a_service_rests_while_one_is_at_work_and_after_a_failure() -> None:
    health = replace(PLAIN, small_files=50)
    assert names(health, {}, action(policy.COMPACT, ActionState.INFLIGHT, 0)) == []
    assert names(health, {}, action(policy.COMPACT, ActionState.REQUESTED, 0)) == []
    assert names(health, {}, action(policy.EXPIRE, ActionState.INFLIGHT, 0)) == [policy.COMPACT]
    assert names(health, {}, action(policy.COMPACT, ActionState.FAILED, 59_999)) == []
    assert names(health, {}, action(policy.COMPACT, ActionState.FAILED, 60_000)) == [policy.COMPACT]
    assert names(health, {policy.REST: "0"}, action(policy.COMPACT, ActionState.FAILED, 1)) == [policy.COMPACT]
    assert names(health, {}, action(policy.COMPACT, ActionState.COMPLETED, 1)) == [policy.COMPACT]


# What is at hand after a commit


def metadata(
    summary: dict[str, str], properties: dict[str, str] | None = None, ages: list[int] | None = None
) -> TableMetadata:
    snapshots = [
        {"snapshot-id": number, "timestamp-ms": NOW - age, "sequence-number": number, "summary": summary}
        for number, age in enumerate(ages or [0], start=1)
    ]
    refs = {"main": {"type": "branch", "snapshot-id": len(snapshots)}}
    return TableMetadata({"properties": properties or {}, "snapshots": snapshots, "refs": refs})


def test_a_table_with_equality_deletes_resolves_them_inline_unless_told_otherwise() -> None:
    upserted = {"total-equality-deletes": "3"}
    assert policy.mode_of(metadata({})) is Mode.OFF
    assert policy.mode_of(metadata(upserted)) is Mode.INLINE
    for mode in Mode:
        assert policy.mode_of(metadata(upserted, {"frazil.services.mode": str(mode)})) is mode
    assert policy.mode_of(metadata(upserted, {"frazil.services.mode": "nonsense"})) is Mode.OFF


def test_a_look_is_worth_it_only_when_the_summary_says_so() -> None:
    assert not policy.may_be_due(metadata({"total-data-files": "49", "total-delete-files": "49"}), NOW)
    assert policy.may_be_due(metadata({"total-data-files": "50"}), NOW)
    assert policy.may_be_due(metadata({"total-delete-files": "50"}), NOW)
    few = {"total-equality-deletes": "1", "total-delete-files": "5"}
    assert not policy.is_due_by_count(metadata(few))
    assert policy.is_due_by_count(metadata(few, {policy.EQUALITY_DELETES: "5"}))
    assert not policy.is_due_by_count(metadata({"total-delete-files": "500"}))
    old = {policy.SNAPSHOTS: "2", MAX_SNAPSHOT_AGE: "1000"}
    assert policy.may_be_due(metadata({}, old, [1002, 1001, 0]), NOW)
    assert not policy.may_be_due(metadata({}, old, [1002, 1000, 0]), NOW)
    assert not policy.may_be_due(metadata({}, old, [1002, 1001]), NOW)


def test_bad_properties_are_refused_when_they_are_set() -> None:
    with frazil.connect("memory://") as lake:
        lake.create_namespace("s")
        table = lake.create_table("s.t", "id bigint")
        for key, value in {
            "frazil.services.mode": "always",
            policy.SMALL_FILES: "-1",
            "frazil.services.x": "y",
        }.items():
            with pytest.raises(InvalidInput, match=key.replace(".", r"\.")):
                table.set_properties({key: value})
        table.set_properties({"frazil.services.mode": "service", policy.SMALL_FILES: "7"})


# The timeline and leases, by value


def test_a_plan_in_the_timeline_has_no_values_of_rows() -> None:
    plan = {
        "where": "user_id = 7",
        "groups": [{"partition": {"user": 7}, "files": ["s3://b/wh/user=7/part-1.parquet"], "bytes": 5}],
        "params": {"u": 7},
        "keys": 3,
        "none": None,
        "many": list(range(200)),
    }
    found = redacted(plan)
    assert found["where"] == found["params"] == "[redacted]"
    assert found["groups"] == [{"partition": "[redacted]", "files": ["part-1.parquet"], "bytes": 5}]
    assert (found["keys"], found["none"], found["many"][-1]) == (3, None, "and 100 more")
    assert "7" not in str(found["groups"])


def test_groups_that_share_most_of_their_files_share_a_scope() -> None:
    files = [f"f{number}" for number in range(200)]
    assert group_scopes(files) == group_scopes(reversed(files))
    assert len(group_scopes(files)) == 8
    assert set(group_scopes(files)) & set(group_scopes(files[:150]))
    assert not set(group_scopes(files[:100])) & set(group_scopes(files[100:]))
    assert group_scopes(["f1"]) != group_scopes(["f2"])
