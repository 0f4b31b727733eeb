"""The games the doctor plays with a catalog. Each is an exact interleaving, so a lie is caught by design, not by luck.

race      all processes load one head, all prepare, then all swap at one moment
delayed   a swap is sent long after others moved the head
repeated  a swap that won, and one that lost, are sent again, at once and after the head moved on
paused    a process is stopped in the middle of its swap, for longer than a lease would last, while others commit
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from frazil.catalog.base import Committed, Stale, Unknown
from frazil.runtime import Runtime
from frazil.verify.doctor.crew import Crew
from frazil.verify.doctor.judge import judge_repeat, judge_round, nobody_won
from frazil.verify.doctor.model import Finding, QueuedCommit, Refused, Round, Sight


@dataclass(slots=True)
class Ledger:
    """What was promised and seen so far."""

    stale_is_certain: bool
    findings: list[Finding] = field(default_factory=list)
    acknowledged: list[int] = field(default_factory=list)
    denied: set[int] = field(default_factory=set)
    played: int = 0
    without_winner: int = 0
    unknown: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    worst_skew_ms: int = 0

    def enter(self, played: Round) -> None:
        self.played += 1
        self.findings.extend(judge_round(played, stale_is_certain=self.stale_is_certain))
        for ticket in played.tickets:
            self._enter_ticket(ticket)
        for sight in played.after:
            self.worst_skew_ms = max(self.worst_skew_ms, skew_ms(sight), key=abs)
        if played.kind in ("race", "paused") and nobody_won(played):
            self.without_winner += 1

    def _enter_ticket(self, ticket: QueuedCommit) -> None:
        match ticket.answer:
            case Committed():
                if ticket.snapshot_id not in self.acknowledged:
                    self.acknowledged.append(ticket.snapshot_id)
            case Stale():
                if self.stale_is_certain and ticket.snapshot_id not in self.acknowledged:
                    self.denied.add(ticket.snapshot_id)
            case Unknown():
                self.unknown += 1
            case Refused(error):
                self.refused[error] = self.refused.get(error, 0) + 1


def skew_ms(sight: Sight) -> int:
    """How far the referee's clock lies outside the moment of the call, as this process's clock measured it."""
    if sight.now_ms < sight.asked_ms:
        return sight.now_ms - sight.asked_ms
    return max(0, sight.now_ms - sight.answered_ms)


@dataclass(frozen=True, slots=True)
class Table:
    """Everybody needed for a game."""

    crew: Crew
    ledger: Ledger
    runtime: Runtime
    stall_s: float

    def new_ids(self, workers: range | list[int]) -> dict[int, int]:
        return {worker: self.runtime.new_snapshot_id() for worker in workers}

    def enter(self, kind: str, before: Sight, tickets: list[QueuedCommit]) -> tuple[Sight, ...]:
        """Judge the round; returns what all processes saw after it."""
        after = self.crew.look()
        number = self.ledger.played + 1
        self.ledger.enter(Round(number, kind, before.snapshot_id, before.location, tuple(tickets), after))
        return after


def race(table: Table) -> None:
    """Everybody from one head at one moment: one Committed, the others are shown the winner's value."""
    sights = table.crew.look()
    ids = table.new_ids(range(table.crew.size))
    made = table.crew.prepare(ids)
    table.crew.start_together(ids)
    answers = {worker: table.crew.answer(worker) for worker in ids}
    tickets = [QueuedCommit(w, made[w].expected, ids[w], made[w].location, answers[w]) for w in ids]
    table.enter("race", sights[0], tickets)
    _resolve_unknown(table, tickets)


def delayed(table: Table) -> None:
    """A swap that is sent late, with an old expected value, must lose."""
    crew = table.crew
    crew.look([0])
    late = table.runtime.new_snapshot_id()
    made = crew.prepare({0: late})[0]
    for _ in range(2):
        _commit_alone(table, 1)
    table.runtime.sleep(table.stall_s)
    before = crew.look([1])[0]
    answer = crew.send(0, late)
    table.enter("delayed", before, [QueuedCommit(0, made.expected, late, made.location, answer)])


def repeated(table: Table) -> None:
    """Requests that a network or a client sends twice must not change anything."""
    crew = table.crew
    crew.look([0, 1])
    ids = table.new_ids([0, 1])
    made = crew.prepare(ids)
    before = crew.look([0])[0]
    for worker in (0, 1):
        answer = crew.send(worker, ids[worker])
        ticket = QueuedCommit(worker, made[worker].expected, ids[worker], made[worker].location, answer)
        before = table.enter("repeated", before, [ticket])[0]
    _again(table, 1, ids[1])
    _again(table, 0, ids[0])
    _commit_alone(table, 1)
    _again(table, 1, ids[1])
    _again(table, 0, ids[0])


def paused(table: Table, share: float) -> None:
    """A process is stopped ``share`` of the way through its swap, for longer than a lock's lease, while others commit.

    Alone in its swap, it holds whatever lock the catalog takes. When it goes on, it must find out that it lost.
    """
    crew = table.crew
    swap_s = _commit_alone(table, 0)
    sights = crew.look()
    ids = table.new_ids(range(crew.size))
    made = crew.prepare(ids)
    victim, *rivals = ids
    crew.begin(victim, ids[victim])
    table.runtime.sleep(swap_s * share)
    crew.pause(victim)
    try:
        for rival in rivals:
            crew.begin(rival, ids[rival])
        table.runtime.sleep(table.stall_s)
    finally:
        crew.resume(victim)
    answers = {worker: crew.answer(worker) for worker in ids}
    tickets = [QueuedCommit(w, made[w].expected, ids[w], made[w].location, answers[w]) for w in ids]
    table.enter("paused", sights[0], tickets)
    _resolve_unknown(table, tickets)


def _commit_alone(table: Table, worker: int) -> float:
    """Move the head on, with nobody in the way. Returns the seconds its swap took."""
    before = table.crew.look([worker])[0]
    snapshot_id = table.runtime.new_snapshot_id()
    made = table.crew.prepare({worker: snapshot_id})[worker]
    started = table.runtime.monotonic()
    answer = table.crew.send(worker, snapshot_id)
    elapsed = table.runtime.monotonic() - started
    table.enter("alone", before, [QueuedCommit(worker, made.expected, snapshot_id, made.location, answer)])
    return elapsed


def _again(table: Table, worker: int, snapshot_id: int) -> None:
    """Send a swap again. Whatever the answer, the head must stay where it is."""
    before = table.crew.look([worker])[0]
    answer = table.crew.send(worker, snapshot_id)
    had_won = snapshot_id in table.ledger.acknowledged
    table.ledger.findings.extend(judge_repeat(answer, had_won=had_won, before=before, after=table.crew.look()))


def _resolve_unknown(table: Table, tickets: list[QueuedCommit]) -> None:
    """Rule P9: the identical swap is sent again, which fences the first; then the head says what happened."""
    for ticket in tickets:
        if not isinstance(ticket.answer, Unknown):
            continue
        before = table.crew.look([ticket.worker])[0]
        if before.snapshot_id == ticket.snapshot_id:
            # It had landed: from here on it counts as acknowledged, and its repetition must be harmless.
            table.ledger.acknowledged.append(ticket.snapshot_id)
            _again(table, ticket.worker, ticket.snapshot_id)
        else:
            answer = table.crew.send(ticket.worker, ticket.snapshot_id)
            table.enter("resolved", before, [replace(ticket, answer=answer)])
