"""What services keep in the catalog: the timeline of their actions, and leases on parts of a table (rule P44)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from contract.openers import Address, Database, Opener
from frazil.catalog import _sql_timeline
from frazil.catalog._sql_timeline import ACTIONS_KEPT, ACTIONS_KEPT_MS
from frazil.catalog.base import ActionChange, Catalog, Leases, Timeline
from frazil.catalog.memory import MemoryStore
from frazil.errors import FrazilError
from frazil.model import ActionState, TimelineEntry
from frazil.runtime import SYSTEM

UUID, OTHER = "table-uuid", "another table"
HOUR_MS = 3_600_000
ACTION = TimelineEntry(
    action_id="a1",
    table_uuid=UUID,
    service="compact",
    owner="me",
    app="nightly",
    host="h1",
    pid=1 << 33,
    plan={"files": 3, "groups": [{"bytes": 1 << 40}]},
)
INFLIGHT, COMPLETED, FAILED = (
    ActionChange(state) for state in (ActionState.INFLIGHT, ActionState.COMPLETED, ActionState.FAILED)
)


def ids(found: list[TimelineEntry]) -> list[str]:
    return [each.action_id for each in found]


@pytest.fixture
def timeline(catalog: Catalog, opener: Opener) -> Timeline:
    if catalog.timeline is None:
        assert not opener.ours
        pytest.skip("third-party catalogs keep no timeline")
    return catalog.timeline


@pytest.fixture
def leases(catalog: Catalog, opener: Opener) -> Leases:
    if catalog.leases is None:
        assert not opener.ours
        pytest.skip("third-party catalogs keep no leases")
    return catalog.leases


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def later(request: pytest.FixtureRequest) -> Iterator[tuple[Timeline, Leases, Callable[[int], None]]]:
    """A timeline and leases with what makes time pass by the catalog's clock."""
    if request.param == "memory":
        clock = [SYSTEM.now_ms()]
        store = MemoryStore(runtime=replace(SYSTEM, now_ms=lambda: clock[0]))
        assert store.leases is not None

        def pass_in_memory(ms: int) -> None:
            clock[0] += ms

        yield store.timeline, store.leases, pass_in_memory
        return
    database: Database = request.getfixturevalue(f"{request.param}_db")
    with closing(database.open()) as sql:
        assert sql.timeline is not None
        assert sql.leases is not None

        def pass_in_database(ms: int) -> None:
            times = f"requested_at = requested_at - {ms}, heartbeat_at = heartbeat_at - {ms}"
            database.ask(f"UPDATE frazil_timeline SET {times}")
            database.ask(f"UPDATE frazil_leases SET deadline = deadline - {ms}")

        yield sql.timeline, sql.leases, pass_in_database


# The timeline


def test_an_action_goes_from_requested_over_inflight_to_completed(timeline: Timeline) -> None:
    before = SYSTEM.now_ms() - 60_000
    timeline.request(ACTION)
    (found,) = timeline.find(UUID, 10)
    assert before < found.requested_ms == found.heartbeat_ms < before + 120_000
    assert replace(found, requested_ms=0, heartbeat_ms=0) == ACTION
    change = ActionChange(ActionState.INFLIGHT, plan={"files": 4}, done=1, total=2, detail={"staged": ["x"]})
    assert timeline.advance("a1", "me", change)
    (found,) = timeline.find(UUID, 10)
    assert (found.state, found.plan, found.done, found.total) == (ActionState.INFLIGHT, {"files": 4}, 1, 2)
    assert (found.detail, found.completed_ms) == ({"staged": ["x"]}, None)
    assert found.started_ms is not None
    assert timeline.advance("a1", "me", ActionChange(ActionState.COMPLETED, done=2, outcome={"commit_ids": ["c"]}))
    (last,) = timeline.find(UUID, 10)
    assert (last.state, last.done, last.total, last.plan) == (ActionState.COMPLETED, 2, 2, {"files": 4})
    assert (last.outcome, last.started_ms) == ({"commit_ids": ["c"]}, found.started_ms)
    assert last.completed_ms is not None
    assert last.completed_ms >= found.heartbeat_ms >= found.requested_ms


def test_p44_a_state_is_changed_by_its_owner_alone_and_not_after_the_end(timeline: Timeline) -> None:
    timeline.request(ACTION)
    assert not timeline.advance("a1", "another", INFLIGHT)
    assert not timeline.advance("no such action", "me", INFLIGHT)
    assert timeline.advance("a1", "me", FAILED)
    for change in (INFLIGHT, COMPLETED, FAILED):
        assert not timeline.advance("a1", "me", change)
    (found,) = timeline.find(UUID, 10)
    assert found.state is ActionState.FAILED


def test_the_newest_actions_of_a_table_come_first(timeline: Timeline) -> None:
    for number in range(4):
        timeline.request(replace(ACTION, action_id=f"a{number}", table_uuid=OTHER if number == 1 else UUID))
    assert ids(timeline.find(UUID, 10)) == ["a3", "a2", "a0"]
    assert ids(timeline.find(UUID, 2)) == ["a3", "a2"]
    assert ids(timeline.find(OTHER, 2)) == ["a1"]


def test_other_processes_read_it(address: Address, timeline: Timeline) -> None:
    timeline.request(ACTION)
    with closing(address.open().catalog) as other:
        assert other.timeline is not None
        assert ids(other.timeline.find(UUID, 10)) == ["a1"]


def test_p44_an_owner_without_a_sign_of_life_loses_its_action_unless_it_beats(
    later: tuple[Timeline, Leases, Callable[[int], None]],
) -> None:
    timeline, _, passes = later
    for name in ("dead", "slow", "over"):
        timeline.request(replace(ACTION, action_id=name))
        assert timeline.advance(name, "me", INFLIGHT)
    assert timeline.advance("over", "me", COMPLETED)
    assert timeline.silent(UUID, HOUR_MS) == []
    passes(2 * HOUR_MS)
    dead, slow = timeline.silent(UUID, HOUR_MS)
    assert (dead.action_id, slow.action_id) == ("dead", "slow")
    assert timeline.silent(OTHER, HOUR_MS) == []
    assert timeline.advance("slow", "me", INFLIGHT), "its owner was only slow"
    for each in (dead, slow):
        change = ActionChange(ActionState.FAILED, heartbeat_ms=each.heartbeat_ms)
        assert timeline.advance(each.action_id, each.owner, change) is (each is dead)
    assert timeline.silent(UUID, HOUR_MS) == []
    assert not timeline.advance("dead", "me", COMPLETED)


def test_a_database_keeps_so_many_of_all_tables_and_none_for_longer(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_sql_timeline, "ACTIONS_KEPT", 3)
    with closing(database.open()) as store:
        timeline = store.timeline
        assert timeline is not None
        for number in range(5):
            timeline.request(replace(ACTION, action_id=f"a{number}", table_uuid=OTHER if number == 3 else UUID))
        assert ids(timeline.find(UUID, 10)) == ["a4", "a2"]
        database.ask(f"UPDATE frazil_timeline SET heartbeat_at = heartbeat_at - {ACTIONS_KEPT_MS + 60_000}")
        timeline.request(ACTION)
        assert database.ask("SELECT action_id FROM frazil_timeline") == [("a1",)]


def test_memory_keeps_so_many_and_none_for_longer() -> None:
    now = 10 * ACTIONS_KEPT_MS
    store = MemoryStore(runtime=replace(SYSTEM, now_ms=lambda: now))
    for number in range(ACTIONS_KEPT + 2):
        store.timeline.request(replace(ACTION, action_id=str(number)))
    found = ids(store.timeline.find(UUID, ACTIONS_KEPT + 10))
    assert (len(found), found[0], found[-1]) == (ACTIONS_KEPT, str(ACTIONS_KEPT + 1), "2")
    now += ACTIONS_KEPT_MS + 1
    store.timeline.request(ACTION)
    assert ids(store.timeline.find(UUID, 10)) == ["a1"]


def test_a_reader_reads_it_and_changes_nothing(database: Database) -> None:
    with closing(database.open()) as store:
        assert store.timeline is not None
        store.timeline.request(ACTION)
    with closing(database.open(read_only=True)) as reader:
        assert reader.timeline is not None
        assert ids(reader.timeline.find(UUID, 10)) == ["a1"]
        assert reader.leases is None
        with pytest.raises(FrazilError, match="read_only"):
            reader.timeline.advance("a1", "me", INFLIGHT)


def test_an_older_database_is_without_until_a_writer_opens_it(database: Database) -> None:
    with closing(database.open()):
        pass
    database.ask("DROP TABLE frazil_timeline")
    database.ask("DROP TABLE frazil_leases")
    with closing(database.open(read_only=True)) as reader:
        assert (reader.timeline, reader.leases) == (None, None)
    with closing(database.open()) as writer:
        assert writer.timeline is not None
        writer.timeline.request(ACTION)
        assert writer.leases is not None
        assert writer.leases.acquire(UUID, "leader", "me", HOUR_MS)


# Leases


def test_p44_a_scope_has_one_owner_until_it_is_released(leases: Leases) -> None:
    assert leases.acquire(UUID, "leader", "me", HOUR_MS)
    assert leases.acquire(UUID, "leader", "me", HOUR_MS), "its owner extends it"
    assert not leases.acquire(UUID, "leader", "another", HOUR_MS)
    assert leases.acquire(UUID, "group 1", "another", HOUR_MS)
    assert leases.acquire(OTHER, "leader", "another", HOUR_MS)
    assert [(each.scope, each.owner) for each in leases.held(UUID)] == [("group 1", "another"), ("leader", "me")]
    assert all(0 < each.left_ms <= HOUR_MS for each in leases.held(UUID))
    leases.release(UUID, "another", "leader")
    assert not leases.acquire(UUID, "leader", "another", HOUR_MS), "it was not theirs to release"
    leases.release(UUID, "me")
    assert leases.acquire(UUID, "leader", "another", HOUR_MS)
    leases.release(UUID, "another", "group 1")
    assert [(each.scope, each.owner) for each in leases.held(UUID)] == [("leader", "another")]


def test_a_lease_that_expired_is_another_owners(later: tuple[Timeline, Leases, Callable[[int], None]]) -> None:
    _, leases, passes = later
    for scope in ("leader", "group"):
        assert leases.acquire(UUID, scope, "me", 2 * HOUR_MS)
    passes(HOUR_MS)
    assert leases.extend(UUID, "me", 2 * HOUR_MS) == 2
    assert leases.extend(UUID, "another", 2 * HOUR_MS) == 0
    passes(HOUR_MS + 1)
    assert not leases.acquire(UUID, "leader", "another", HOUR_MS)
    passes(HOUR_MS)
    assert leases.held(UUID) == []
    assert leases.acquire(UUID, "leader", "another", HOUR_MS)
    assert leases.extend(UUID, "me", HOUR_MS) == 0, "what has expired is gone"
