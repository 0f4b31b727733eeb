"""The states of the model of group commit, its rules and its bounds. Sets of writers are the bits of a number."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

NONE, WAITING, COMMITTED, RETURNED = "none", "waiting", "committed", "returned"
WITHDRAWN, FORGOTTEN = "withdrawn", "forgotten"
"""The states of a ticket. Plain strings: hashing an enum is slow."""
UNLOCKED = -1
_NAMES = "ABCDEFGH"


class Rule(enum.StrEnum):
    """The rules that make group commit safe. Each can be switched off."""

    POINTER_IS_COMPARED = "the swap compares the pointer with the head that was read"
    TICKETS_ARE_GUARDED = "the swap lands only if every ticket of its group is still waiting"
    HEAD_FIRST = "the head is read first, the queue second"
    HEAD_HAS_MOVED = "after a lost answer, a stale one is not believed while the head is unchanged"
    ONE_TRANSACTION = "the swap and the outcomes of the tickets are one transaction"
    DEADLINE_IS_GUARDED = "the swap commits no ticket that is past its deadline"
    OWN_TICKET_IS_GUARDED = "the same guards apply to the leader's own ticket"
    IDS_ARE_UNIQUE = "the swap inserts the commit ids, which are unique"
    ID_MAY_BE_OWN = "a writer that finds its commit id first checks whether its own ticket was committed"
    LOCK_IS_A_HINT = "a writer that sees no progress goes ahead without the commit lock"
    WITHDRAWING_IS_GUARDED = "only a waiting ticket can be withdrawn"
    WITHDRAWN_BEFORE_DELETED = "a writer that gives up withdraws its ticket before it deletes files"
    CLEANUP_WITHDRAWS = "clean-up withdraws a ticket before it deletes files"
    GONE_IS_UNKNOWN = "a missing ticket means that the outcome is unknown"
    PUT_IS_FENCED = "a ticket whose answer was lost is fenced off"
    FIRST_CALL_IS_FENCED = "a repeated call fences the first call's ticket off, even if it has not arrived yet"
    MEMBERS_ARE_SEARCHED = "a leader searches the table for a member's commit id before it adds the member"
    FENCE_IS_READ = "the row's state after the fence decides the ticket's outcome"
    ONLY_OWN_FILES = "a losing leader deletes no file of other writers"
    TRIES_ARE_COUNTED = "a ticket that killed leaders is returned to its writer"


class At:
    """The stage of a process."""

    LATER = "later"
    NEW = "new"
    PUTTING = "putting"
    QUEUED = "queued"
    STARTING = "starting"
    HEAD = "head"
    READY = "ready"
    SENT = "sent"
    SETTLING = "settling"
    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"
    DEAD = "dead"


DECIDED = (At.OK, At.FAILED, At.UNKNOWN, At.DEAD)


class Process(NamedTuple):
    at: str
    has_ticket: bool = False
    may_queue: bool = True
    """Its operation may be queued; an operation that was returned once is not queued again."""
    is_alone: bool = False
    """It goes ahead without the queue."""
    base: int = -1
    had: tuple[int, ...] = ()
    """The table's content when the head was read, where that makes a difference."""
    group: int = 0
    returned: int = 0
    lost: int = 0
    landed: bool = False
    """Its swap has landed, and it may not know."""


class Flight(NamedTuple):
    """A swap in flight."""

    number: int
    base: int
    group: int
    returned: int
    own: bool
    had: tuple[int, ...]


class State(NamedTuple):
    processes: tuple[Process, ...]
    counts: tuple[int, ...]
    """How often the table contains each writer's rows."""
    tickets: tuple[str, ...]
    tries: tuple[int, ...]
    crashes: int
    losses: int
    """Answers that may still be lost."""
    expiries: int
    version: int = 0
    lock: int = UNLOCKED
    expired: int = 0
    deleted: int = 0
    """The writers whose files were deleted."""
    ids: int = 0
    putting: int = 0
    """The writers whose tickets are still in flight."""
    flights: tuple[Flight, ...] = ()
    decided_twice: bool = False
    too_late: bool = False
    poisoned: int = 0
    widest: int = 0
    """How many commits landed with the newest swap."""


@dataclass(frozen=True, slots=True)
class Bounds:
    writers: int = 2
    attempts: int = 2
    crashes: int = 1
    losses: int = 1
    expiries: int = 0
    returns_tickets: bool = False
    """A leader may return a ticket for a reason outside the model."""
    rerun: bool = False
    """The last writer repeats A's call, under the same commit id, if A is dead or in doubt."""
    has_ids: bool = True
    """A chose its commit id, which is recorded. False: the id was generated; only A's ticket and snapshot have it."""
    has_poison: bool = False
    """A leader that includes A's ticket dies."""
    most_tries: int = 1
    may_give_up: bool = True
    """Writers may time out while they wait."""


@dataclass(frozen=True, slots=True)
class Setting:
    """The size of the model, and the rules that are switched off."""

    bounds: Bounds = field(default_factory=Bounds)
    off: frozenset[Rule] = frozenset()

    def on(self, rule: Rule) -> bool:
        return rule not in self.off

    def op(self, number: int) -> int:
        """A repeated call is the same operation as the first one."""
        return 0 if self.is_rerun(number) else number

    def is_rerun(self, number: int) -> bool:
        return self.bounds.rerun and number == self.bounds.writers - 1

    def is_recorded(self, number: int) -> bool:
        """Whether the swap that lands it inserts its commit id."""
        return self.bounds.rerun and (self.bounds.has_ids or self.is_rerun(number))

    def is_found(self, state: State, number: int) -> bool:
        """Whether a search for its commit id finds it, by the record, or by A's ticket or snapshot."""
        if not self.is_recorded(number):
            return False
        return bool(state.ids >> self.op(number) & 1) or (not self.bounds.has_ids and state.counts[0] > 0)


def name_of(number: int) -> str:
    return _NAMES[number]


def names(mask: int) -> str:
    return ", ".join(_NAMES[at] for at in bits(mask))


def bits(mask: int) -> Iterator[int]:
    at = 0
    while mask:
        if mask & 1:
            yield at
        mask >>= 1
        at += 1


def put(state: State, number: int, process: Process) -> State:
    return state._replace(processes=(*state.processes[:number], process, *state.processes[number + 1 :]))


def set_ticket(state: State, number: int, status: str) -> State:
    return state._replace(tickets=(*state.tickets[:number], status, *state.tickets[number + 1 :]))


def renamed(state: State) -> State:
    """The same state with the writers sorted by their own states; the order of ties is kept, which is sound."""
    order = sorted(range(len(state.processes)), key=lambda at: _local(state, at))
    if all(at == old for at, old in enumerate(order)):
        return state
    new = [0] * len(order)
    for at, old in enumerate(order):
        new[old] = at

    def mask(old: int) -> int:
        found = 0
        for at in bits(old):
            found |= 1 << new[at]
        return found

    def counts(old: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(old[at] for at in order) if old else ()

    def process(old: Process) -> Process:
        if not (old.group or old.returned or old.had):
            return old
        return old._replace(group=mask(old.group), returned=mask(old.returned), had=counts(old.had))

    flights = [
        Flight(new[each.number], each.base, mask(each.group), mask(each.returned), each.own, counts(each.had))
        for each in state.flights
    ]
    return state._replace(
        processes=tuple(process(state.processes[old]) for old in order),
        counts=counts(state.counts),
        tickets=tuple(state.tickets[old] for old in order),
        tries=counts(state.tries),
        lock=new[state.lock] if state.lock != UNLOCKED else UNLOCKED,
        expired=mask(state.expired),
        deleted=mask(state.deleted),
        putting=mask(state.putting),
        flights=tuple(sorted(flights)),
    )


def _local(state: State, at: int) -> tuple[object, ...]:
    """A writer's own state, without names."""
    each = state.processes[at]
    bit = 1 << at
    shared = (state.tickets[at], state.counts[at], state.lock == at, bool(state.expired & bit))
    own = (each.at, each.has_ticket, each.may_queue, each.is_alone, each.base, each.lost, each.landed, bool(each.group))
    sent = tuple((flight.base, bool(flight.group), flight.own) for flight in state.flights if flight.number == at)
    return (*own, *shared, bool(state.deleted & bit), bool(state.putting & bit), sent)
