"""The states of the model of the swap, its rules and its bounds, and how writers are renamed."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple

Snapshot = tuple[int, int]
"""(writer, attempt). A metadata file is named by the snapshot it came with."""
BASE: Snapshot = (-1, 0)
NAMES = "ABCDEFGH"


class Rule(enum.StrEnum):
    """What keeps the swap safe. Each can be switched off."""

    EXPECTED_IS_COMPARED = "the swap compares the pointer with the value expected"
    UNKNOWN_IS_NOT_LOST = "no answer is not taken for a lost race"
    RESENT_FIRST = "after no answer the identical swap is sent again"
    HEAD_HAS_MOVED = "absence is not believed while the head is where it was"
    LOG_IS_SEARCHED = "my metadata file is searched in the table's log of them"
    HISTORY_IS_WHOLE = "absence is not believed where history is broken"
    ANCESTOR_OR_NOT = "my commit is searched in all snapshots, ancestors or not"
    STALE_IS_SEARCHED = "where a stale answer proves nothing, the head is searched"
    ID_IS_LOOKED_UP = "a repeated call looks for its commit id"
    LOOKED_UP_BEFORE_GIVING_UP = "a call that gives up looks for its commit id once more"
    UNKNOWN_KEEPS_FILES = "an unknown outcome deletes nothing"


class Told:
    """Where a writer stands; the last four are what its caller was told. Plain texts: an enum's hash is slow."""

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
    """Named tuples instead of dataclasses: millions of them are made and hashed."""

    location: Snapshot
    line: tuple[Snapshot, ...]
    """The branch's history, as far as it is kept, oldest first."""
    aside: frozenset[Snapshot]
    """Snapshots that are kept and are not in the branch's history."""
    rows: tuple[int, ...]
    """Whose rows the table holds."""
    log: frozenset[Snapshot] = frozenset()
    """The metadata files before this one, where writers name them themselves."""


class Request(NamedTuple):
    snapshot: Snapshot
    expected: Snapshot
    new: Head


class Writer(NamedTuple):
    at: str
    attempt: int = 0
    first: int = 1
    """The first attempt of this call; earlier ones were a call before, whose process knew more."""
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
    """Whose rows an operator rolled back."""
    ids: frozenset[int]
    deleted: frozenset[Snapshot]
    """Attempts whose files are gone."""
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
    """Calls that are repeated with the same commit id; above zero all writers choose their ids."""
    rollbacks: int = 0
    expiries: int = 0
    is_vague: bool = False
    """The catalog may answer stale while the swap is still under way, as a gateway in front of a server does."""
    has_log: bool = True
    """Writers name the metadata files, so that the table's log of them is a trace; False: the catalog's server does."""


DECIDED = (Told.OK, Told.FAILED, Told.UNKNOWN, Told.DEAD)


def put(state: State, number: int, writer: Writer) -> State:
    return state._replace(writers=(*state.writers[:number], writer, *state.writers[number + 1 :]))


def done(writer: Writer, told: str) -> Writer:
    return writer._replace(at=told, request=None)


def with_request(flying: tuple[Request, ...], request: Request) -> tuple[Request, ...]:
    return tuple(sorted((*flying, request), key=_order))


def _order(request: Request) -> tuple[Snapshot, Snapshot]:
    return request.snapshot, request.expected


def renamed(state: State) -> State:
    """The same with the writers sorted by what each of them is, and renamed everywhere."""
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
    """What a writer is like without anybody's name; ties stay as they are, which is sound."""
    writer = state.writers[number]
    mine = [attempt for each, attempt in state.landed if each == number]
    at = [depth for depth, each in enumerate(state.head.line) if each[0] == number]
    return (writer.at, writer.attempt, writer.first, writer.sent, writer.answered, mine, at)


def _head(head: Head, new: dict[int, int]) -> Head:
    rows = tuple(sorted(new[each] for each in head.rows))
    aside = frozenset(_snapshot(each, new) for each in head.aside)
    line = tuple(_snapshot(each, new) for each in head.line)
    return Head(_snapshot(head.location, new), line, aside, rows, frozenset(_snapshot(each, new) for each in head.log))


def _snapshot(snapshot: Snapshot, new: dict[int, int]) -> Snapshot:
    number, attempt = snapshot
    return (new.get(number, number), attempt)


def _request(request: Request, new: dict[int, int]) -> Request:
    return Request(_snapshot(request.snapshot, new), _snapshot(request.expected, new), _head(request.new, new))


def _writer(writer: Writer, new: dict[int, int]) -> Writer:
    return writer if writer.request is None else writer._replace(request=_request(writer.request, new))
