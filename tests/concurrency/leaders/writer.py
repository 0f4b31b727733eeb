"""One writer process. Its notes are complete up to the moment of its death."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from concurrency.leaders.orders import Deed, Desk, Moment
from concurrency.writers import Address, batch
from frazil.catalog._db import Db
from frazil.catalog.base import Head, Outcome, Prepared, Proposal, QueuedCommit, QueueUpdate
from frazil.commit.context import Phase
from frazil.errors import FrazilError
from frazil.model import Commit, Ident

_MOMENTS = {
    Phase.QUEUED: Moment.QUEUED,
    Phase.HEAD_READ: Moment.BEFORE_FILES,
    Phase.PREPARED: Moment.PREPARED,
    Phase.SWAPPED: Moment.SWAPPED,
}


@dataclass(frozen=True)
class Note:
    writer: int
    kind: str
    """acknowledged, swapped, obeyed, failed"""
    at: float
    """By the monotonic clock, which all processes of a host share."""
    batch: int = -1
    group_size: int = 0
    order: int = -1
    text: str = ""
    """The swap's outcome, or the error."""


class Notes:
    """A file of one writer's notes, to which it appends after a restart."""

    def __init__(self, path: Path, writer: int) -> None:
        self._writer = writer
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)

    def add(self, kind: str, **what: Any) -> None:
        note = Note(self._writer, kind, time.monotonic(), **what)
        os.write(self._fd, json.dumps(asdict(note)).encode() + b"\n")


class Watched:
    """A writer's catalog, watched: the commit lock, the members of its group, and the outcomes of swaps."""

    def __init__(self, catalog: Any, obey: Callable[[Moment], None], notes: Notes) -> None:
        self._has_lock = False
        self._own: str | None = None
        self._others = 0
        self._last: Prepared | None = None
        self._late: Prepared | None = None
        self._obey = obey
        self._notes = notes
        self._try_lock, self._prepare, self._swap = catalog.locks.try_lock, catalog.prepare, catalog.swap
        catalog.locks.try_lock, catalog.prepare, catalog.swap = self.try_lock, self.prepare, self.swap
        queue = catalog.queue
        self._put, self._settle = queue.put, queue.settle
        queue.put, queue.settle = self.put, self.settle

    def on_phase(self, phase: Phase, _attempt: int) -> None:
        moment = _MOMENTS.get(phase)
        if moment is None:
            return
        if phase is Phase.HEAD_READ:
            self._others = 0
        is_leading = self._has_lock and (phase is Phase.HEAD_READ or self._others > 0)
        if phase is Phase.QUEUED or is_leading:
            self._obey(moment)

    def try_lock(self, ident: Ident) -> Callable[[], None] | None:
        release = self._try_lock(ident)
        if release is None:
            return None
        self._has_lock = True

        def released() -> None:
            self._has_lock = False
            release()

        return released

    def put(self, ticket: QueuedCommit, lives_ms: int) -> bool:
        self._own = ticket.key
        has_others: bool = self._put(ticket, lives_ms)
        return has_others

    def prepare(self, ident: Ident, head: Head, proposal: Proposal) -> Prepared:
        settled = () if proposal.queue_update is None else proposal.queue_update.committed
        self._others = len({*settled} - {self._own})
        prepared: Prepared = self._prepare(ident, head, proposal)
        return prepared

    def swap(self, prepared: Prepared) -> Outcome:
        if self._late is not None:
            late, self._late = self._late, None
            self._send_again(late)
        self._last = prepared
        outcome: Outcome = self._swap(prepared)
        self._notes.add("swapped", text=type(outcome).__name__, group_size=self._others + 1)
        return outcome

    def repeat(self) -> None:
        """The swap arrives again now, and again much later, as if the network had kept a copy."""
        if self._last is not None:
            self._send_again(self._last)
            self._late = self._last

    def _send_again(self, prepared: Prepared) -> None:
        # No caller waits for the answer to a copy.
        with contextlib.suppress(FrazilError):
            self._swap(prepared)

    def settle(self, db: Db, queue_update: QueueUpdate) -> None:
        """Within the swap's transaction, which commits after it."""
        self._settle(db, queue_update)
        if self._has_lock and self._others:
            self._obey(Moment.INSIDE)


def commit_id_of(writer: int, number: int) -> str | None:
    """Every second batch has none: only its ticket keeps it from landing twice (rule P1)."""
    return f"{writer}-{number}" if number % 2 == 0 else None


def write(address: Address, writer: int, first: int, desk: Desk, path: Path) -> None:
    """Append batches from ``first`` on until the campaign is over."""
    notes, campaign = Notes(path, writer), os.getppid()
    # Batches that are found again are expected here.
    logging.getLogger("frazil").setLevel(logging.ERROR)

    def obey(moment: Moment) -> None:
        order = desk.take(moment)
        if order is not None:
            notes.add("obeyed", order=order.number, batch=number)
            os.kill(os.getpid(), signal.SIGKILL if order.deed is Deed.DIE else signal.SIGSTOP)

    number = first
    try:
        table = address.open()
        watched = Watched(table._lake.catalog, obey, notes)
        is_over = False
        while not is_over:
            done: Commit = table.append(
                batch(writer, number), commit_id=commit_id_of(writer, number), on_phase=watched.on_phase
            )
            notes.add("acknowledged", batch=number, group_size=done.group_size)
            number += 1
            # Checked last: a restarted writer finishes the batch that it began.
            is_over = desk.is_finished or os.getppid() != campaign
    except BaseException:
        notes.add("failed", batch=number, text=traceback.format_exc())
        raise
