"""The rules for a whole run: those of each table, and those of transactions over several tables.

Every swap is one transaction of the database, so the swaps are a global order. In it each transaction has one place,
the same in all of its tables, between its call and its answer; at serializable, what it read is still so there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from frazil.model import Ident
from frazil_verification.simulator.bank import HELD, MONEY
from frazil_verification.simulator.database import Move
from frazil_verification.simulator.lake import ACCOUNTS, LEDGER, SAVINGS
from frazil_verification.simulator.oracle import Findings, TableJudge, as_seen
from frazil_verification.simulator.records import CallOutcome, JointWrite, Seen
from frazil_verification.simulator.steps import State, apply, counted, selected
from frazil_verification.simulator.world import World

Heads = Mapping[Ident, int | None]
"""Table → the snapshot of main."""


def judge(world: World) -> Findings:
    """Check the results of a run."""
    found = Findings()
    for problem in world.records.problems:
        found.wrong("nothing unexpected happens", problem)
    judges = {ident: TableJudge(world, ident) for ident in world.tables}
    for each in judges.values():
        of_table = each.findings()
        found.commits += of_table.commits
        found.snapshots += of_table.snapshots
        found.reads += of_table.reads
        found.violations += of_table.violations
    if len(judges) > 1 and not found.violations:
        _BankJudge(world, judges, found).check()
    return found


@dataclass(frozen=True, slots=True)
class _Instant:
    """What all tables were from one swap to the next."""

    swap: int
    event: int
    """The last one of the swap."""
    heads: Heads


class _BankJudge:
    def __init__(self, world: World, judges: Mapping[Ident, TableJudge], found: Findings) -> None:
        self._world = world
        self._judges = judges
        self._found = found
        self._instants = _instants(judges)

    def check(self) -> None:
        for joint in self._world.records.joint:
            self._check_joint(joint)
        for instant in self._instants:
            self._check_money(
                f"after event {instant.event}",
                {ident: self._judges[ident].state(head) for ident, head in instant.heads.items()},
            )
        self._check_audits()

    # Transactions

    def _check_joint(self, joint: JointWrite) -> None:
        moves = [self._judges[ident].move_of(part) for ident, part in joint.parts.items()]
        landed = [each for each in moves if each is not None]
        if not landed:
            if joint.outcome is CallOutcome.COMMITTED:
                self._found.wrong("an acknowledged write is in the table", f"{joint} is in no table")
            return
        if len({each.swap for each in landed}) > 1:
            self._found.wrong("a transaction lands in all tables at once", f"{joint}: {_shown(landed)}")
            return
        before = self._before(landed[0].swap)
        self._check_unchanged(joint, before, landed)
        self._check_time(joint, landed[0])
        if joint.isolation == "serializable" and not any(self._holds(joint, views, before) for views in joint.views):
            self._found.wrong("a transaction lands on what it read", f"{joint}: {joint.views}")

    def _check_unchanged(self, joint: JointWrite, before: Heads, landed: Sequence[Move]) -> None:
        """Where a part of a transaction changed nothing, there was nothing to change."""
        for ident, part in joint.parts.items():
            judge = self._judges[ident]
            if judge.move_of(part) is not None:
                continue
            state = judge.state(before[ident])
            if counted(apply(state, part.step)) != counted(state):
                self._found.wrong(
                    "a transaction lands in all tables at once", f"{joint}: {_shown(landed)}, and not in {ident}"
                )

    def _check_time(self, joint: JointWrite, landed: Move) -> None:
        done = joint.first.acknowledged
        if not joint.first.started < landed.event < (done or self._world.journal.events + 1):
            self._found.wrong("order follows time", f"{joint} landed with event {landed.event}, acknowledged: {done}")

    def _holds(self, joint: JointWrite, views: Mapping[Ident, Seen], before: Heads) -> bool:
        return all(
            counted(rows) == as_seen(selected(self._rows_before(joint, ident, before), where), rows)
            for ident, (where, rows) in views.items()
        )

    def _rows_before(self, joint: JointWrite, ident: Ident, before: Heads) -> State:
        judge = self._judges[ident]
        # Commits that were queued for a table may share the swap, and precede it there.
        own = judge.state_before(joint.parts[ident]) if ident in joint.parts else None
        return judge.state(before[ident]) if own is None else own

    def _before(self, swap: int) -> Heads:
        return next(each.heads for each in reversed(self._instants) if each.swap < swap)

    # Readers

    def _check_audits(self) -> None:
        for audit in self._world.records.audits:
            self._found.reads += 1
            for ident, (snapshot_id, rows) in audit.seen.items():
                if counted(rows) != as_seen(self._judges[ident].state(snapshot_id), rows):
                    self._found.wrong("readers see a snapshot as it is", f"{audit.name} of {ident} at {snapshot_id}")
            heads = {ident: snapshot_id for ident, (snapshot_id, _) in audit.seen.items()}
            if heads not in [each.heads for each in self._between(audit.started, audit.pinned)]:
                self._found.wrong("readers see one instant of all tables", f"{audit.name} saw {heads}")
            self._check_money(audit.name, {ident: rows for ident, (_, rows) in audit.seen.items()})

    def _between(self, start: int, end: int) -> list[_Instant]:
        first = max(number for number, each in enumerate(self._instants) if each.event <= start)
        return [each for each in self._instants[first:] if each.event <= end]

    def _check_money(self, seen_by: str, states: Mapping[Ident, State]) -> None:
        """No money appears or is lost, and each entry of the ledger has its two updates."""
        held = {ident: selected(states[ident], MONEY) for ident in states}
        opened = {ident: HELD * len(held[ident]) for ident in ACCOUNTS}
        money = {ident: sum(row["v"] for row in rows) for ident, rows in held.items()}
        if sum(money[ident] for ident in ACCOUNTS) != sum(opened.values()):
            self._found.wrong("money is neither made nor lost", f"{seen_by}: {money}")
        elif money[SAVINGS] - opened[SAVINGS] != money[LEDGER]:
            self._found.wrong("each entry of the ledger has its updates", f"{seen_by}: {money}")


def _instants(judges: Mapping[Ident, TableJudge]) -> list[_Instant]:
    """One for each swap, from the one on with which all tables existed."""
    moves = sorted(
        ((move, ident, head) for ident, judge in judges.items() for move, head in judge.heads()),
        key=lambda each: each[0].event,
    )
    found: list[_Instant] = []
    heads: dict[Ident, int | None] = {}
    for move, ident, head in moves:
        heads[ident] = head
        if found and found[-1].swap == move.swap:
            found.pop()
        if len(heads) == len(judges):
            found.append(_Instant(move.swap, move.event, dict(heads)))
    return found


def _shown(moves: Sequence[Move]) -> str:
    return ", ".join(f"{each.table} with event {each.event}" for each in moves)
