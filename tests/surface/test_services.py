"""Services of a lake's tables: when they run, what the timeline says, who leads, and that no writer notices."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest

import frazil
from frazil.commit.context import Phase
from frazil.errors import InvalidInput
from frazil.model import ActionState, Ident, TimelineEntry
from frazil.services import after_commit, execution
from frazil.services.execution import owner_of
from frazil.services.leases import LEADER, TableLeases
from frazil.services.registry import service_for
from frazil.services.timeline import Action, fail_silent
from surface.matrix import files_of, named_files

EVENTS = Ident.parse("s.events")
_RESOLVER = service_for("resolve deletes", frazil.Table)
assert _RESOLVER is not None
RESOLVER = _RESOLVER.name
"""The service that resolves equality deletes in this version."""
SERVICE = {"frazil.services.mode": "service", "frazil.services.small-files": "3"}


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[frazil.Lake]:
    if request.param == "postgres":
        uri, warehouse = request.getfixturevalue("postgres_uri"), str(tmp_path / "warehouse")
    else:
        uri, warehouse = "memory://" if request.param == "memory" else str(tmp_path / "lake"), None
    with frazil.connect(uri, warehouse=warehouse, app="tests") as lake:
        lake.create_namespace("s")
        yield lake


def events(lake: frazil.Lake, properties: dict[str, str] | None = None, appends: int = 3) -> frazil.Table:
    table = lake.create_table("s.events", "id bigint not null, v bigint", keys=["id"], properties=properties or {})
    for key in range(appends):
        table.append([{"id": key, "v": 0}])
    return table


def ids(table: frazil.Table) -> list[int]:
    return sorted(row["id"] for row in table.scan().to_arrow().to_pylist())


def states(table: frazil.Table) -> list[tuple[str, str]]:
    return [(each.service, str(each.state)) for each in table.timeline()]


# A process of its own


def test_one_round_runs_what_is_due_and_records_it(lake: frazil.Lake) -> None:
    table = events(lake, SERVICE)
    other = lake.create_table("s.other", "id bigint")
    for _ in range(4):
        other.append([{"id": 1}])
    (done,) = lake.services(interval_s=1).run(once=True)
    assert (done.table, done.service, done.reason, done.error) == ("s.events", "compact", "3 small files", None)
    assert (len(table.files()), len(other.files())) == (1, 4)
    (entry,) = table.timeline()
    assert (entry.service, entry.state, entry.app) == ("compact", ActionState.COMPLETED, "tests")
    assert (entry.plan["reason"], entry.plan["health"]["small_files"]) == ("3 small files", 3)
    assert (entry.outcome["commit_ids"], entry.outcome["files_removed"]) == ([entry.action_id], 3)
    assert None not in (entry.started_ms, entry.completed_ms)
    assert entry.requested_ms <= (entry.started_ms or 0) <= (entry.completed_ms or 0)
    found = lake.catalog.find_commit(lake.catalog.load(EVENTS).metadata, entry.action_id)
    assert found is not None
    assert found.snapshot_id == table.history()[-1].snapshot_id
    assert lake.services(interval_s=1).run(once=True) == []
    assert states(table) == [("compact", "completed")]
    assert ids(table) == [0, 1, 2]


def test_named_tables_are_served_whatever_their_mode(lake: frazil.Lake) -> None:
    table = events(lake, {"frazil.services.small-files": "3"})
    assert lake.services().run(once=True) == []
    assert [each.service for each in lake.services(["s.events", "s.gone"]).run(once=True)] == ["compact"]
    assert len(table.files()) == 1
    for bad in ("s.events", 7):
        with pytest.raises(InvalidInput):
            lake.services(bad)  # type: ignore[arg-type]


def test_expired_snapshots_are_expired(lake: frazil.Lake) -> None:
    properties = {**SERVICE, "frazil.services.small-files": "0", "frazil.services.expired-snapshots": "2"}
    table = events(lake, {**properties, "history.expire.max-snapshot-age-ms": "0"})
    assert [each.service for each in lake.services().run(once=True)] == ["expire snapshots"]
    assert len(table.history()) == 1
    assert states(table) == [("expire snapshots", "completed")]


def test_a_service_that_fails_does_not_stop_the_others(lake: frazil.Lake) -> None:
    limits = {"frazil.arrow.max-bytes": "1", "frazil.services.expired-snapshots": "2"}
    table = events(lake, {**SERVICE, **limits, "history.expire.max-snapshot-age-ms": "0"})
    failed, expired = lake.services().run(once=True)
    assert (failed.service, type(failed.error).__name__) == ("compact", "Unsupported")
    assert (expired.service, expired.error) == ("expire snapshots", None)
    assert states(table) == [("expire snapshots", "completed"), ("compact", "failed")]
    assert table.timeline()[1].outcome == {"error": "Unsupported"}
    assert lake.services().run(once=True) == [], "it rests after a failure"


def test_p44_a_table_has_one_leader_and_the_next_one_takes_over_at_once(lake: frazil.Lake) -> None:
    table = events(lake, SERVICE, appends=0)
    leader, other = lake.services(interval_s=0.01), lake.services()
    assert lake.catalog.leases is not None
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(leader.run)
        while not lake.catalog.leases.held(table.uuid):
            assert not running.done()
        leader.stop()
        running.result(60)
    assert lake.catalog.leases.held(table.uuid) == [], "handed over"
    for key in range(3):
        table.append([{"id": key, "v": 0}])
    held = TableLeases(lake.catalog.leases, table.uuid, "another process")
    assert held.take(LEADER)
    assert other.run(once=True) == []
    assert len(table.files()) == 3
    held.release()
    assert [each.service for each in other.run(once=True)] == ["compact"]


def test_a_service_that_was_called_by_hand_is_in_the_timeline(lake: frazil.Lake) -> None:
    table = events(lake)
    table.compact(dry_run=True)
    assert table.timeline() == []
    done = table.compact()
    table.expire_snapshots(retain_last=1)
    table.set_properties({"frazil.arrow.max-bytes": "1"})
    for _ in range(2):
        table.append([{"id": 9, "v": 0}])
    with pytest.raises(frazil.Unsupported):
        table.compact()
    failed, expired, compacted = table.timeline()
    assert (compacted.service, compacted.state) == ("compact", ActionState.COMPLETED)
    assert (compacted.outcome["commit_ids"], compacted.outcome["files_removed"]) == ([done.commit_id], 3)
    assert (expired.service, expired.state) == ("expire snapshots", ActionState.COMPLETED)
    assert (failed.state, failed.outcome) == (ActionState.FAILED, {"error": "Unsupported"})


# After a crash


def crashed(lake: frazil.Lake, table: frazil.Table, action_id: str) -> Action:
    """An action of a process that is gone."""
    action = Action(lake.catalog.timeline, table.uuid, "compact", owner_of(lake), action_id)
    action.request({"reason": "3 small files"})
    return action


def test_p44_what_a_dead_process_left_is_ended_by_the_next_run(lake: frazil.Lake) -> None:
    table = events(lake, SERVICE)
    crashed(lake, table, "never-began")
    at_work = crashed(lake, table, "at-work")
    at_work.start()
    at_work.advanced(1, 4, {"staged": ["s3://b/t/data/p=7/staged-1"]})
    landed = crashed(lake, table, "landed")
    landed.start()
    table.append([{"id": 3, "v": 0}], commit_id="landed")
    alive = crashed(lake, table, "alive")
    alive.start()
    metadata = lake.catalog.load(EVENTS).metadata
    assert fail_silent(lake.catalog, metadata) == []
    alive.is_lost = False
    ended = fail_silent(lake.catalog, metadata, silent_ms=-1_000_000)
    assert len(ended) == 4
    found = {each.action_id: each for each in table.timeline()}
    assert {name: str(each.state) for name, each in found.items()} == {
        "never-began": "failed",
        "at-work": "failed",
        "landed": "completed",
        "alive": "failed",
    }
    left = found["at-work"].outcome
    assert (left["error"], left["commit_ids"], left["leftovers"]["staged"]) == ("no sign of life", [], ["staged-1"])
    assert left["leftovers"]["since_ms"] == found["at-work"].started_ms
    assert found["landed"].outcome["commit_ids"] == ["landed"]
    alive.beat()
    assert alive.is_lost
    assert alive.should_stop, "its owner learns that it was taken for dead"
    alive.complete({})
    assert table.timeline()[0].state is ActionState.FAILED


def test_the_next_run_begins_by_ending_what_is_silent(lake: frazil.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    table = events(lake, SERVICE)
    crashed(lake, table, "dead").start()
    assert lake.services().run(once=True) == [], "it may be at work"
    monkeypatch.setattr(execution, "fail_silent", partial(fail_silent, silent_ms=-1_000_000))
    assert lake.services().run(once=True) == [], "it has just failed, and rests"
    table.set_properties({"frazil.services.rest-ms": "0"})
    assert [each.error for each in lake.services().run(once=True)] == [None]
    assert states(table) == [("compact", "completed"), ("compact", "failed")]


def test_a_service_at_work_gives_signs_of_life(lake: frazil.Lake) -> None:
    table = events(lake)
    action = crashed(lake, table, "long")
    action.start()
    leases = TableLeases(lake.catalog.leases, table.uuid, "me", lives_ms=600_000)
    assert leases.take(LEADER)
    before = table.timeline()[0].heartbeat_ms
    assert lake.catalog.leases is not None
    with execution.signs_of_life(action, leases, beat_s=0.001):
        while table.timeline()[0].heartbeat_ms <= before:
            pass
    assert table.timeline()[0].state is ActionState.INFLIGHT


# Leases split the work


def partitioned(lake: frazil.Lake) -> frazil.Table:
    table = lake.create_table("s.events", "id bigint not null, p int", partition_by=["p"])
    for key in range(2):
        table.append([{"id": 4 * key + p, "p": p} for p in range(4)])
    return table


def compact(table: frazil.Table, claim: Callable[[Any], bool], **options: Any) -> frazil.Commit:
    return table.compact(claim=claim, **options)


def test_p44_two_compactions_split_the_groups_by_leases(lake: frazil.Lake) -> None:
    table = partitioned(lake)
    one, two = (TableLeases(lake.catalog.leases, table.uuid, name) for name in ("one", "two"))
    others: list[frazil.Commit] = []
    asked: list[bool] = []

    def claim(paths: Any) -> bool:
        asked.append(one.claim(paths))
        if len(asked) == 2:
            others.append(compact(table, two.claim))
        return asked[-1]

    done = compact(table, claim)
    assert asked == [True, True, False, False]
    assert (done.files_removed, others[0].files_removed) == (4, 4)
    assert (done.redone, done.attempts) == (0, 1), "nothing was done twice"
    assert len(table.files()) == 4
    assert ids(table) == list(range(8))
    assert stray_files(table) == set()


def in_two_commits(table: frazil.Table) -> dict[str, str]:
    """Properties with which two groups of files are a file's worth of data."""
    size = max(each.bytes for each in table.files())
    return {**SERVICE, "frazil.services.small-files": "8", "write.target-file-size-bytes": str(21 * size // 10)}


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_compaction_in_several_commits_is_one_action(lake: frazil.Lake, *, by_hand: bool) -> None:
    table = partitioned(lake)
    table.set_properties(in_two_commits(table))
    if by_hand:
        table.compact()
    else:
        assert [each.error for each in lake.services().run(once=True)] == [None]
    (entry,) = table.timeline()
    assert (entry.service, entry.state, entry.done, entry.total) == ("compact", ActionState.COMPLETED, 2, 2)
    metadata = lake.catalog.load(EVENTS).metadata
    made = entry.outcome["commit_ids"]
    assert len(made) == len({*made}) == 2
    if not by_hand:
        found = [lake.catalog.find_commit(metadata, each) for each in made]
        landed = [each.snapshot_id for each in found if each is not None]
        assert landed == [each.snapshot_id for each in table.history()[-2:]]
        assert made[0] == entry.action_id
    assert (entry.outcome["files_removed"], entry.plan["files"], len(table.files())) == (8, 8, 4)
    assert ids(table) == list(range(8))


def test_p44_with_leases_ignored_exactly_one_of_two_lands(lake: frazil.Lake) -> None:
    table = partitioned(lake)
    others: list[frazil.Commit] = []

    def on_phase(phase: Phase, attempt: int) -> None:
        if (phase, attempt) == (Phase.PREPARED, 1):
            others.append(table.compact())

    done = table.compact(on_phase=on_phase)
    assert (others[0].changed, others[0].files_removed) == (True, 8)
    assert not done.changed
    assert len(table.files()) == 4
    assert ids(table) == list(range(8))
    assert stray_files(table) == set()


def stray_files(table: frazil.Table) -> set[str]:
    found, named = ({path.removeprefix("file://") for path in of(table)} for of in (files_of, named_files))
    return found - named


def test_a_group_of_which_another_has_a_part_is_left_alone(lake: frazil.Lake) -> None:
    table = events(lake)
    one, two = (TableLeases(lake.catalog.leases, table.uuid, name) for name in ("one", "two"))
    assert one.claim(["b"])
    assert not two.claim(["a", "b", "c"])
    assert lake.catalog.leases is not None
    assert {each.owner for each in lake.catalog.leases.held(table.uuid)} == {"one"}
    assert one.claim(["a", "b"]), "what is one's own is no obstacle"
    one.release()
    assert two.claim(["a", "b", "c"])


# In a writer's process


def upserted(lake: frazil.Lake, number: int, **properties: str) -> frazil.Table:
    given = {key.replace("_", "-"): value for key, value in properties.items()}
    table = events(lake, {f"frazil.services.{key}": value for key, value in given.items()}, appends=0)
    for n in range(number):
        table.upsert([{"id": key, "v": n} for key in (1, 2)])
    return table


def equality_deletes(table: frazil.Table) -> int:
    return table.advise().health.equality_delete_files


def test_a_keyed_table_that_only_gets_upserts_resolves_its_deletes_by_itself(lake: frazil.Lake) -> None:
    table = upserted(lake, 0, equality_delete_files="5")
    for n in range(30):
        table.upsert([{"id": key, "v": n} for key in (1, 2)])
        assert equality_deletes(table) <= 6, "readers without equality deletes are never further behind"
    assert {row["id"]: row["v"] for row in table.scan().to_arrow().to_pylist()} == {1: 29, 2: 29}
    assert set(states(table)) == {(RESOLVER, "completed")}
    assert len(table.timeline()) >= 4


def test_without_a_policy_nothing_runs(lake: frazil.Lake) -> None:
    table = upserted(lake, 6, equality_delete_files="5", mode="off")
    assert equality_deletes(table) == 6
    assert table.timeline() == []
    assert [each.service for each in table.advise().due] == ["resolve deletes"]


def test_p44_a_service_that_fails_does_not_fail_the_writers_call(lake: frazil.Lake) -> None:
    table = upserted(lake, 4, equality_delete_files="5")
    table.set_properties({"frazil.arrow.max-bytes": "1"})
    done = [table.upsert([{"id": 1, "v": n}]) for n in range(4)]
    assert all(each.changed for each in done)
    assert states(table) == [(RESOLVER, "failed")], "once, not with every commit"
    assert table.scan(where="id = 1").to_arrow().to_pylist() == [{"id": 1, "v": 3}]


class RefusingTimeline:
    """A timeline whose database does not answer."""

    def __getattr__(self, name: str) -> NoReturn:
        raise frazil.CatalogUnavailable(f"no answer to {name}")


def test_p44_a_catalog_that_refuses_services_does_not_fail_the_writers_call(lake: frazil.Lake) -> None:
    table = upserted(lake, 4, equality_delete_files="5")
    lake.catalog.timeline = RefusingTimeline()  # type: ignore[misc]
    done = [table.upsert([{"id": 1, "v": n}]) for n in range(4)]
    assert all(each.changed for each in done)
    assert table.scan(where="id = 1").to_arrow().to_pylist() == [{"id": 1, "v": 3}]


def test_what_is_too_large_for_a_writers_call_is_left_to_a_process_of_its_own(lake: frazil.Lake) -> None:
    table = upserted(lake, 7, equality_delete_files="5", inline_max_bytes="1")
    (entry,) = table.timeline()
    assert (entry.state, entry.outcome) == (ActionState.FAILED, {"error": "TooLarge"})
    table.set_properties({"frazil.services.rest-ms": "0"})
    assert [each.error for each in lake.services(["s.events"]).run(once=True)] == [None]
    assert equality_deletes(table) == 0


def test_p44_inline_services_leave_a_table_to_its_leader(lake: frazil.Lake) -> None:
    table = upserted(lake, 0, equality_delete_files="5")
    leader = TableLeases(lake.catalog.leases, table.uuid, "another process")
    assert leader.take(LEADER)
    for n in range(8):
        table.upsert([{"id": 1, "v": n}])
    assert table.timeline() == []
    assert equality_deletes(table) == 8


def test_async_services_run_beside_the_writer(lake: frazil.Lake) -> None:
    table = upserted(lake, 6, equality_delete_files="5", mode="async")
    for each in threading.enumerate():
        if each.name == "frazil-services":
            each.join(60)
    assert states(table)[-1] == (RESOLVER, "completed")
    after_commit.close(lake)
    assert {each.name for each in threading.enumerate()}.isdisjoint({"frazil-services", "frazil-service-beat"})
    assert {row["id"]: row["v"] for row in table.scan().to_arrow().to_pylist()} == {1: 5, 2: 5}


def test_a_transaction_and_a_service_itself_start_no_service(lake: frazil.Lake) -> None:
    table = upserted(lake, 5, equality_delete_files="5")
    with lake.transaction() as tx:
        tx.table("s.events").upsert([{"id": 1, "v": 9}])
    assert table.timeline() == []
    table.compact()
    assert [each.plan["reason"] for each in table.timeline()] == ["it was called"]


# Advice


def test_advice_says_what_each_service_would_save(lake: frazil.Lake) -> None:
    table = upserted(lake, 6, equality_delete_files="5", mode="off")
    advice = table.advise()
    savings = {each.service: each for each in advice.savings}
    assert (advice.table, advice.mode) == ("s.events", "off")
    assert (advice.health.data_files, advice.health.equality_deletes, advice.health.snapshots) == (6, 12, 6)
    assert savings["compact"].files == 6 - 1 + 6
    assert savings["compact"].delete_rows == savings["resolve deletes"].delete_rows == 12
    assert (savings["resolve deletes"].reason, savings["compact"].is_due) == ("6 equality delete files", False)
    assert "deleted row" in str(advice)
    assert advice.to_dict()["health"]["equality_delete_files"] == 6
    assert advice.to_dict()["savings"][0]["service"] == "resolve deletes"
    before = len(table.history())
    table.compact()
    after = table.advise()
    assert (after.due, {each.service: each.files for each in after.savings}["compact"]) == ((), 0)
    assert len(table.history()) == before + 1


def test_the_advice_of_an_empty_table_is_nothing(lake: frazil.Lake) -> None:
    advice = events(lake, appends=0).advise()
    assert advice.due == ()
    assert all(each.is_nothing for each in advice.savings)


def test_a_timeline_is_bounded_by_the_callers_number(lake: frazil.Lake) -> None:
    table = events(lake)
    for number in range(3):
        crashed(lake, table, f"a{number}")
    assert [each.action_id for each in table.timeline(2)] == ["a2", "a1"]
    assert isinstance(table.timeline()[0], TimelineEntry)
    assert table.timeline()[0].to_dict()["state"] == "requested"
