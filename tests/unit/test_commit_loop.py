"""The loop on the memory catalog: exact interleavings by phases, lost answers by a referee that misbehaves."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import orjson
import pytest

from frazil.catalog.base import Catalog, Committed, Guard, Head, Outcome, Prepared, Proposal, Stale, Unknown
from frazil.catalog.memory import MemoryStore
from frazil.catalog.pointer import PointerCatalog
from frazil.catalog.store import Swap
from frazil.commit.context import CommitContext, Phase
from frazil.commit.intents import ExpireSnapshots, NewRef, PropertyChange
from frazil.commit.loop import commit
from frazil.commit.operations import Base, Identity, Kind, MetadataChange, Write
from frazil.commit.retry import Retry
from frazil.errors import (
    CatalogUnavailable,
    CommitUnknown,
    ConflictError,
    CorruptMetadata,
    DiskFull,
    InvalidInput,
    NoSuchTable,
    PermissionDenied,
    RetriesExhausted,
    Unsupported,
)
from frazil.format.manifests import UNKNOWN_COUNT, read_manifest, read_manifest_list
from frazil.format.storage import Storage
from frazil.model import Commit, DataFile, Ident
from frazil.runtime import Runtime
from unit.samples import appending, metadata

IDENT = Ident(("ns",), "t")


@dataclass
class VirtualTime:
    """A clock that moves only in ``sleep``."""

    now: float = 1_000_000.0
    slept: list[float] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def runtime(self) -> Runtime:
        return Runtime(lambda: int(self.now * 1000), lambda: self.now, self.sleep, lambda: 0.5, uuid.uuid4)


class Referee:
    """A catalog whose swaps go through ``script``: each item turns (real swap, prepared) into an outcome."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self.capabilities = catalog.capabilities
        self.name = catalog.name
        self.script: list[Callable[[Callable[[], Outcome]], Outcome]] = []
        self.swaps = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)

    def swap(self, *prepared: Prepared, guards: Sequence[Guard] = ()) -> Outcome:
        self.swaps += 1
        if not self.script:
            return self._catalog.swap(*prepared, guards=guards)
        return self.script.pop(0)(lambda: self._catalog.swap(*prepared, guards=guards))


def lands_but_answer_is_lost(swap: Callable[[], Outcome]) -> Outcome:
    swap()
    return Unknown("connection lost after the swap")


def never_arrives(_: Callable[[], Outcome]) -> Outcome:
    return Unknown("connection lost before the swap")


def unreachable(_: Callable[[], Outcome]) -> Outcome:
    raise CatalogUnavailable("The catalog is away")


@dataclass
class World:
    storage: Storage
    referee: Referee
    time: VirtualTime
    store: MemoryStore

    def append(self, name: str, *, on_phase: Any = None, retry: Retry | None = None, **changes: Any) -> Commit:
        identity = changes.pop("identity", Identity(f"id-{name}-{uuid.uuid4()}", "d", given=False))
        path = f"memory://w/t/data/{name}.parquet"
        self.storage.write(path, b"rows")
        operation = appending(DataFile(path, record_count=10, file_size_in_bytes=4), **changes)
        return commit(self.context(on_phase), operation, identity, retry or Retry())

    def change(self, intent: Any, identity: Identity | None = None) -> Commit:
        operation = MetadataChange(metadata().uuid, intent)
        return commit(self.context(), operation, identity or Identity("change", "d", given=False), Retry())

    def context(self, on_phase: Any = None) -> CommitContext:
        context = CommitContext(self.referee, self.storage, IDENT, self.time.runtime())
        return replace(context, on_phase=on_phase) if on_phase else context

    def live_files(self) -> list[str]:
        head = self.referee.load(IDENT).metadata.head_snapshot()
        if head is None or head.manifest_list is None:
            return []
        manifests = read_manifest_list(self.storage, head.manifest_list)
        return sorted(
            entry.file.file_path.rsplit("/", 1)[1].removesuffix(".parquet")
            for manifest in manifests
            for entry in read_manifest(self.storage, manifest)
        )

    def all_files(self) -> set[str]:
        return {info.path for info in self.storage.list("memory://w/t")}

    def unreferenced(self) -> set[str]:
        """Files that no version of the table names."""
        head = self.referee.load(IDENT)
        named = {head.location, *(entry["metadata-file"] for entry in head.metadata.raw.get("metadata-log", ()))}
        for snapshot in head.metadata.snapshots():
            assert snapshot.manifest_list is not None
            named.add(snapshot.manifest_list)
            for manifest in read_manifest_list(self.storage, snapshot.manifest_list):
                named.add(manifest.manifest_path)
                named.update(entry.file.file_path for entry in read_manifest(self.storage, manifest))
        return self.all_files() - named


@pytest.fixture
def world() -> World:
    storage, time, store = Storage(), VirtualTime(), MemoryStore()
    # Attempts without the queue, which is tested in test_groups.py.
    store.queue = None
    store.create_namespace(("ns",), {})
    referee = Referee(PointerCatalog(store, storage, time.runtime()))
    referee.create(IDENT, metadata())
    return World(storage, referee, time, store)


def racing(world: World, *names: str) -> Callable[[Phase, int], None]:
    """Other writers commit between the read of the head and the swap: one per attempt, in order."""
    waiting = list(names)

    def on_phase(phase: Phase, _: int) -> None:
        if phase is Phase.PREPARED and waiting:
            world.append(waiting.pop(0))

    return on_phase


# Races


def test_a_lost_race_is_rebased_and_both_appends_stay(world: World) -> None:
    done = world.append("mine", on_phase=racing(world, "theirs"))
    assert (done.attempts, done.rebased_over, done.sequence_number) == (2, 1, 2)
    assert world.live_files() == ["mine", "theirs"]


def test_p13_losing_attempts_leave_no_file_behind(world: World) -> None:
    world.append("mine", on_phase=racing(world, "a", "b", "c"))
    assert world.unreferenced() == set()


def test_law_3_the_operations_manifest_is_written_once_over_all_attempts(world: World) -> None:
    written: list[str] = []
    write = world.storage.write

    def recording(path: str, data: bytes, *, sync: bool = True) -> None:
        written.append(path)
        write(path, data, sync=sync)

    world.storage.write = recording  # type: ignore[method-assign]
    done = world.append("mine", on_phase=racing(world, "a", "b"))
    assert done.attempts == 3
    manifests = [path for path in written if path.endswith("-m0.avro")]
    assert len(manifests) == 3, "one of each writer, not one of each attempt"


def test_law_4_the_head_is_read_afresh_in_every_attempt(world: World) -> None:
    heads: list[str] = []

    def on_phase(phase: Phase, attempt: int) -> None:
        if phase is Phase.HEAD_READ:
            heads.append(world.store.read(IDENT).location)
        if phase is Phase.PREPARED and attempt < 3:
            world.append(f"other-{attempt}")

    world.append("mine", on_phase=on_phase)
    assert len(set(heads)) == 3


def test_the_race_budget_is_kept_and_staged_rows_go_when_it_is_used_up(world: World) -> None:
    with pytest.raises(RetriesExhausted, match="lost 3 races") as caught:
        world.append("mine", on_phase=racing(world, *"abcdefgh"), retry=Retry(tries=3))
    assert caught.value.attempts == 3
    assert world.live_files() == ["a", "b", "c"]
    assert world.unreferenced() == set()
    assert world.time.slept == pytest.approx([0.05, 0.1])


def test_the_total_time_is_a_limit_of_its_own(world: World) -> None:
    with pytest.raises(RetriesExhausted, match=r"used up its time of 0\.1 s"):
        world.append("mine", on_phase=racing(world, *"abcdefgh"), retry=Retry(total_s=0.1))
    assert world.unreferenced() == set()


def test_faults_have_a_budget_of_their_own(world: World) -> None:
    world.referee.script = [unreachable] * 3
    done = world.append("mine", retry=Retry(tries=1, fault_tries=3))
    assert done.attempts == 4
    assert world.unreferenced() == set()


def test_too_many_faults_raise_the_fault_and_clean_up(world: World) -> None:
    world.referee.script = [unreachable] * 9
    with pytest.raises(CatalogUnavailable):
        world.append("mine", retry=Retry(fault_tries=2))
    assert world.live_files() == []
    assert world.unreferenced() == set()


def test_a_full_disk_is_not_tried_again(world: World) -> None:
    def full(path: str, data: bytes, *, sync: bool = True) -> None:
        raise DiskFull(f"Cannot write {path}: the disk is full")

    world.storage.write, write = full, world.storage.write  # type: ignore[method-assign]
    try:
        with pytest.raises(DiskFull):
            commit(world.context(), _append_of("x"), Identity("i", "d", given=False), Retry())
    finally:
        world.storage.write = write  # type: ignore[method-assign]
    assert world.time.slept == []
    assert world.unreferenced() == set()


def _append_of(name: str) -> Write:
    file = DataFile(f"memory://w/t/data/{name}.parquet", record_count=1, file_size_in_bytes=1)
    return appending(file)


# Conflicts


def test_a_conflict_stops_at_once_names_the_check_and_removes_the_rows(world: World) -> None:
    with pytest.raises(ConflictError) as caught:
        world.append("mine", written_ids={1: "id", 2: "name", 9: "ghost"})
    assert [each.check for each in caught.value.conflicts] == ["schema still compatible"]
    assert "ghost" in str(caught.value)
    assert world.unreferenced() == set()


def test_p16_a_table_dropped_and_recreated_concurrently_is_another_table(world: World) -> None:
    def on_phase(phase: Phase, attempt: int) -> None:
        if phase is Phase.PREPARED and attempt == 1:
            world.store.delete(IDENT)
            world.referee.create(IDENT, metadata(table_uuid="22222222-2222-2222-2222-222222222222"))

    with pytest.raises(ConflictError, match="another one took its name"):
        world.append("mine", on_phase=on_phase)
    assert world.live_files() == []


def test_a_table_dropped_concurrently_is_an_error_and_the_rows_are_removed(world: World) -> None:
    def on_phase(phase: Phase, _: int) -> None:
        if phase is Phase.PREPARED:
            world.store.delete(IDENT)

    with pytest.raises(NoSuchTable):
        world.append("mine", on_phase=on_phase)
    assert not [path for path in world.all_files() if "mine" in path]


# Unknown outcomes (rule P9)


def test_p9_a_lost_answer_is_found_out_by_sending_the_same_swap_again(world: World) -> None:
    world.referee.script = [lands_but_answer_is_lost]
    done = world.append("mine")
    assert (done.attempts, world.referee.swaps) == (1, 2)
    assert world.live_files() == ["mine"]
    assert world.unreferenced() == set()


def test_p9_a_lost_answer_on_the_only_attempt_is_found_out_too(world: World) -> None:
    world.referee.script = [lands_but_answer_is_lost]
    assert world.append("mine", retry=Retry.none()).attempts == 1
    assert world.live_files() == ["mine"]


def test_p9_a_swap_that_never_arrived_lands_by_being_sent_again(world: World) -> None:
    world.referee.script = [never_arrives]
    assert world.append("mine").attempts == 1
    assert world.live_files() == ["mine"]


def test_p9_landed_and_then_followed_by_other_commits_is_found_in_history(world: World) -> None:
    def covered(swap: Callable[[], Outcome]) -> Outcome:
        swap()
        world.append("later")
        return Unknown("connection lost")

    world.referee.script = [covered]
    done = world.append("mine")
    assert (done.attempts, done.already_committed, done.rolled_back) == (1, False, False)
    assert world.live_files() == ["later", "mine"], "once, not twice"


def test_p9_absence_is_believed_when_the_head_moved_and_history_is_whole(world: World) -> None:
    def overtaken(_: Callable[[], Outcome]) -> Outcome:
        world.append("theirs")
        return Unknown("connection lost")

    world.referee.script = [overtaken]
    assert world.append("mine").attempts == 2
    assert world.live_files() == ["mine", "theirs"]
    assert world.unreferenced() == set()


def test_p9_absence_is_not_believed_when_history_is_broken(world: World) -> None:
    world.append("base")

    def history_lost(_: Callable[[], Outcome]) -> Outcome:
        world.append("theirs")
        head = world.referee.load(IDENT)
        newest = head.metadata.head_snapshot()
        assert newest is not None
        # Another engine expired everything but its own snapshot.
        kept = [each for each in head.metadata.raw["snapshots"] if each["snapshot-id"] == newest.snapshot_id]
        _replace_head(world, head.location, {"snapshots": kept})
        return Unknown("connection lost")

    world.referee.script = [history_lost]
    with pytest.raises(CommitUnknown) as caught:
        world.append("mine")
    assert "history" in str(caught.value)
    assert any("mine" in path for path in world.all_files()), "nothing that might be live is deleted"


def test_p9_absence_is_not_believed_when_expiry_broke_the_chain(world: World) -> None:
    world.append("base")

    def expired(_: Callable[[], Outcome]) -> Outcome:
        world.append("theirs")
        world.append("later")
        world.change(ExpireSnapshots(10**15, 1), Identity("expiry", "d", given=False))
        return Unknown("connection lost")

    world.referee.script = [expired]
    with pytest.raises(CommitUnknown, match="history between the base and the head is broken"):
        world.append("mine")
    assert any("mine" in path for path in world.all_files()), "nothing that might be live is deleted"


@pytest.mark.parametrize("versions", [100, 1])
def test_p9_a_commit_that_landed_and_expired_is_never_sent_again(world: World, versions: int) -> None:
    world.append("base")
    world.change(PropertyChange({"write.metadata.previous-versions-max": str(versions)}))

    def landed_and_expired(swap: Callable[[], Outcome]) -> Outcome:
        swap()
        world.append("later")
        world.change(ExpireSnapshots(10**15, 1), Identity("expiry", "d", given=False))
        return Unknown("connection lost")

    world.referee.script = [landed_and_expired]
    if versions == 1:
        # Not even the log of metadata files knows it any more.
        with pytest.raises(CommitUnknown, match="history"):
            world.append("mine")
    else:
        assert world.append("mine").attempts == 1
    assert world.live_files() == ["base", "later", "mine"], "once, not twice"


def test_p7_expiry_goes_by_the_catalogs_clock_and_not_by_the_clients() -> None:
    clock, storage, client = VirtualTime(2_000_000_000.0), Storage(), VirtualTime()
    store = MemoryStore(runtime=clock.runtime())
    store.create_namespace(("ns",), {})
    world = World(storage, Referee(PointerCatalog(store, storage, client.runtime())), client, store)
    world.referee.create(IDENT, metadata())
    for name in ("one", "two"):
        world.append(name)
    client.now *= 1_000
    assert not world.change(ExpireSnapshots()).changed
    clock.now += 6 * 24 * 60 * 60
    assert world.change(ExpireSnapshots(), Identity("later", "d", given=False)).changed
    assert len(list(world.referee.load(IDENT).metadata.snapshots())) == 1


def _replace_head(world: World, location: str, changes: dict[str, Any]) -> None:

    raw = orjson.loads(world.storage.read(location)) | changes
    new = location.replace(".metadata.json", "-x.metadata.json")
    world.storage.write(new, orjson.dumps(raw))
    assert isinstance(world.store.swap(Swap.of_table(IDENT, location, new, None)), Committed)


def test_p9_without_an_answer_nothing_is_deleted_and_the_id_is_given(world: World) -> None:
    world.referee.script = [never_arrives] * 50
    before = world.all_files()
    identity = Identity("order-7", "d", given=True)
    with pytest.raises(CommitUnknown) as caught:
        world.append("mine", identity=identity)
    assert caught.value.commit_id == "order-7"
    assert not caught.value.safe_to_delete_staged
    assert {path.rsplit(".", 1)[1] for path in world.all_files() - before} == {"parquet", "avro", "json"}


def test_p9_the_row_is_gone_and_so_is_the_answer(world: World) -> None:
    def dropped(_: Callable[[], Outcome]) -> Outcome:
        world.store.delete(IDENT)
        return Unknown("connection lost")

    world.referee.script = [dropped]
    with pytest.raises(CommitUnknown, match="dropped"):
        world.append("mine")
    assert any("mine" in path for path in world.all_files())


def test_p9_landed_and_rolled_back_is_said_and_never_sent_again(world: World) -> None:
    world.append("base")

    def rolled_back(swap: Callable[[], Outcome]) -> Outcome:
        before = world.referee.load(IDENT).metadata
        swap()
        head = world.referee.load(IDENT)
        refs = {"main": {"snapshot-id": before.ref_snapshot_id(), "type": "branch"}}
        _replace_head(world, head.location, {"refs": refs, "current-snapshot-id": before.ref_snapshot_id()})
        return Unknown("connection lost")

    world.referee.script = [rolled_back]
    done = world.append("mine")
    assert done.rolled_back
    assert world.live_files() == ["base"]


def test_p9_absence_is_not_believed_when_it_may_have_been_rolled_back_and_expired(world: World) -> None:
    """Where the catalog names metadata files itself, no log of them tells what was there."""
    world.append("base")
    catalog, named = world.referee._catalog, {}

    def prepare(ident: Ident, head: Head, proposal: Proposal) -> Prepared:
        found = catalog.prepare(ident, head, proposal)
        nameless = replace(found, location=None)
        named[id(nameless)] = (nameless, found)
        return nameless

    def swap(prepared: Prepared) -> Outcome:
        landed = catalog.swap(named[id(prepared)][1])
        head = world.referee.load(IDENT)
        kept = [each for each in head.metadata.raw["snapshots"] if each["sequence-number"] == 1]
        main = {"snapshot-id": kept[0]["snapshot-id"], "type": "branch"}
        if isinstance(landed, Committed):
            values = {"refs": {"main": main}, "current-snapshot-id": main["snapshot-id"], "snapshots": kept}
            _replace_head(world, head.location, values)
            with monkeypatched(world.referee, swap=catalog.swap, prepare=catalog.prepare):
                world.append("theirs")
        return Unknown("connection lost") if isinstance(landed, Committed) else landed

    with monkeypatched(world.referee, swap=swap, prepare=prepare), pytest.raises(CommitUnknown, match="history"):
        world.append("mine")
    assert world.live_files() == ["base", "theirs"], "what was rolled back does not come again"


@contextmanager
def monkeypatched(target: object, **values: Any) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in values.items():
            patch.setattr(target, name, value)
        yield


@pytest.mark.parametrize("retry", [Retry.none(), Retry(total_s=1e-9)], ids=["tries", "time"])
def test_p9_an_earlier_call_that_lands_at_last_is_found_before_giving_up(world: World, retry: Retry) -> None:
    mine = Identity("mine", "d", given=True)

    def first_one_arrives(phase: Phase, _attempt: int) -> None:
        if phase is Phase.PREPARED:
            world.append("first", identity=mine)

    done = world.append("again", identity=mine, on_phase=first_one_arrives, retry=retry)
    assert done.already_committed
    assert world.live_files() == ["first"]
    assert world.unreferenced() == set()


def test_p30_a_stale_answer_that_proves_nothing_is_searched_for(world: World) -> None:
    def landed_but_called_stale(swap: Callable[[], Outcome]) -> Outcome:
        swap()
        return Stale("whatever")

    world.referee.capabilities = replace(world.referee.capabilities, stale_is_certain=False)
    world.referee.script = [landed_but_called_stale]
    done = world.append("mine", retry=Retry.none())
    assert done.attempts == 1
    assert world.live_files() == ["mine"]
    assert world.unreferenced() == set(), "the winner's own manifest list must not be cleaned up"


def test_p9_absence_is_not_believed_while_the_head_has_not_moved(world: World) -> None:
    """A catalog answers "stale" although no other commit landed: the request may still be in flight."""
    world.append("before")
    world.referee.capabilities = replace(world.referee.capabilities, stale_is_certain=False)
    late: list[Callable[[], Outcome]] = []

    def delayed(swap: Callable[[], Outcome]) -> Outcome:
        late.append(swap)
        return Stale("whatever")

    world.referee.script = [delayed]
    with pytest.raises(CommitUnknown, match="It is not known") as unknown:
        world.append("mine")
    assert "has not moved" in str(unknown.value.evidence)
    assert late[0]() == Committed(world.referee.load(IDENT).location)
    assert world.live_files() == ["before", "mine"], "once, and none of its files was deleted"


def test_p9_a_write_whose_snapshot_is_there_already_is_not_added_again(world: World) -> None:
    first = world.append("a", snapshot_id=77)
    again = world.append("b", snapshot_id=77)
    assert (first.snapshot_id, again.snapshot_id, world.referee.swaps) == (77, 77, 1)
    assert world.live_files() == ["a"]


def test_p9_a_chosen_id_is_searched_before_anything_is_sent(world: World) -> None:
    mine = Identity("order-9", "d", given=True)
    world.append("a", identity=mine)
    again = world.append("b", identity=mine)
    assert (again.already_committed, again.attempts, world.referee.swaps) == (True, 1, 1)
    assert world.live_files() == ["a"]


def test_an_interrupt_inside_the_swap_deletes_nothing(world: World) -> None:
    def interrupted(swap: Callable[[], Outcome]) -> Outcome:
        swap()
        raise KeyboardInterrupt

    world.referee.script = [interrupted]
    with pytest.raises(KeyboardInterrupt) as caught:
        world.append("mine")
    assert any("outcome is not known" in note for note in caught.value.__notes__)
    assert world.live_files() == ["mine"]
    assert world.unreferenced() == set()


@pytest.mark.parametrize("moment", ["attempt", "finished"])
def test_an_error_after_the_commit_landed_deletes_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"frazil.observe.{moment}", interrupted)
    with pytest.raises(KeyboardInterrupt):
        world.append("mine")
    assert world.live_files() == ["mine"]
    assert world.unreferenced() == set()


def test_p9_whatever_keeps_the_second_swap_from_being_sent_says_nothing_about_the_first(world: World) -> None:
    def fails(_: Callable[[], Outcome]) -> Outcome:
        raise PermissionDenied("The password was changed concurrently")

    world.referee.script = [lands_but_answer_is_lost, *[fails] * 50]
    with pytest.raises(CommitUnknown, match="password was changed"):
        world.append("mine", retry=Retry.none())
    world.referee.script = []
    assert world.live_files() == ["mine"]


def test_p9_a_name_that_belongs_to_another_table_now_proves_nothing(world: World) -> None:
    moved = Ident(("ns",), "moved")

    def renamed(swap: Callable[[], Outcome]) -> Outcome:
        swap()
        world.store.rename(IDENT, moved)
        world.referee.create(IDENT, metadata(table_uuid="22222222-2222-2222-2222-222222222222"))
        return Unknown("connection lost")

    world.referee.script = [renamed]
    with pytest.raises(CommitUnknown, match="another table"):
        world.append("mine")
    head = world.referee.load(moved).metadata.head_snapshot()
    assert head is not None
    assert head.manifest_list is not None
    (manifest,) = read_manifest_list(world.storage, head.manifest_list)
    assert len(read_manifest(world.storage, manifest)) == 1, "the table that moved is whole"


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        ({"snapshots": []}, CorruptMetadata),
        ({"snapshots": [{"snapshot-id": 7, "timestamp-ms": 1, "manifests": ["m"]}]}, Unsupported),
    ],
)
def test_a_parent_that_cannot_be_resolved_is_not_no_parent(
    world: World, damage: dict[str, Any], error: type[Exception]
) -> None:
    world.append("base")
    head = world.referee.load(IDENT)
    refs = {"main": {"snapshot-id": 7, "type": "branch"}}
    _replace_head(world, head.location, {**damage, "refs": refs, "current-snapshot-id": 7})
    with pytest.raises(error):
        world.append("mine")
    assert not [path for path in world.all_files() if "mine" in path]


def test_a_list_that_was_expired_between_two_reads_is_a_lost_race_not_a_corrupt_table(world: World) -> None:
    world.append("base")

    def expire(phase: Phase, attempt: int) -> None:
        if phase is Phase.HEAD_READ and attempt == 1:
            old = world.referee.load(IDENT).metadata.head_snapshot()
            world.append("later")
            assert old is not None
            assert old.manifest_list is not None
            world.storage.delete([old.manifest_list])
            world.storage.parsed = type(world.storage.parsed)()

    world.append("mine", on_phase=expire)
    assert world.live_files() == ["base", "later", "mine"]


@pytest.mark.parametrize("moment", [Phase.HEAD_READ, Phase.PREPARED])
def test_an_interrupt_before_the_swap_leaves_nothing(world: World, moment: Phase) -> None:
    def interrupted(phase: Phase, _: int) -> None:
        if phase is moment:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        world.append("mine", on_phase=interrupted)
    assert world.unreferenced() == set()


# Commit ids (rules P10 and P12)


def given(commit_id: str = "order-7", digest: str = "d") -> Identity:
    return Identity(commit_id, digest, given=True)


def test_a_commit_id_sent_twice_is_applied_once_and_says_so(world: World, caplog: pytest.LogCaptureFixture) -> None:
    first = world.append("mine", identity=given())
    with caplog.at_level(logging.WARNING, "frazil.commit"):
        second = world.append("again", identity=given())
    assert (second.already_committed, second.snapshot_id) == (True, first.snapshot_id)
    assert (second.rows_inserted, second.files_added, second.bytes_written) == (10, 1, 4)
    assert world.live_files() == ["mine"]
    assert world.unreferenced() == set()
    assert "already committed" in caplog.text


def test_a_commit_id_that_another_process_lands_is_found_by_the_next_attempt(world: World) -> None:
    def on_phase(phase: Phase, attempt: int) -> None:
        if phase is Phase.PREPARED and attempt == 1:
            world.append("twin", identity=given())

    done = world.append("mine", identity=given(), on_phase=on_phase)
    assert done.already_committed
    assert world.live_files() == ["twin"]
    assert world.unreferenced() == set()


def test_the_same_id_for_another_operation_is_the_callers_mistake(world: World) -> None:
    world.append("mine", identity=given())
    with pytest.raises(InvalidInput, match="another operation"):
        world.append("other", identity=given(digest="e"))
    assert world.live_files() == ["mine"]
    assert world.unreferenced() == set()


def test_an_id_outlives_its_snapshot(world: World) -> None:
    world.append("mine", identity=given())
    world.append("later")
    head = world.referee.load(IDENT)
    newest = [each for each in head.metadata.raw["snapshots"] if each["snapshot-id"] == head.metadata.ref_snapshot_id()]
    _replace_head(world, head.location, {"snapshots": newest})
    assert world.append("again", identity=given()).already_committed
    assert world.live_files() == ["later", "mine"]


def test_p26_files_that_are_not_in_the_table_cannot_be_replaced(world: World) -> None:
    world.append("a")
    head = world.referee.load(IDENT).metadata
    base = Base(head.ref_snapshot_id("main"), head.last_sequence_number)
    # Nothing has landed since the base, so no check of concurrent changes can find it.
    never = DataFile("memory://w/t/data/never.parquet", record_count=10, file_size_in_bytes=4)
    with pytest.raises(ConflictError, match="no longer in the table") as refused:
        commit(
            world.context(),
            Write(Kind.DELETE, head.uuid, base=base, removed=(never,)),
            Identity("never", "d", given=False),
            Retry(),
        )
    assert refused.value.conflicts[0].files == (never.file_path,)
    assert world.live_files() == ["a"]


def test_p12_a_write_that_adds_nothing_makes_no_snapshot_and_keeps_its_id(world: World) -> None:
    world.append("base")
    first = world.append("empty", added=(), identity=given())
    assert (first.changed, first.snapshot_id) == (False, world.referee.load(IDENT).metadata.ref_snapshot_id())
    second = world.append("rows", identity=given())
    assert (second.already_committed, second.changed) == (True, False)
    assert world.live_files() == ["base"]


def test_p12_a_change_without_a_snapshot_keeps_its_id(world: World) -> None:
    first = world.change(PropertyChange({"a": "1"}), given())
    assert first.changed
    world.change(PropertyChange({"a": "2"}))
    assert world.change(PropertyChange({"a": "1"}), given()).already_committed
    assert world.referee.load(IDENT).metadata.properties["a"] == "2"


def test_p9_a_change_without_a_snapshot_is_found_by_the_log_of_metadata_files(world: World) -> None:
    def covered(swap: Callable[[], Outcome]) -> Outcome:
        swap()
        world.append("later")
        return Unknown("connection lost")

    world.referee.script = [covered]
    assert world.change(PropertyChange({"a": "1"})).attempts == 1
    assert world.referee.load(IDENT).metadata.properties["a"] == "1"


# Merging, branches


def test_manifests_are_merged_at_the_count_and_every_file_stays(world: World) -> None:
    world.change(PropertyChange({"commit.manifest.min-count-to-merge": "4"}))
    for number in range(9):
        world.append(f"f{number}")
    head = world.referee.load(IDENT).metadata.head_snapshot()
    assert head is not None
    assert head.manifest_list is not None
    manifests = read_manifest_list(world.storage, head.manifest_list)
    assert len(manifests) < 5
    assert world.live_files() == [f"f{number}" for number in range(9)]
    numbers = [entry.sequence_number for each in manifests for entry in read_manifest(world.storage, each)]
    assert sorted(number or 0 for number in numbers) == list(range(1, 10)), "each file keeps the number it landed with"


def test_counts_that_an_old_list_left_out_are_filled_in_for_other_engines(world: World) -> None:
    world.append("base")
    old = world.referee.load(IDENT).metadata.head_snapshot()
    assert old is not None
    assert old.manifest_list is not None
    (manifest,) = read_manifest_list(world.storage, old.manifest_list)
    # A list of format v1 may have no counts at all.
    bare = replace(manifest, added_files_count=UNKNOWN_COUNT, existing_files_count=UNKNOWN_COUNT)
    world.storage.parsed.put(old.manifest_list, (bare,), 1)
    world.append("mine")
    head = world.referee.load(IDENT).metadata.head_snapshot()
    assert head is not None
    assert head.manifest_list is not None
    counts = [(m.added_files_count, m.added_rows_count) for m in read_manifest_list(world.storage, head.manifest_list)]
    assert counts == [(1, 10), (1, 10)]


def test_a_merge_that_lost_its_race_leaves_nothing(world: World) -> None:
    world.change(PropertyChange({"commit.manifest.min-count-to-merge": "3"}))
    for number in range(2):
        world.append(f"f{number}")
    done = world.append("mine", on_phase=racing(world, "a", "b"))
    assert done.attempts > 1
    assert world.live_files() == ["a", "b", "f0", "f1", "mine"]
    assert world.unreferenced() == set()


def test_appends_to_two_branches_both_land(world: World) -> None:
    world.append("base")
    world.change(NewRef("audit", "branch"))

    def on_phase(phase: Phase, attempt: int) -> None:
        if phase is Phase.PREPARED and attempt == 1:
            world.append("on-audit", branch="audit")

    done = world.append("on-main", on_phase=on_phase)
    head = world.referee.load(IDENT).metadata
    assert (done.attempts, done.rebased_over) == (2, 0)
    assert head.ref_snapshot_id("main") != head.ref_snapshot_id("audit")
    assert world.live_files() == ["base", "on-main"]


# What an operator sees


def test_every_attempt_is_a_structured_event(world: World, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "frazil.commit"):
        world.append("mine", on_phase=racing(world, "theirs"))
    events = [record for record in caplog.records if getattr(record, "event", "") == "commit.attempt"]
    assert [(r.__dict__["attempt"], r.__dict__["outcome"]) for r in events] == [
        (1, "committed"),
        (1, "stale"),
        (2, "committed"),
    ]
