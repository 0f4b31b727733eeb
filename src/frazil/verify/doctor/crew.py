"""The coordinator's side of the race: N processes that proceed in step."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import TypeVar

from frazil.errors import FrazilError
from frazil.verify.doctor.model import Answer, Observation
from frazil.verify.doctor.worker import Failed, Made, Observe, Opener, Order, Prepare, Reply, Send, Stop, work
from frazil.verify.probe import Scratch
from frazil.verify.processes import clean_context

_START_S = 120.0
_STOP_S = 5.0
_Kind = TypeVar("_Kind")


class Crew:
    """The racing processes. Use it as a context manager: the processes end with it."""

    def __init__(self, size: int, opener: Opener, scratch: Scratch, patience_s: float) -> None:
        self._patience_s = patience_s
        self._processes: list[BaseProcess] = []
        self._lines: list[Connection] = []
        context = clean_context("frazil.verify.doctor.worker")
        # The coordinator is the last party of the barrier, so it releases the start.
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

    def observe(self, workers: Sequence[int] | None = None) -> tuple[Observation, ...]:
        """All processes (or the given ones) load the head concurrently."""
        chosen = range(self.size) if workers is None else workers
        for worker in chosen:
            self._order(worker, Observe())
        return tuple(_expect(Observation, self._reply(worker)) for worker in chosen)

    def prepare(self, snapshot_ids: dict[int, int]) -> dict[int, Made]:
        """Each of these processes prepares its snapshot from the head that it loaded last."""
        for worker, snapshot_id in snapshot_ids.items():
            self._order(worker, Prepare(snapshot_id))
        return {worker: _expect(Made, self._reply(worker)) for worker in snapshot_ids}

    def send(self, worker: int, snapshot_id: int) -> Answer:
        """One process sends a prepared swap, for the first time or again."""
        self.begin(worker, snapshot_id)
        return self.answer(worker)

    def begin(self, worker: int, snapshot_id: int) -> None:
        """Like ``send``, without waiting for the answer."""
        self._order(worker, Send(snapshot_id))

    def start_together(self, snapshot_ids: dict[int, int]) -> None:
        """All processes wait at the barrier with their swap, and are released."""
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
                f"Process {worker} of the race did not answer within {limit:g} s",
                advice="The catalog may be overloaded, or a lock may be stuck. Run the doctor with fewer processes",
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
                # Also ends a process stopped by SIGSTOP.
                process.kill()
                process.join(_STOP_S)
        for line in self._lines:
            line.close()


def _expect(kind: type[_Kind], reply: Reply) -> _Kind:
    assert isinstance(reply, kind), f"expected {kind.__name__}, got {type(reply).__name__}"
    return reply


def _as_answer(reply: Reply) -> Answer:
    assert not isinstance(reply, Observation | Made | Failed)
    return reply
