"""Real writers: processes that race real commits on a SQLite lake, and wait as the policy says."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier

from frazil.catalog.base import Committed, Head, OpenedCatalog, Prepared, Proposal, Stale, Unknown
from frazil.catalog.open import open_catalog
from frazil.commit.retry import Retry
from frazil.errors import FrazilError
from frazil.runtime import SYSTEM, RandomStream, Runtime, seeded
from frazil.verify.probe import Scratch, empty_snapshot, scratch_table
from frazil.verify.processes import clean_context
from frazil_verification.lab.model import Load, Policy, Sample

_START_S = 180.0
_PATIENCE_S = 1800.0


@dataclass(frozen=True, slots=True)
class _Task:
    """The task of one writer process; everything in it can be pickled."""

    number: int
    folder: str
    scratch: Scratch
    policy: Policy
    load: Load
    retry: Retry
    commits: int
    seed: str


@dataclass(frozen=True, slots=True)
class _Done:
    samples: tuple[Sample, ...]
    started: float
    ended: float


def race(policy: Policy, load: Load, retry: Retry, seed: int, runtime: Runtime = SYSTEM) -> tuple[list[Sample], float]:
    """All writers' commits, and the seconds from the start to the last one's end."""
    with tempfile.TemporaryDirectory(prefix="frazil-lab-", ignore_cleanup_errors=True) as folder:
        opened = open_catalog(folder)
        try:
            with scratch_table(opened, "lab", runtime, []) as scratch:
                done = _run(_tasks(folder, scratch, policy, load, retry, seed))
                _check_nothing_lost(opened, scratch, done)
        finally:
            opened.catalog.close()
    samples = [sample for each in done for sample in each.samples]
    return samples, max(each.ended for each in done) - min(each.started for each in done)


def _tasks(folder: str, scratch: Scratch, policy: Policy, load: Load, retry: Retry, seed: int) -> list[_Task]:
    share, rest = divmod(load.commits, load.writers)
    return [
        _Task(number, folder, scratch, policy, load, retry, share + (number < rest), f"{seed}/{policy}/{number}")
        for number in range(load.writers)
        if share + (number < rest)
    ]


def _run(tasks: list[_Task]) -> list[_Done]:
    context = clean_context(__name__)
    start = context.Barrier(len(tasks))
    processes, lines = [], []
    try:
        for task in tasks:
            mine, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_write, args=(task, start, theirs), daemon=True)  # type: ignore[attr-defined]
            process.start()
            theirs.close()
            processes.append(process)
            lines.append(mine)
        return [_received(line) for line in lines]
    finally:
        for process in processes:
            process.kill()
            process.join()
        for line in lines:
            line.close()


def _received(line: Connection) -> _Done:
    if not line.poll(_PATIENCE_S):
        raise FrazilError(f"A writer of the lab did not answer within {_PATIENCE_S:g} s")
    try:
        found: _Done | FrazilError = line.recv()
    except EOFError:
        raise FrazilError("A writer of the lab died") from None
    if isinstance(found, FrazilError):
        raise found
    return found


def _check_nothing_lost(opened: OpenedCatalog, scratch: Scratch, done: list[_Done]) -> None:
    """The figures of a lab that lost commits would be meaningless."""
    landed = sum(sample.landed for each in done for sample in each.samples)
    metadata = opened.catalog.load(scratch.ident).metadata
    kept = sum(1 for _ in metadata.ancestors(metadata.ref_snapshot_id()))
    if kept != landed:
        raise FrazilError(f"{landed} commits were acknowledged, but the table's history has {kept}")


def _write(task: _Task, start: Barrier, result: Connection) -> None:
    """The process's main function."""
    try:
        opened = open_catalog(task.folder, create=False)
        try:
            opened.catalog.load(task.scratch.ident)
            start.wait(_START_S)
            result.send(_Writer(task, opened, seeded(task.seed), SYSTEM).run())
        finally:
            opened.catalog.close()
    except FrazilError as error:
        start.abort()
        result.send(error)
    except Exception as error:  # noqa: BLE001 - every error must reach the parent, which would wait otherwise
        start.abort()
        result.send(FrazilError(f"A writer of the lab stopped with {type(error).__name__}", evidence=str(error)))


@dataclass(frozen=True, slots=True)
class _Writer:
    task: _Task
    opened: OpenedCatalog
    random: RandomStream
    runtime: Runtime

    def run(self) -> _Done:
        started = self.runtime.monotonic()
        samples = []
        for number in range(self.task.commits):
            self.runtime.sleep(self._pause(number, started))
            samples.append(self._commit())
        return _Done(tuple(samples), started, self.runtime.monotonic())

    def _pause(self, number: int, started: float) -> float:
        load = self.task.load
        if load.arrivals == "independent":
            return self.random.expovariate(1 / load.think_s) if load.think_s else 0.0
        if load.arrivals == "clockwork":
            return load.think_s if number else 0.0
        tick = started + number * load.think_s + self.random.random() * load.spread_s
        return max(0.0, tick - self.runtime.monotonic())

    def _commit(self) -> Sample:
        retry, catalog = self.task.retry, self.opened.catalog
        began = self.runtime.monotonic()
        for attempt in range(retry.tries):
            if attempt:
                wait = self.task.policy.wait_s(attempt - 1, self.random.random(), retry)
                self.runtime.sleep(wait)
            head = catalog.load(self.task.scratch.ident)
            prepared = catalog.prepare(self.task.scratch.ident, head, self._proposal(head))
            if self._landed(prepared):
                return Sample(attempt, self.runtime.monotonic() - began, landed=True)
            catalog.discard(prepared)
        return Sample(retry.tries - 1, self.runtime.monotonic() - began, landed=False)

    def _landed(self, prepared: Prepared) -> bool:
        match self.opened.catalog.swap(prepared):
            case Committed():
                return True
            case Stale():
                return False
            case Unknown(cause):
                raise FrazilError("The outcome of a swap on the lab's own lake is unknown", evidence=cause)

    def _proposal(self, head: Head) -> Proposal:
        return empty_snapshot(head, self.task.scratch, self.runtime.new_snapshot_id(), f"writer {self.task.number}")
