"""The oracle: the rules that hold for each table in every run, whatever its faults. ``across.py`` has those of several.

Every acknowledged write is in the table once, no failed one is, and one with an unknown outcome is there completely or
not at all. Every version was made from the one before it. Every snapshot can be read and has the rows of the sequential
model after the same writes in the table's own order. Readers return exactly one of those states, and a fresh one.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from frazil.catalog.records import COMMIT_ID
from frazil.commit.queued_writer import LIVES_MS
from frazil.commit.redo import REDOABLE as CHECKS
from frazil.commit.snapshot_layout import VERB
from frazil.commit.summaries import commits_of
from frazil.errors import FrazilError, RetriesExhausted
from frazil.model import Ident
from frazil.table.destination import CommitNow
from frazil.table.table import Table
from frazil_verification.simulator import steps
from frazil_verification.simulator.database import Move
from frazil_verification.simulator.faults import Fault
from frazil_verification.simulator.lake import CatalogKind
from frazil_verification.simulator.reader import SnapshotReader, Unreadable
from frazil_verification.simulator.records import Attempt, CallOutcome, Write
from frazil_verification.simulator.steps import (
    OLD_MS,
    REDOABLE,
    ROW_VERBS,
    State,
    Step,
    apply,
    counted,
    holds,
    projected,
    selected,
)
from frazil_verification.simulator.world import World

_SHOWN = 4
_MAY_CHANGE_NOTHING = ROW_VERBS - {"stream"}
"""Verbs that may find no rows to change."""
_OF_ROWS = frozenset(map(str, CHECKS))
_MOST_YIELDS = 8
"""A writer yields at most twice, and several may do so at the same time."""
Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Violation:
    """``rule``: the broken invariant, by the same name for every seed that breaks it."""

    rule: str
    what: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.what}"


@dataclass(slots=True)
class Findings:
    commits: int = 0
    """Writes that are in the table, and acknowledged changes of metadata."""
    snapshots: int = 0
    reads: int = 0
    violations: list[Violation] = field(default_factory=list)

    def wrong(self, rule: str, what: str) -> None:
        self.violations.append(Violation(rule, what))


class TableJudge:
    """Checks the results of a run for one table."""

    def __init__(self, world: World, ident: Ident) -> None:
        self.ident = ident
        self._world = world
        self._found = Findings()
        self._writes = [each for each in world.records.writes if each.table == ident]
        self._reads = [each for each in world.records.reads if each.table == ident]
        self._moves = [move for move in world.database.moves if move.table == ident.name]
        self._versions: list[Json] = []
        self._snapshots: dict[int, Json] = {}
        """All snapshots of the table's history, including expired ones."""
        self._once_in_main: set[int] = set()
        """Snapshots that were in the history of main, and may have been rolled back."""
        self._expired: dict[int, int] = {}
        """Snapshot → the event with which it expired."""
        self._undone: list[tuple[int, int]] = []
        """(event, the snapshot that main was rolled back to)."""
        self._first_event: dict[int, int] = {}
        """Snapshot → the event that made it visible."""
        self._columns: dict[int, frozenset[str]] = {}
        """Snapshot → the columns that the table had when it became visible."""
        self._heads: list[tuple[int, int | None]] = []
        """(event, the snapshot of main since then)."""
        self._states: dict[int | None, State] = {None: ()}
        self._reached: dict[int | None, int] = {None: 0}
        """Snapshot → how many writes are in the order up to it."""
        self._before: dict[Write, State] = {}
        """Write → the rows before it."""
        self._placed: dict[Write, int] = {}
        self._earlier: dict[Write, int] = {}
        """The first snapshot of a write that was made again after that snapshot had expired."""
        self._order: list[Write] = []

    def findings(self) -> Findings:
        if not self._read_versions():
            return self._found
        self._check_versions()
        self._check_snapshots()
        if not self._found.violations:
            self._check_writes()
            self._check_counts()
            self._check_redone()
            self._check_deleted_rows()
            self._check_given_up()
            self._check_order()
            self._check_streams()
            self._check_dead_writers()
            self._check_reservations()
            self._check_reads()
            self._check_metadata()
            self._check_with_frazils_reader()
        return self._found

    # For rules about several tables

    def state(self, snapshot_id: int | None) -> State:
        return self._states.get(snapshot_id, ())

    def state_before(self, write: Write) -> State | None:
        """The rows before a write; None: the write changed nothing here."""
        return self._before.get(write)

    def move_of(self, write: Write) -> Move | None:
        """The move that made a write visible."""
        if write not in self._placed:
            return None
        event = self._first_event[self._placed[write]]
        return next(move for move in self._moves if move.event == event)

    def heads(self) -> Iterator[tuple[Move, int | None]]:
        """Every move, and the snapshot of main after it."""
        return ((move, head) for move, (_, head) in zip(self._moves, self._heads, strict=True))

    def _wrong(self, rule: str, what: str) -> None:
        self._found.wrong(rule, what)

    # Versions

    def _read_versions(self) -> bool:
        files = self._world.files
        for move in self._moves:
            file = files.there.get(move.location)
            if file is None or not file.is_whole:
                gone = files.removed.get(move.location)
                by = f", removed by {gone.by} at event {gone.event}" if gone is not None else ""
                self._wrong("metadata files exist", f"{move.location} is missing or truncated{by}")
                return False
            if file.synced is None or file.synced >= move.event:
                self._wrong(
                    "durable before visible", f"{move.location} was not synced when event {move.event} named it"
                )
            self._versions.append(orjson.loads(file.data))
        return bool(self._versions)

    def _check_versions(self) -> None:
        before: Json | None = None
        for number, (move, version) in enumerate(zip(self._moves, self._versions, strict=True)):
            if before is not None:
                self._check_successor(before, version, self._moves[number - 1], move)
            columns = _current_columns(version)
            for snapshot in version.get("snapshots", ()):
                self._snapshots.setdefault(snapshot["snapshot-id"], snapshot)
                self._first_event.setdefault(snapshot["snapshot-id"], move.event)
                self._columns.setdefault(snapshot["snapshot-id"], columns)
            self._check_head(move.event, version.get("refs", {}).get("main", {}).get("snapshot-id"))
            before = version

    def _check_head(self, event: int, head: int | None) -> None:
        """Main moves forward, and back only by a rollback."""
        before = self._heads[-1][1] if self._heads else None
        past = self._history(head)
        if before is not None and before not in past:
            # In a group with writes on top of it, the snapshot itself need not have been the head of main.
            common = past & self._history(before)
            fork = max(common, key=lambda each: self._snapshots[each]["sequence-number"], default=0)
            asked = (each for each in self._writes if each.step.verb == "rollback_to")
            if not any(each.step.value == fork and each.started < event for each in asked):
                self._wrong("main moves back only by a rollback", f"from {before} to {fork} at event {event}")
            self._undone.append((event, fork))
        self._once_in_main |= past
        self._heads.append((event, head))

    def _history(self, snapshot_id: int | None) -> set[int]:
        """A snapshot and its ancestors."""
        found: set[int] = set()
        while snapshot_id is not None and snapshot_id in self._snapshots and snapshot_id not in found:
            found.add(snapshot_id)
            snapshot_id = self._snapshots[snapshot_id].get("parent-snapshot-id")
        return found

    def _check_successor(self, before: Json, after: Json, old: Move, new: Move) -> None:
        log = after.get("metadata-log") or [{}]
        if log[-1].get("metadata-file") != old.location:
            self._wrong(
                "each version is made from the one before it",
                f"{new.location} (event {new.event}) was made from {log[-1].get('metadata-file')}, and replaced "
                f"{old.location} (event {old.event})",
            )
        if after["last-sequence-number"] < before["last-sequence-number"]:
            self._wrong("sequence numbers grow", f"in {new.location}")
        if after["last-updated-ms"] < before["last-updated-ms"]:
            self._wrong("time never runs back", f"last-updated-ms in {new.location}")
        times = [each["timestamp-ms"] for each in after.get("snapshot-log", ())]
        if times != sorted(times):
            self._wrong("time never runs back", f"the snapshot log in {new.location}")
        kept = {each["snapshot-id"] for each in after.get("snapshots", ())}
        lost = [each for each in before.get("snapshots", ()) if each["snapshot-id"] not in kept]
        if named := {each["snapshot-id"] for each in after.get("refs", {}).values()} - kept:
            self._wrong("no snapshot is forgotten", f"{sorted(named)} in {new.location}, which a branch refers to")
        if lost:
            self._check_expired(lost, after["last-updated-ms"] - OLD_MS, old, new)

    def _check_expired(self, lost: Sequence[Json], limit_ms: int, old: Move, new: Move) -> None:
        """Snapshots expire only if a write asks for it, they are old, and no transaction has pinned them (rule P18)."""
        self._expired.update((each["snapshot-id"], new.event) for each in lost)
        # On third-party catalogs each writer uses its own clock.
        is_timed = self._world.case.catalog.is_ours
        young = [each["snapshot-id"] for each in lost if is_timed and each["timestamp-ms"] >= limit_ms]
        if young or "janitor" not in self._world.case.actors:
            self._wrong("no snapshot is forgotten", f"{young or lost} in {new.location}")
        # A pin that is older than the previous version was visible to the writer of the new one.
        pinned = {each["snapshot-id"] for each in lost} & old.pins & new.pins
        if pinned and not self._world.journal.faults[Fault.CLOCK_STEP.value]:
            self._wrong("pinned snapshots are kept", f"{sorted(pinned)} expired with {new.location}")

    # Snapshots

    def _check_snapshots(self) -> None:
        final = self._versions[-1]
        columns = {each["id"]: each["name"] for schema in final["schemas"] for each in schema["fields"]}
        reader = SnapshotReader(self._world.files, self._world.lake.storage, columns)
        owners = self._owners(final)
        snapshots = sorted(self._snapshots.values(), key=lambda each: each["sequence-number"])
        numbers = [each["sequence-number"] for each in snapshots]
        if len(set(numbers)) != len(numbers):
            self._wrong("sequence numbers grow", f"two snapshots share a number: {numbers}")
        checked: set[str] = set()
        for snapshot in snapshots:
            self._found.snapshots += 1
            if not self._check_snapshot(snapshot, reader, owners, checked):
                return

    def _owners(self, final: Json) -> Mapping[int, tuple[str, ...]]:
        """Snapshot → the ids of the commits in it, in their order."""
        catalog = self._world.lake.catalog
        records = () if catalog.changes is None else catalog.changes.find(final["table-uuid"], 0, 1 << 60)
        shared = commits_of(records)
        return {each: tuple(one.commit_id for one in commits) for each, commits in shared.items() if commits}

    def _check_snapshot(
        self, snapshot: Json, reader: SnapshotReader, owners: Mapping[int, tuple[str, ...]], checked: set[str]
    ) -> bool:
        """False: later snapshots cannot be checked."""
        snapshot_id, parent = snapshot["snapshot-id"], snapshot.get("parent-snapshot-id")
        writes = self._writes_of(snapshot, owners)
        if writes is None or parent not in self._states:
            return False
        state = self._states[parent]
        for write in writes:
            self._check_seen(write, state)
            self._before[write] = state
            state = apply(state, self._in_full(write.step))
            if write in self._placed:
                if not self._has_expired_id(write, self._first_event[snapshot_id]):
                    self._wrong("a write lands once", f"{write} is in {self._placed[write]} and in {snapshot_id}")
                    return False
                self._earlier[write] = self._placed[write]
            self._placed[write] = snapshot_id
            self._order.append(write)
        self._states[snapshot_id] = state
        self._reached[snapshot_id] = len(self._order)
        try:
            self._check_files(reader.paths(snapshot["manifest-list"]), self._first_event[snapshot_id], checked)
            rows = reader.rows(snapshot["manifest-list"])
        except (Unreadable, FrazilError) as error:
            self._wrong("every snapshot can be read", f"{snapshot_id} of {_names(writes)}: {error}")
            return False
        columns = self._columns[snapshot_id]
        for write in writes:
            if missing := {name for row in write.step.rows for name in row} - columns:
                self._wrong("rows land in existing columns", f"{write} has the columns {sorted(missing)}")
        there, expected = projected(rows, columns), projected(state, columns)
        if counted(there) != counted(expected):
            is_redone = any(each.is_redone for each in writes)
            rule = "a redone statement is evaluated at the head" if is_redone else "rows are those of the model"
            self._wrong(rule, self._difference(snapshot_id, writes, expected, there))
            return False
        return True

    def _has_expired_id(self, write: Write, event: int) -> bool:
        """An id is known while its snapshot is kept; only Frazil's own catalogs keep chosen ids longer."""
        is_recorded = self._world.case.catalog.is_ours and write.attempts[0].has_id
        return len(write.attempts) > 1 and not is_recorded and self._expired.get(self._placed[write], event) < event

    def _landed_and_expired(self, write: Write) -> bool:
        """Whether an attempt without an answer landed, and its snapshot expired before the last attempt began."""
        return self._has_expired_id(write, write.attempts[-1].started)

    def _in_full(self, step: Step) -> Step:
        """A cherry-pick adds the rows of every commit in the snapshot."""
        if step.verb != "cherry_pick":
            return step
        shared = [each for each in self._order if self._placed[each] == step.value]
        return replace(step, rows=tuple(row for each in shared for row in each.step.rows))

    def _check_seen(self, write: Write, state: State) -> None:
        if write.seen is None:
            return
        where, rows = write.seen
        if counted(rows) != as_seen(selected(state, where), rows):
            self._wrong("a transaction lands on what it read", f"{write}: {write.seen} was {state} when it landed")

    def _writes_of(self, snapshot: Json, owners: Mapping[int, tuple[str, ...]]) -> list[Write] | None:
        summary, snapshot_id = snapshot["summary"], snapshot["snapshot-id"]
        by_name = {each.name: each for each in self._writes}
        if "simulated.write" in summary:
            return [by_name[summary["simulated.write"]]]
        by_id = {each.commit_id: each for each in self._writes if each.commit_id}
        ids = owners.get(snapshot_id) or ((summary[COMMIT_ID],) if COMMIT_ID in summary else ())
        unknown = [each for each in ids if each not in by_id]
        if unknown and len(ids) == 1 and (summary["operation"], summary.get(VERB)) == ("replace", "rewrite"):
            # Manifests merged after a commit, by its writer and under an id of its own: no row may change.
            return []
        if unknown or not ids:
            self._wrong("every snapshot has a known commit", f"{snapshot_id} has {unknown or 'no commit id'}")
            return None
        return [by_id[each] for each in ids]

    def _check_files(self, paths: Iterator[str], event: int, checked: set[str]) -> None:
        for path in paths:
            if path in checked:
                continue
            checked.add(path)
            file = self._world.files.there.get(path)
            if file is not None and (file.synced is None or file.synced >= event):
                self._wrong("durable before visible", f"{path} was not synced when event {event} named it")

    def _difference(self, snapshot_id: int, writes: Sequence[Write], state: State, rows: Sequence[steps.Row]) -> str:
        expected, there = counted(state), counted(rows)
        lines = [f"{snapshot_id} of {_names(writes)} differs"]
        lines += [f"  missing: {dict(row)} × {count}" for row, count in (expected - there).items()]
        lines += [f"  unexpected: {dict(row)} × {count}" for row, count in (there - expected).items()]
        lines += ["  writes before it, newest last:"]
        lines += [f"    {each} in {self._placed[each]}" for each in self._order[-_SHOWN - len(writes) :]]
        return "\n".join(lines)

    # Writes

    def _check_writes(self) -> None:
        refs = self._versions[-1].get("refs", {})
        histories: dict[str, set[int]] = {"main": self._once_in_main}
        for write in self._writes:
            if write.step.verb not in ROW_VERBS:
                continue
            snapshot_id = self._placed.get(write)
            if snapshot_id is not None:
                self._found.commits += 1
            if (
                write.outcome in (CallOutcome.FAILED, CallOutcome.UNCHANGED)
                and snapshot_id is not None
                and not self._landed_and_expired(write)
            ):
                self._wrong("a failed write is not in the table", f"{write} is in {snapshot_id}")
            commit = write.commit
            if commit is None:
                continue
            if snapshot_id is None:
                self._wrong("an acknowledged write is in the table", f"{write} is in no snapshot")
                continue
            if commit.snapshot_id not in (snapshot_id, self._earlier.get(write)):
                self._wrong("the reported snapshot has the rows", f"{write}: {commit.snapshot_id}, not {snapshot_id}")
            branch = write.step.branch
            if branch not in histories:
                histories[branch] = self._history(refs.get(branch, {}).get("snapshot-id"))
            if snapshot_id not in histories[branch]:
                self._wrong("an acknowledged write is in the table", f"{write} is not in the history of {branch}")

    def _check_counts(self) -> None:
        """A row that was replaced by key concurrently may still count as deleted, a deleted row may not. So the number
        of deleted rows is between the minimum and the maximum of the states since the base.
        """
        parents = {key: each.get("parent-snapshot-id") for key, each in self._snapshots.items()}
        for write, snapshot_id in self._placed.items():
            step, commit = write.step, write.commit
            if commit is None or commit.already_committed:
                continue
            counts = (commit.rows_inserted, commit.rows_updated, commit.rows_deleted)
            if step.verb == "append" and counts != (len(step.rows), 0, 0):
                self._wrong("counts are those of the model", f"{write} reported {counts}")
            if step.verb not in ("delete", "overwrite", "update"):
                continue
            # Only appends share a snapshot, so the state before it is that of its parent.
            is_last = commit.redone and len(write.attempts) == 1
            since = self._since(parents[snapshot_id], write.bases[-1:] if is_last else write.bases, parents)
            matching = [len(selected(self._states[each], step.where)) for each in since]
            if step.verb == "update":
                is_right = counts == (0, matching[0], 0)
            else:
                is_right = counts[:2] == (len(step.rows), 0) and min(matching) <= counts[2] <= max(matching)
            if not is_right:
                self._wrong("counts are those of the model", f"{write} reported {counts} and matches {matching}")

    def _check_redone(self) -> None:
        """A conflict about rows evaluates a statement again, within its retry budget, unless it is to abort (rule P39).

        That it then did to the rows what it does at the head is checked with the rows of its snapshot.
        """
        for write in self._writes:
            is_alone = not write.is_foreign and not write.is_part and write.seen is None
            may_redo = is_alone and write.step.on_conflict is None
            for attempt in write.attempts:
                most = attempt.retry.tries - 1 if may_redo else 0
                if attempt.redone > most:
                    self._wrong("a redo is bounded", f"{write} was evaluated again {attempt.redone} times, not {most}")
                is_final = attempt.retry.total_s is None and write.step.verb in REDOABLE
                if is_final and attempt.checks and attempt.checks <= _OF_ROWS and attempt.redone < most:
                    self._wrong(
                        "a conflict about rows is redone",
                        f"{write} was evaluated again {attempt.redone} times of {most}",
                    )

    def _since(
        self, head: int | None, bases: Sequence[int | None], parents: Mapping[int, int | None]
    ) -> list[int | None]:
        """The snapshots from the head down to the oldest of the bases."""
        oldest = min((self._reached[each] for each in bases), default=self._reached[head])
        found = [head]
        while head is not None and self._reached[head] > oldest:
            head = parents[head]
            found.append(head)
        return found

    def _check_deleted_rows(self) -> None:
        """Rows that match the condition of a concurrent delete are not appended (rule P23).

        Only checked where a condition is kept: it may be personal, so it is not in the table's own files.
        """
        if not self._world.case.catalog.is_ours:
            return
        deletes = [
            (number, each.step.where)
            for number, each in enumerate(self._order)
            if each.step.verb == "delete" and not each.is_foreign
        ]
        for number, write in enumerate(self._order):
            step = write.step
            if step.verb != "append" or write.is_foreign or step.branch != "main" or not write.bases:
                continue
            base = max(self._reached[each] for each in write.bases)
            # A delete that was rolled back does not count.
            past = self._history(self._placed[write]) if self._undone else None
            for at, where in deletes:
                if past is not None and self._placed[self._order[at]] not in past:
                    continue
                if base <= at < number and any(holds(where, row) for row in step.rows):
                    self._wrong("deleted rows do not come back", f"{write} after {self._order[at]}")

    def _check_given_up(self) -> None:
        """No call reports that nothing was committed under its id if a search would have found the commit (rule P9)."""
        for write, snapshot_id in self._placed.items():
            if any(_gave_up_blindly(attempt, self._first_event[snapshot_id]) for attempt in write.attempts):
                self._wrong("a call that gives up has searched", f"{write} had landed, in {snapshot_id}, by then")

    def _check_order(self) -> None:
        """A commit that was acknowledged before another one began precedes it."""
        earliest: tuple[int, Write] | None = None
        for write in reversed(self._order):
            if write in self._earlier:
                continue
            if earliest is not None and earliest[0] < write.started:
                self._wrong("order follows time", f"{write} precedes {earliest[1]}, which had ended before it began")
                return
            done = write.acknowledged
            if done is not None and (earliest is None or done < earliest[0]):
                earliest = done, write

    def _check_streams(self) -> None:
        """Each batch lands once, in order, and a batch reported as already written is in the table (rule P11)."""
        placed: dict[tuple[str, int], Write] = {}
        last: dict[str, int] = {}
        for write in self._order:
            if write.step.verb != "stream":
                continue
            name, batch = write.step.name, write.step.value
            if batch <= last.get(name, -1):
                self._wrong("a batch lands once", f"{write} after batch {last[name]}")
            last[name] = max(batch, last.get(name, -1))
            placed.setdefault((name, batch), write)
        for write in self._writes:
            if write.step.verb == "stream" and write.outcome is CallOutcome.UNCHANGED:
                first = placed.get((write.step.name, write.step.value))
                done = write.acknowledged
                if first is None or done is None or self._first_event[self._placed[first]] > done:
                    self._wrong("an acknowledged batch is in the table", str(write))

    def _check_dead_writers(self) -> None:
        """No leader commits for a writer whose queue entry has expired (rule P3)."""
        records = self._world.records
        if self._world.journal.faults[Fault.CLOCK_STEP.value]:
            return
        moves = {move.event: move for move in self._moves}
        for write, snapshot_id in self._placed.items():
            last, move = write.attempts[-1], moves[self._first_event[snapshot_id]]
            died = records.deaths.get(last.process)
            if write.is_doubled or died is None or last.finished is not None:
                continue
            if last.process == move.by or last.process in records.late:
                continue
            if (move.at - died) * 1000 > LIVES_MS:
                self._wrong("no wait for a dead writer", f"{write} landed {move.at - died:.0f} s after its writer died")

    def _check_reservations(self) -> None:
        """A reservation of the commit lock by a dead writer does not stop other writers (rule P3)."""
        times = self._world.database.most_yields()
        if times > _MOST_YIELDS:
            self._wrong("no wait for a dead writer", f"the commit lock was left {times} times to an absent writer")

    # Reads

    def _check_reads(self) -> None:
        for read in self._reads:
            self._found.reads += 1
            if counted(read.rows) != as_seen(self._states.get(read.snapshot_id, ()), read.rows):
                self._wrong("readers see a snapshot as it is", f"{read.name} at {read.snapshot_id}")
            if read.snapshot_id not in self._heads_between(read.started, read.pinned):
                self._wrong(
                    "readers see a fresh snapshot", f"{read.name} was pinned at {read.snapshot_id}, an old snapshot"
                )
        for write in self._writes:
            for attempt in write.attempts:
                if (
                    attempt.outcome is CallOutcome.UNCHANGED
                    and write.step.verb in _MAY_CHANGE_NOTHING
                    and write.step.branch == "main"
                ):
                    self._check_nothing_to_do(write, attempt)

    def _check_nothing_to_do(self, write: Write, attempt: Attempt) -> None:
        assert attempt.finished is not None
        for head in self._heads_between(attempt.started, attempt.finished):
            state = self._states.get(head, ())
            if counted(apply(state, write.step)) == counted(state):
                return
        if not any(each.commit is not None and each.commit.already_committed for each in write.attempts):
            self._wrong("an unchanged result is correct", f"{write} always had rows to change")

    def _heads_between(self, start: int, end: int) -> list[int | None]:
        first = bisect.bisect_right(self._heads, start, key=lambda each: each[0]) - 1
        last = bisect.bisect_right(self._heads, end, key=lambda each: each[0])
        return [head for _, head in self._heads[max(0, first) : last]]

    # Metadata

    def _check_metadata(self) -> None:
        final = self._versions[-1]
        names = {each["name"] for schema in final["schemas"] for each in schema["fields"]}
        settings = self._settings()
        for write in self._writes:
            step = write.step
            there = {
                "set_properties": lambda: settings[step.name, step.value] > 0,  # noqa: B023 - called at once
                "drop_column": lambda: step.name not in _current_columns(final),  # noqa: B023
                "create_branch": lambda: step.name in final.get("refs", {}),  # noqa: B023
                "add_column": lambda: step.name in names,  # noqa: B023
                "fast_forward": lambda: step.value in self._once_in_main,  # noqa: B023
                "rollback_to": lambda: self._was_head(write),  # noqa: B023
                "set_partitioning": lambda: _has_spec(final, step.value),  # noqa: B023
            }.get(step.verb)
            if there is None:
                continue
            if write.outcome is CallOutcome.COMMITTED:
                self._found.commits += 1
                # Of several commits in a group that set the same property, the last one wins.
                done = write.commit
                is_alone = done is not None and done.group_size == 1 and not done.already_committed
                if not there() and (is_alone or step.verb != "set_properties"):
                    self._wrong("an acknowledged write is in the table", str(write))
            elif write.outcome is CallOutcome.FAILED and step.verb in ("set_properties", "create_branch") and there():
                self._wrong("a failed write is not in the table", str(write))
            # Over REST a request that sets a property has no expected value: if it arrives late, it sets it again.
            is_fenced = self._world.case.catalog is not CatalogKind.REST
            if step.verb == "set_properties" and is_fenced and settings[step.name, step.value] > 1:
                self._wrong("a write lands once", f"{write} was set again after other writers had set another value")

    def _was_head(self, write: Write) -> bool:
        """Whether main was at the rollback's target between the call and its answer."""
        done = write.acknowledged
        assert done is not None
        taken_back = (fork for event, fork in self._undone if write.started < event <= done)
        return write.step.value in (*self._heads_between(write.started, done), *taken_back)

    def _settings(self) -> Counter[tuple[str, str]]:
        """(property, value) → how often the property changed to that value."""
        found: Counter[tuple[str, str]] = Counter()
        before: Json = {}
        for version in self._versions:
            found.update(version["properties"].items() - before.items())
            before = version["properties"]
        return found

    def _check_with_frazils_reader(self) -> None:
        scan = Table(CommitNow(self._world.lake, self.ident)).scan(limit=1 << 40)
        rows: State = tuple(scan.to_arrow().to_pylist())
        if counted(rows) != as_seen(self._states[scan.snapshot_id], rows):
            self._wrong("readers see a snapshot as it is", f"the last one, {scan.snapshot_id}")


def as_seen(state: State, rows: State) -> Counter[steps.Frozen]:
    """The state as a reader returns it whose rows have these columns."""
    return counted(projected(state, rows[0].keys()) if rows else state)


def _gave_up_blindly(attempt: Attempt, landed: int) -> bool:
    gave_up = attempt.outcome is CallOutcome.FAILED and attempt.error == RetriesExhausted.__name__ and attempt.has_id
    return gave_up and attempt.undisturbed_since is not None and landed < attempt.undisturbed_since


def _current_columns(version: Json) -> frozenset[str]:
    (schema,) = (each for each in version["schemas"] if each["schema-id"] == version["current-schema-id"])
    return frozenset(each["name"] for each in schema["fields"])


def _has_spec(final: Json, terms: Sequence[str]) -> bool:
    transforms = {"p": "identity", "truncate(4, id)": "truncate[4]", "bucket(3, id)": "bucket[3]"}
    wanted = [transforms[each] for each in terms]
    return any(
        [each["transform"] for each in spec["fields"] if each["transform"] != "void"] == wanted
        for spec in final["partition-specs"]
    )


def _names(writes: Sequence[Write]) -> str:
    return ", ".join(map(str, writes))
