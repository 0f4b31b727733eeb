"""The states of the model of the swap, its rules and its bounds, and how writers are renamed."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple

Snapshot = tuple[int, int]
"""(writer, attempt). A metadata file is identified by the snapshot that it added."""
BASE: Snapshot = (-1, 0)
NAMES = "ABCDEFGH"


class Rule(enum.StrEnum):
    """The rules that make the swap safe. Each can be switched off."""

    EXPECTED_IS_COMPARED = "the swap compares the pointer with the expected value"
    UNKNOWN_IS_NOT_LOST = "a lost answer is not treated as a lost race"
    RESENT_FIRST = "after a lost answer the identical swap is sent again"
    HEAD_HAS_MOVED = "absence is not believed while the head is unchanged"
    LOG_IS_SEARCHED = "the attempt's metadata file is searched in the table's metadata log"
    HISTORY_IS_WHOLE = "absence is not believed if the history is incomplete"
    ANCESTOR_OR_NOT = "the commit is searched in all snapshots, ancestors or not"
    STALE_IS_SEARCHED = "where a stale answer proves nothing, the head is searched"
    ID_IS_LOOKED_UP = "a repeated call searches for its commit id"
    LOOKED_UP_BEFORE_GIVING_UP = "a call that gives up searches for its commit id once more"
    UNKNOWN_KEEPS_FILES = "an unknown outcome deletes nothing"


class Stage:
    """The stage of a writer; the last four are outcomes. Plain strings: hashing an enum is slow."""

    START = "start"
    PREPARED = "prepared"
    WAITING = "waiting"
    DOUBT = "doubt"
    SEARCHING = "searching"
    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"
    DEAD = "dead"


class Head(NamedTuple):
    """A metadata file. A named tuple instead of a dataclass: millions of them are created and hashed."""

    location: Snapshot
    history: tuple[Snapshot, ...]
    """The kept history of the branch, oldest first."""
    aside: frozenset[Snapshot]
    """Kept snapshots that are not in the branch's history."""
    rows: tuple[int, ...]
    """The writers whose rows the table contains."""
    log: frozenset[Snapshot] = frozenset()
    """The previous metadata files, if writers name them."""


class Request(NamedTuple):
    snapshot: Snapshot
    expected: Snapshot
    new: Head


class Writer(NamedTuple):
    at: str
    attempt: int = 0
    first: int = 1
    """The first attempt of this call; earlier attempts belong to a previous call, in another process."""
    request: Request | None = None
    sent: int = 0
    answered: bool = False
    """The catalog has answered since the outcome became unknown."""


class State(NamedTuple):
    head: Head
    writers: tuple[Writer, ...]
    flying: tuple[Request, ...]
    landed: tuple[Snapshot, ...]
    """Every snapshot that ever landed."""
    undone: frozenset[int]
    """The writers whose rows an operator rolled back."""
    ids: frozenset[int]
    deleted: frozenset[Snapshot]
    """The attempts whose files were deleted."""
    duplicates: int
    crashes: int
    reruns: int
    rollbacks: int
    expiries: int


@dataclass(frozen=True, slots=True)
class Bounds:
    writers: int = 2
    attempts: int = 2
    sends: int = 2
    """How often one swap is sent."""
    duplicates: int = 0
    crashes: int = 0
    reruns: int = 0
    """Calls that are repeated with the same commit id; if above zero, all writers choose their ids."""
    rollbacks: int = 0
    expiries: int = 0
    is_vague: bool = False
    """The catalog may answer stale while the swap is still in flight, as a gateway in front of a server does."""
    has_log: bool = True
    """Writers name the metadata files, so the metadata log shows their attempts; False: the server names the files."""


DECIDED = (Stage.OK, Stage.FAILED, Stage.UNKNOWN, Stage.DEAD)


def put(state: State, number: int, writer: Writer) -> State:
    return state._replace(writers=(*state.writers[:number], writer, *state.writers[number + 1 :]))


def done(writer: Writer, outcome: str) -> Writer:
    return writer._replace(at=outcome, request=None)


def with_request(flying: tuple[Request, ...], request: Request) -> tuple[Request, ...]:
    return tuple(sorted((*flying, request), key=_order))


def _order(request: Request) -> tuple[Snapshot, Snapshot]:
    return request.snapshot, request.expected


def renamed(state: State) -> State:
    """The same state with the writers sorted by their own states, and renamed everywhere."""
    order = sorted(range(len(state.writers)), key=lambda number: _local(state, number))
    if order == list(range(len(order))):
        return state
    new = {old: at for at, old in enumerate(order)}
    return State(
        _head(state.head, new),
        tuple(_writer(state.writers[old], new) for old in order),
        tuple(sorted((_request(each, new) for each in state.flying), key=_order)),
        tuple(sorted((new[number], attempt) for number, attempt in state.landed)),
        frozenset(new[each] for each in state.undone),
        frozenset(new[each] for each in state.ids),
        frozenset(_snapshot(each, new) for each in state.deleted),
        *state[7:],
    )


def _local(state: State, number: int) -> tuple[object, ...]:
    """A writer's own state, without names; the order of ties is kept, which is sound."""
    writer = state.writers[number]
    landed = [attempt for each, attempt in state.landed if each == number]
    at = [depth for depth, each in enumerate(state.head.history) if each[0] == number]
    return (writer.at, writer.attempt, writer.first, writer.sent, writer.answered, landed, at)


def _head(head: Head, new: dict[int, int]) -> Head:
    rows = tuple(sorted(new[each] for each in head.rows))
    aside = frozenset(_snapshot(each, new) for each in head.aside)
    history = tuple(_snapshot(each, new) for each in head.history)
    return Head(
        _snapshot(head.location, new), history, aside, rows, frozenset(_snapshot(each, new) for each in head.log)
    )


def _snapshot(snapshot: Snapshot, new: dict[int, int]) -> Snapshot:
    number, attempt = snapshot
    return (new.get(number, number), attempt)


def _request(request: Request, new: dict[int, int]) -> Request:
    return Request(_snapshot(request.snapshot, new), _snapshot(request.expected, new), _head(request.new, new))


def _writer(writer: Writer, new: dict[int, int]) -> Writer:
    return writer if writer.request is None else writer._replace(request=_request(writer.request, new))
