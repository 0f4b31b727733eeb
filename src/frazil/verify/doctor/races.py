"""The games of the doctor. Each is an exact interleaving, so that a flaw is caught by design and not by luck.

race      all processes load one head, all prepare, then all swap at one moment
delayed   a swap is sent long after other processes moved the head
repeated  a swap that won, and one that lost, are sent again, at once and after the head moved
paused    a process is stopped in the middle of its swap, longer than a lease lasts, while other processes commit
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from frazil.catalog.base import Committed, Stale, Unknown
from frazil.runtime import Runtime
from frazil.verify.doctor.crew import Crew
from frazil.verify.doctor.judge import judge_repeat, judge_round, no_swap_landed
from frazil.verify.doctor.model import Finding, Observation, Refused, Round, SentSwap


@dataclass(slots=True)
class Ledger:
    """The answers and observations so far."""

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
        for swap in played.swaps:
            self._enter_swap(swap)
        for observed in played.after:
            self.worst_skew_ms = max(self.worst_skew_ms, skew_ms(observed), key=abs)
        if played.kind in ("race", "paused") and no_swap_landed(played):
            self.without_winner += 1

    def _enter_swap(self, swap: SentSwap) -> None:
        match swap.answer:
            case Committed():
                if swap.snapshot_id not in self.acknowledged:
                    self.acknowledged.append(swap.snapshot_id)
            case Stale():
                if self.stale_is_certain and swap.snapshot_id not in self.acknowledged:
                    self.denied.add(swap.snapshot_id)
            case Unknown():
                self.unknown += 1
            case Refused(error):
                self.refused[error] = self.refused.get(error, 0) + 1


def skew_ms(observed: Observation) -> int:
    """How far the catalog's clock was outside the interval of the call, by the process's clock."""
    if observed.now_ms < observed.asked_ms:
        return observed.now_ms - observed.asked_ms
    return max(0, observed.now_ms - observed.answered_ms)


@dataclass(frozen=True, slots=True)
class Game:
    """What a game needs."""

    crew: Crew
    ledger: Ledger
    runtime: Runtime
    stall_s: float

    def new_ids(self, workers: range | list[int]) -> dict[int, int]:
        return {worker: self.runtime.new_snapshot_id() for worker in workers}

    def enter(self, kind: str, before: Observation, swaps: list[SentSwap]) -> tuple[Observation, ...]:
        """Check the round; returns the head as all processes load it after the round."""
        after = self.crew.observe()
        number = self.ledger.played + 1
        self.ledger.enter(Round(number, kind, before.snapshot_id, before.location, tuple(swaps), after))
        return after


def race(game: Game) -> None:
    """All processes swap from one head at one moment: one Committed, the others Stale with the winner's value."""
    observations = game.crew.observe()
    ids = game.new_ids(range(game.crew.size))
    made = game.crew.prepare(ids)
    game.crew.start_together(ids)
    answers = {worker: game.crew.answer(worker) for worker in ids}
    swaps = [SentSwap(w, made[w].expected, ids[w], made[w].location, answers[w]) for w in ids]
    game.enter("race", observations[0], swaps)
    _resolve_unknown(game, swaps)


def delayed(game: Game) -> None:
    """A swap that is sent late, with an old expected value, must lose."""
    crew = game.crew
    crew.observe([0])
    late = game.runtime.new_snapshot_id()
    made = crew.prepare({0: late})[0]
    for _ in range(2):
        _commit_alone(game, 1)
    game.runtime.sleep(game.stall_s)
    before = crew.observe([1])[0]
    answer = crew.send(0, late)
    game.enter("delayed", before, [SentSwap(0, made.expected, late, made.location, answer)])


def repeated(game: Game) -> None:
    """A request that a network or a client sends twice must not change anything."""
    crew = game.crew
    crew.observe([0, 1])
    ids = game.new_ids([0, 1])
    made = crew.prepare(ids)
    before = crew.observe([0])[0]
    for worker in (0, 1):
        answer = crew.send(worker, ids[worker])
        swap = SentSwap(worker, made[worker].expected, ids[worker], made[worker].location, answer)
        before = game.enter("repeated", before, [swap])[0]
    _again(game, 1, ids[1])
    _again(game, 0, ids[0])
    _commit_alone(game, 1)
    _again(game, 1, ids[1])
    _again(game, 0, ids[0])


def paused(game: Game, share: float) -> None:
    """A process is stopped ``share`` of the way through its swap, longer than a lease, while other processes commit.

    It holds whatever lock the catalog takes. When it continues, its swap must lose.
    """
    crew = game.crew
    swap_s = _commit_alone(game, 0)
    observations = crew.observe()
    ids = game.new_ids(range(crew.size))
    made = crew.prepare(ids)
    victim, *rivals = ids
    crew.begin(victim, ids[victim])
    game.runtime.sleep(swap_s * share)
    crew.pause(victim)
    try:
        for rival in rivals:
            crew.begin(rival, ids[rival])
        game.runtime.sleep(game.stall_s)
    finally:
        crew.resume(victim)
    answers = {worker: crew.answer(worker) for worker in ids}
    swaps = [SentSwap(w, made[w].expected, ids[w], made[w].location, answers[w]) for w in ids]
    game.enter("paused", observations[0], swaps)
    _resolve_unknown(game, swaps)


def _commit_alone(game: Game, worker: int) -> float:
    """Move the head without contention. Returns the duration of the swap in seconds."""
    before = game.crew.observe([worker])[0]
    snapshot_id = game.runtime.new_snapshot_id()
    made = game.crew.prepare({worker: snapshot_id})[worker]
    started = game.runtime.monotonic()
    answer = game.crew.send(worker, snapshot_id)
    elapsed = game.runtime.monotonic() - started
    game.enter("alone", before, [SentSwap(worker, made.expected, snapshot_id, made.location, answer)])
    return elapsed


def _again(game: Game, worker: int, snapshot_id: int) -> None:
    """Send a swap again. Whatever the answer, the head must not move."""
    before = game.crew.observe([worker])[0]
    answer = game.crew.send(worker, snapshot_id)
    had_won = snapshot_id in game.ledger.acknowledged
    game.ledger.findings.extend(judge_repeat(answer, had_won=had_won, before=before, after=game.crew.observe()))


def _resolve_unknown(game: Game, swaps: list[SentSwap]) -> None:
    """Rule P9: the identical swap is sent again, which fences the first one; then the head shows the outcome."""
    for swap in swaps:
        if not isinstance(swap.answer, Unknown):
            continue
        before = game.crew.observe([swap.worker])[0]
        if before.snapshot_id == swap.snapshot_id:
            # It landed: from now on it counts as acknowledged, and repeating it must be harmless.
            game.ledger.acknowledged.append(swap.snapshot_id)
            _again(game, swap.worker, swap.snapshot_id)
        else:
            answer = game.crew.send(swap.worker, swap.snapshot_id)
            game.enter("resolved", before, [replace(swap, answer=answer)])
