"""Functions of a transaction that are called again after a conflict: ``lake.run`` and ``@lake.transactional``.

    call the function ─▶ commit ─▶ landed: its value
                           ├─▶ conflict that may be repeated: wait, call again
                           ├─▶ outcome unknown: look for the commit id; only if it is not found, call again
                           └─▶ any other error: raise

The commit repeats its own attempts at the race (``commit/loop.py``). Both draw on one budget, so they do not multiply.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Concatenate, Generic, NoReturn, ParamSpec, Protocol, TypeVar, overload
from weakref import WeakKeyDictionary

from frazil import observe
from frazil.catalog.commit_lock import LONGEST_POLL_S, turn_lock
from frazil.commit.context import Phase
from frazil.commit.retry import Retry
from frazil.errors import (
    CatalogUnavailable,
    CommitUnknown,
    ConflictError,
    CorruptMetadata,
    DiskFull,
    FrazilError,
    InvalidInput,
    StorageError,
)
from frazil.model import Commit, Ident, TransactionCommit
from frazil.table.options import check_plain, checked_commit_id, checked_retry
from frazil.transaction import Course, Transaction

if TYPE_CHECKING:
    from frazil.lake import Lake

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_TURN_AFTER = 2
"""After so many conflicts, the function runs while it holds the table's turn (rules P2 and P3)."""
_PATIENCE_S = 30.0
_BUSY_S = 1.5
"""How long functions of a process that has seen such contention take the turn at once."""
_SHORTEST_S = 0.001


class Transactional(Protocol[P, T_co]):
    """A decorated function: it begins a transaction of its own, or joins the one that is its first argument."""

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T_co: ...

    @overload
    def __call__(self, transaction: Transaction, /, *args: P.args, **kwargs: P.kwargs) -> T_co: ...


def run(
    lake: Lake, function: Callable[[Transaction], T], *, isolation: str, retry: Retry | None, commit_id: str | None
) -> T:
    """Call ``function`` with a transaction until that is committed, and return its value."""
    _check_function(function)
    return _Run(lake, function, isolation, checked_retry(retry) or Retry(), checked_commit_id(commit_id)).run()


def decorated(
    lake: Lake, function: Callable[Concatenate[Transaction, P], T], *, isolation: str, retry: Retry | None
) -> Transactional[P, T]:
    """The function as one that runs in a transaction of its own, or in the one it is called with."""
    _check_function(function)
    checked_retry(retry)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> T:
        if args and isinstance(args[0], Transaction):
            return function(*args, **kwargs)
        own = functools.partial(_with_transaction, function, args, kwargs)
        return run(lake, own, isolation=isolation, retry=retry, commit_id=None)

    return call


def _with_transaction(function: Callable[..., T], args: Any, kwargs: Any, transaction: Transaction) -> T:
    return function(transaction, *args, **kwargs)


def _check_function(function: object) -> None:
    if not callable(function):
        raise InvalidInput(f"run() needs a function of a transaction, not {type(function).__name__}")
    check_plain(function)


@dataclass(frozen=True, slots=True)
class _Landed(Generic[T]):
    value: T


@dataclass(frozen=True, slots=True)
class _Doubt(Generic[T]):
    """A call whose commit has an unknown outcome."""

    transaction: Transaction
    value: T
    error: CommitUnknown

    def made(self, commit: Commit | TransactionCommit) -> bool:
        return self.transaction._made(commit)


class _Again(Exception):
    """The function may be called again after this error."""

    def __init__(self, error: FrazilError) -> None:
        self.error = error


class _Turns:
    """What this process has seen of functions that conflict, by table."""

    def __init__(self) -> None:
        self._until: dict[Ident, float] = {}
        self._taken: dict[Ident, float] = {}

    def contended(self, table: Ident, now: float) -> None:
        self._until[table] = now + _BUSY_S

    def is_contended(self, table: Ident, now: float) -> bool:
        return now < self._until.get(table, 0.0)

    def took(self, table: Ident, now: float, *, is_contended: bool) -> None:
        self._taken[table] = now
        if is_contended:
            self.contended(table, now)

    def had_it_last(self, table: Ident, now: float) -> bool:
        return now - self._taken.get(table, -_BUSY_S) < _BUSY_S


_turns: WeakKeyDictionary[Lake, _Turns] = WeakKeyDictionary()


def _is_fault(error: FrazilError) -> bool:
    is_passing = isinstance(error, CatalogUnavailable | StorageError)
    return is_passing and not isinstance(error, DiskFull | CorruptMetadata)


class _Run(Generic[T]):
    """The calls of one function, until one of them is committed."""

    def __init__(
        self, lake: Lake, function: Callable[[Transaction], T], isolation: str, retry: Retry, commit_id: str | None
    ) -> None:
        self._lake = lake
        self._runtime = lake.runtime
        self._function = function
        self._isolation = isolation
        self._retry = retry
        self._is_given = commit_id is not None
        self._commit_id = commit_id or str(lake.runtime.new_uuid())
        self._turns = _turns.setdefault(lake, _Turns())
        self._started = lake.runtime.monotonic()
        self._calls = self._attempts = self._conflicts = self._faults = 0
        self._contended: Ident | None = None
        self._doubts: list[_Doubt[T]] = []

    def run(self) -> T:
        while True:
            try:
                if self._doubts and (landed := self._landed_before()) is not None:
                    return landed.value
                with ExitStack() as turn:
                    return self._call(turn)
            except _Again as again:
                error = again.error
            # Outside of the handler, so that the error is raised as it was.
            self._wait_after(error)

    def _call(self, turn: ExitStack) -> T:
        """One call of the function and its commit. Raises ``_Again`` after an error that allows another one."""
        course = Course(
            before_pin=functools.partial(self._take_turn, turn),
            on_phase=self._count_attempt,
            is_named=self._is_given or bool(self._doubts),
        )
        transaction = Transaction(
            self._lake, isolation=self._isolation, retry=self._left(), commit_id=self._commit_id, course=course
        )
        self._calls += 1
        try:
            value = self._function(transaction)
        except BaseException as error:
            transaction.rollback()
            self._raise_again(error, transaction)
            self._explain(error, transaction)
            raise
        return self._committed(transaction, value)

    def _committed(self, transaction: Transaction, value: T) -> T:
        try:
            if transaction._is_open:
                transaction.commit()
        except CommitUnknown as error:
            self._doubts.append(_Doubt(transaction, value, error))
            raise _Again(error) from error
        except FrazilError as error:
            self._raise_again(error, transaction, is_commit=True)
            raise
        done = transaction.result
        if done is not None and done.already_committed and not transaction._made(done):
            # An earlier call has landed: of this run, or of another one with the same commit id.
            return next((each.value for each in self._doubts if each.made(done)), value)
        return value

    # After an error

    def _raise_again(self, error: BaseException, transaction: Transaction, *, is_commit: bool = False) -> None:
        if not isinstance(error, FrazilError) or not transaction._was_raised(error):
            return
        if isinstance(error, ConflictError) and error.retryable:
            self._conflicts += 1
            self._contended = transaction._named(error.conflicts[0].table) or transaction._touched
            if self._contended is not None and self._conflicts >= _TURN_AFTER:
                self._turns.contended(self._contended, self._runtime.monotonic())
            raise _Again(error) from error
        # The commit has repeated itself after a fault of its own.
        if not is_commit and _is_fault(error):
            raise _Again(error) from error
        self._note(error)

    def _wait_after(self, error: FrazilError) -> None:
        """Until the next call. Raises the error when the budget is used up."""
        if isinstance(error, ConflictError):
            count = self._conflicts
            is_over = max(self._calls, self._attempts) >= self._retry.tries
        else:
            self._faults += 1
            count = self._faults
            is_over = count > self._retry.fault_tries
        takes_turn = isinstance(error, ConflictError) and count >= _TURN_AFTER
        longest = min(self._retry.base_ms * 2.0 ** min(count - 1, 64), self._retry.cap_ms) / 1000
        # Before its turn a writer waits for the others: to sleep first would only add to that.
        wait = 0.0 if takes_turn else longest * self._runtime.random()
        total_s = self._retry.total_s
        if is_over or (total_s is not None and self._elapsed + wait > total_s):
            self._give_up(error)
        observe.retried("conflict" if isinstance(error, ConflictError) else "fault")
        if wait:
            self._runtime.sleep(wait)

    def _give_up(self, error: FrazilError) -> NoReturn:
        # A conflict also proves that an earlier call, whose outcome was unknown, was not committed and never will be.
        last = self._doubts[-1].error if self._doubts and not isinstance(error, ConflictError) else error
        self._note(last)
        raise last

    def _note(self, error: BaseException) -> None:
        calls = "once" if self._calls == 1 else f"{self._calls} times"
        error.add_note(f"lake.run called the function {calls} in {self._elapsed:.1f} s")

    def _explain(self, error: BaseException, transaction: Transaction) -> None:
        """What the function's own error does not say: an earlier call may have been committed."""
        if self._doubts:
            error.add_note(f"commit id {self._commit_id}: it is not known whether an earlier call was committed")
        elif self._is_given and isinstance(error, Exception):
            with contextlib.suppress(FrazilError):
                if transaction._was_committed:
                    error.add_note(f"commit id {self._commit_id} was committed by an earlier run")

    def _landed_before(self) -> _Landed[T] | None:
        """An earlier call of this run whose outcome was unknown, if it is found now."""
        try:
            found = self._doubts[-1].transaction._found()
        except (CatalogUnavailable, StorageError) as error:
            raise _Again(error) from error
        if found is None:
            return None
        return _Landed(next((each.value for each in self._doubts if each.made(found)), self._doubts[-1].value))

    # The budget

    @property
    def _elapsed(self) -> float:
        return self._runtime.monotonic() - self._started

    def _count_attempt(self, phase: Phase, _attempt: int) -> None:
        self._attempts += phase is Phase.HEAD_READ

    def _left(self) -> Retry:
        """What the next commit may use. With one try it would not queue with other writers, so it gets two."""
        retry = self._retry
        tries = max(min(2, retry.tries), retry.tries - self._attempts)
        total_s = None if retry.total_s is None else max(_SHORTEST_S, retry.total_s - self._elapsed)
        return replace(retry, tries=tries, total_s=total_s)

    # The turn

    def _take_turn(self, turn: ExitStack, first: Ident) -> None:
        """Right before the instant is pinned: wait until the functions before this one have committed."""
        own = self._contended if self._conflicts >= _TURN_AFTER else None
        now = self._runtime.monotonic()
        table = own or (first if self._turns.is_contended(first, now) else None)
        if table is None:
            return
        total_s = self._retry.total_s
        patience_s = _PATIENCE_S if total_s is None else max(0.0, min(_PATIENCE_S, total_s - self._elapsed))
        if self._turns.had_it_last(table, now):
            # Otherwise it would have the turn again before any of the others looks.
            self._runtime.sleep(LONGEST_POLL_S)
        turn.enter_context(turn_lock(self._lake.catalog, table, patience_s, self._runtime))
        had_to_wait = self._runtime.monotonic() - now > 2 * LONGEST_POLL_S
        self._turns.took(table, self._runtime.monotonic(), is_contended=had_to_wait)
