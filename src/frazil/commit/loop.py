"""The commit loop: attempts until one lands, a conflict is found, or the retry budget is used up.

    operation ──▶ attempt ──▶ Landed: return · Conflicting: raise · Lost: wait, again · fault: wait, again
                          └─▶ Redone: again

Rows are staged before the loop and never rewritten by it. One attempt is in ``attempt.py``; ``coordination.py``
decides whether this writer makes it or the leader of a group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NoReturn, Protocol, assert_never

from frazil import observe
from frazil.commit import attempts_log
from frazil.commit.attempt import AttemptResult, Conflicting, Lost, NotAlone
from frazil.commit.context import CommitContext, Phase
from frazil.commit.coordination import Coordination, Redone
from frazil.commit.manifest_merge import merged
from frazil.commit.multi_coordination import MultiCoordination
from frazil.commit.operations import Identity, Operation
from frazil.commit.progress import Progress, SwapState
from frazil.commit.results import Landed, conflict_error
from frazil.commit.retry import Retry
from frazil.commit.unit import CommitUnit, EvaluatedStatement, TableUnit, name_of
from frazil.errors import (
    CatalogUnavailable,
    CorruptMetadata,
    DiskFull,
    FrazilError,
    RetriesExhausted,
    StorageError,
)
from frazil.model import Commit, Conflict, Ident, TransactionCommit
from frazil.runtime import within


def commit(
    context: CommitContext,
    operations: Operation | Sequence[Operation],
    identity: Identity,
    retry: Retry,
    statement: EvaluatedStatement | None = None,
) -> Commit:
    """Commit an operation, or several as one, or raise an error that says what is known about the outcome.

    ``statement``: what the last of them, a write, was evaluated from; it is evaluated again instead of conflicting.
    """
    chain = tuple(operations) if isinstance(operations, Sequence) else (operations,)
    table = TableUnit.of(context.ident, chain, context.storage, context.runtime)
    unit = CommitUnit((table,), identity, retry, name_of(chain), statement)
    progress = Progress(context, unit)
    loop = _Loop(context, progress, Coordination(context, unit, progress), retry)

    def run() -> Commit:
        done = loop.run_and_log()
        assert isinstance(done, Commit), "one table was written"
        return done

    with within(context.runtime, retry.total_s):
        return observe.committing(context, chain, identity, run)


def commit_tables(
    context: CommitContext,
    tables: Sequence[TableUnit],
    identity: Identity,
    retry: Retry,
    statement: EvaluatedStatement | None = None,
) -> Commit | TransactionCommit:
    """Commit what was done to several tables, all of it or nothing, provided that what was read there still holds.

    A ``Commit``: only one of them was written to. ``context``: with a table that was written to. ``statement``: as for
    ``commit``, where only one was.
    """
    in_order = tuple(sorted(tables, key=lambda each: each.ident))
    unit = CommitUnit(in_order, identity, retry, "transaction", statement)
    progress = Progress(context, unit)
    loop = _Loop(context, progress, MultiCoordination(context, unit, progress), retry)
    with within(context.runtime, retry.total_s):
        return observe.committing_tables(context, unit, identity, loop.run_and_log)


class Coordinating(Protocol):
    """How a writer gets to make its attempts."""

    @property
    def unit(self) -> CommitUnit: ...

    @property
    def is_queued(self) -> bool: ...

    @property
    def queues_next(self) -> bool: ...

    def attempt(self, check_time: Callable[[], None]) -> AttemptResult | Redone: ...

    def pause(self, seconds: float) -> None: ...

    def give_up_reservation(self) -> None: ...

    def leave(self, error: BaseException) -> Landed | None: ...

    def found_late(self) -> Landed | None: ...


class _Loop:
    """Retry, deadline and outcome of one commit."""

    def __init__(self, context: CommitContext, progress: Progress, coordination: Coordinating, retry: Retry) -> None:
        self._context = context
        self._runtime = context.runtime
        self._retry = retry
        self._progress = progress
        self._coordination = coordination
        self._has_told_queued = False

    @property
    def _unit(self) -> CommitUnit:
        return self._coordination.unit

    def run_and_log(self) -> Commit | TransactionCommit:
        """Run, and leave a record for other processes if the commit met other writers."""
        try:
            done = self.run()
        except Exception as error:
            attempts_log.ended(self._context, self._unit, self._progress, error)
            raise
        attempts_log.ended(self._context, self._unit, self._progress)
        return done

    def run(self) -> Commit | TransactionCommit:
        try:
            landed = self._landed()
            self._coordination.give_up_reservation()
            observe.finished(self._unit.name, self._progress.elapsed)
            for ident, branch in landed.merges_due:
                self._merge_manifests(ident, branch)
            return landed.commit
        except BaseException as error:
            found = self._coordination.leave(error) or self._found_late(error)
            if found is not None:
                return found.commit
            self._clean_up_after(error)
            raise

    def _landed(self) -> Landed:
        while True:
            self._progress.begin_attempt()
            try:
                found = self._coordination.attempt(self._check_time)
            except (CatalogUnavailable, StorageError) as fault:
                if isinstance(fault, DiskFull | CorruptMetadata):
                    raise
                self._progress.attempt_ended("fault", type(fault).__name__)
                self._wait_after_fault(fault)
                continue
            match found:
                case Landed():
                    return found
                case Conflicting(_, conflicts):
                    self._refuse(conflicts)
                case Redone():
                    observe.retried("redo")
                case Lost() | NotAlone():
                    self._wait_after_loss()
                case _:
                    assert_never(found)

    def _refuse(self, conflicts: tuple[Conflict, ...]) -> NoReturn:
        self._progress.attempt_ended("conflict", ", ".join(str(each.check) for each in conflicts))
        observe.refused(self._unit.name, conflicts)
        named = next((each.ident for each in self._unit.tables if str(each.ident) == conflicts[0].table), None)
        head = self._progress.newest_heads.get(named or self._unit.tables[0].ident)
        log = self._context.catalog.changes
        raise conflict_error(self._unit.name, self._unit.subject, conflicts, head, log, self._redo_note())

    def _redo_note(self) -> str:
        """How far a statement came that was evaluated again and conflicts nevertheless."""
        progress = self._progress
        if not progress.redone:
            return ""
        times = "once" if progress.redone == 1 else f"{progress.redone} times"
        return f"It was evaluated again {times} in {progress.elapsed:.1f} s, and this was found at the end"

    # Retry

    def _wait_after_loss(self) -> None:
        self._progress.lost_race()
        lost = self._progress.lost
        if lost >= self._retry.tries:
            raise RetriesExhausted(
                f"The {self._unit.name} on {self._unit.subject} lost {_plural(lost, 'race')} in a row and gave up",
                attempts=self._progress.attempts,
                evidence=f"It tried for {self._progress.elapsed:.1f} s; each time another writer committed first",
                advice="Nothing was committed and nothing conflicts: call again, or allow more with "
                "retry=frazil.Retry(tries=…) or the table property commit.retry.num-retries",
            )
        observe.retried("lost race")
        # In the queue, writers wait for each other: to sleep before it would only add to that.
        self._pause(0.0 if self._coordination.queues_next else self._retry.wait_s(lost - 1, self._runtime.random()))

    def _wait_after_fault(self, fault: FrazilError) -> None:
        self._progress.met_fault(type(fault).__name__)
        if self._progress.faults > self._retry.fault_tries:
            raise fault
        observe.retried("fault")
        self._pause(self._retry.wait_s(self._progress.faults - 1, self._runtime.random()), fault)

    def _pause(self, wait: float, fault: FrazilError | None = None) -> None:
        if self._retry.total_s is not None and self._progress.elapsed + wait > self._retry.total_s:
            raise self._out_of_time(fault) from fault
        self._progress.reached(Phase.WAITING)
        if wait:
            self._coordination.pause(wait)

    # Deadline

    def _check_time(self) -> None:
        """Called while another writer leads."""
        if self._coordination.is_queued and not self._has_told_queued:
            self._has_told_queued = True
            self._progress.reached(Phase.QUEUED)
        if self._retry.total_s is not None and self._progress.elapsed > self._retry.total_s:
            raise self._out_of_time()

    def _out_of_time(self, fault: FrazilError | None = None) -> RetriesExhausted:
        progress = self._progress
        last = "" if fault is None else f". The last one: {fault.problem}"
        return RetriesExhausted(
            f"The {self._unit.name} on {self._unit.subject} used up its time of {self._retry.total_s:g} s",
            attempts=progress.attempts,
            evidence=f"{_plural(progress.lost, 'lost race')}, {_plural(progress.faults, 'fault')}{last}",
            advice="Nothing was committed: call again, or allow more with retry=frazil.Retry(total_s=…) "
            "or the table property commit.retry.total-timeout-ms",
        )

    # Outcome

    def _found_late(self, error: BaseException) -> Landed | None:
        """That nothing was committed must also be true of an earlier call with the same commit id."""
        is_settled = self._progress.state is SwapState.SETTLED
        if not isinstance(error, RetriesExhausted) or not self._unit.identity.given or not is_settled:
            return None
        return self._coordination.found_late()

    def _clean_up_after(self, error: BaseException) -> None:
        state = self._progress.state
        if state is SwapState.LANDED:
            return
        if state is SwapState.IN_DOUBT or (isinstance(error, FrazilError) and not error.safe_to_delete_staged):
            commit_id = self._unit.identity.commit_id
            error.add_note(f"commit id {commit_id}: the outcome is not known, so no file was deleted")
            return
        self._unit.remove_everything()

    def _merge_manifests(self, ident: Ident, branch: str) -> None:
        """While other writers go on. The commit has landed, whatever becomes of the merge."""
        context = replace(self._context.without_phases(), ident=ident)
        try:
            head = context.catalog.load(context.ident).metadata
            merge = merged(context.storage, self._runtime, head, branch)
            if merge is not None:
                commit(context, merge, self._merge_identity(), Retry(tries=4))
        except FrazilError as error:
            observe.log.debug("manifests of %s were not merged: %s", context.ident, error)
        except BaseException as error:
            error.add_note(f"commit id {self._unit.identity.commit_id} was committed nevertheless")
            raise

    def _merge_identity(self) -> Identity:
        origin = self._unit.identity.origin
        if origin is not None:
            origin = replace(origin, verb="rewrite manifests", started_ms=self._runtime.now_ms())
        return Identity(str(self._runtime.new_uuid()), "", given=False, origin=origin)


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
