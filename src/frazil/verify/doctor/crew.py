"""The referee's side of the race: N processes that move in step."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import TypeVar

from frazil.errors import FrazilError
from frazil.verify.doctor.model import Answer, Sight
from frazil.verify.doctor.worker import Failed, Look, Made, Opener, Order, Prepare, Reply, Send, Stop, work
from frazil.verify.probe import Scratch
from frazil.verify.processes import clean_context

_START_S = 120.0
_STOP_S = 5.0
_Kind = TypeVar("_Kind")


class Crew:
    """Use as a context: the processes end with it, whatever happens."""

    def __init__(self, size: int, opener: Opener, scratch: Scratch, patience_s: float) -> None:
        self._patience_s = patience_s
        self._processes: list[BaseProcess] = []
        self._lines: list[Connection] = []
        context = clean_context("frazil.verify.doctor.worker")
        # The referee is the last party, so it knows the moment of the start.
        self._barrier = context.Barrier(size + 1)
        try:
            for number in range(size):
                mine, theirs = context.Pipe()
                process = context.Process(  # type: ignore[attr-defined]
                    target=work,
                    args=(number, opener, scratch, theirs, self._barrier, patience_s, dict(os.environ)),
                    daemon=True,
                    name=f"frazil-doctor-{number}",
                )
                process.start()
                theirs.close()
                self._processes.append(process)
                self._lines.append(mine)
            for number in range(size):
                self._reply(number, _START_S)
        except BaseException:
            self._end()
            raise

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._end()

    @property
    def size(self) -> int:
        return len(self._lines)

    def look(self, workers: Sequence[int] | None = None) -> tuple[Sight, ...]:
        """All (or these) processes load the head at once."""
        chosen = range(self.size) if workers is None else workers
        for worker in chosen:
            self._order(worker, Look())
        return tuple(_expect(Sight, self._reply(worker)) for worker in chosen)

    def prepare(self, snapshot_ids: dict[int, int]) -> dict[int, Made]:
        """Each of these processes prepares the snapshot given for it, from the head it saw last."""
        for worker, snapshot_id in snapshot_ids.items():
            self._order(worker, Prepare(snapshot_id))
        return {worker: _expect(Made, self._reply(worker)) for worker in snapshot_ids}

    def send(self, worker: int, snapshot_id: int) -> Answer:
        """One process sends a swap it prepared before, for the first time or again."""
        self.begin(worker, snapshot_id)
        return self.answer(worker)

    def begin(self, worker: int, snapshot_id: int) -> None:
        """As ``send``, without waiting for the answer."""
        self._order(worker, Send(snapshot_id))

    def start_together(self, snapshot_ids: dict[int, int]) -> None:
        """All processes stand at the barrier with their swap, and are let go."""
        for worker, snapshot_id in snapshot_ids.items():
            self._order(worker, Send(snapshot_id, together=True))
        self._barrier.wait(self._patience_s)

    def answer(self, worker: int) -> Answer:
        return _as_answer(self._reply(worker))

    def pause(self, worker: int) -> None:
        self._signal(worker, signal.SIGSTOP)

    def resume(self, worker: int) -> None:
        self._signal(worker, signal.SIGCONT)

    def _signal(self, worker: int, number: signal.Signals) -> None:
        pid = self._processes[worker].pid
        assert pid is not None, "started in __init__"
        os.kill(pid, number)

    def _order(self, worker: int, order: Order) -> None:
        self._lines[worker].send(order)

    def _reply(self, worker: int, patience_s: float | None = None) -> Reply:
        line = self._lines[worker]
        limit = self._patience_s if patience_s is None else patience_s
        if not line.poll(limit):
            raise FrazilError(
                f"Process {worker} of the race gave no answer within {limit:g} s",
                advice="Is the catalog overloaded or a lock left behind? Run the doctor again with fewer processes",
            )
        try:
            reply: Reply = line.recv()
        except EOFError:
            code = self._processes[worker].exitcode
            raise FrazilError(f"Process {worker} of the race died", evidence=f"Its exit code is {code}") from None
        if isinstance(reply, Failed):
            raise reply.error
        return reply

    def _end(self) -> None:
        for line in self._lines:
            try:
                line.send(Stop())
            except OSError:
                continue
        for process in self._processes:
            process.join(_STOP_S)
            if process.is_alive():
                # Also ends one that is stopped by SIGSTOP.
                process.kill()
                process.join(_STOP_S)
        for line in self._lines:
            line.close()


def _expect(kind: type[_Kind], reply: Reply) -> _Kind:
    assert isinstance(reply, kind), f"expected {kind.__name__}, got {type(reply).__name__}"
    return reply


def _as_answer(reply: Reply) -> Answer:
    assert not isinstance(reply, Sight | Made | Failed)
    return reply
