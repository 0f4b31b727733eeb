"""The transactions that ``lake.sql("BEGIN")`` has begun: at most one for each thread of a lake."""

from __future__ import annotations

import os
import threading
from typing import Protocol

from frazil.errors import InvalidInput
from frazil.transaction import Transaction


class Begins(Protocol):
    """What begins a transaction: a lake."""

    def transaction(self, *, isolation: str) -> Transaction: ...


class Begun:
    """Which transaction the statements of a thread belong to. A forked process and a pickled lake have none."""

    def __init__(self) -> None:
        self._here = threading.local()
        # Changed by single steps of a dict only: a lock could be held by another thread at a fork.
        self._open: dict[Transaction, threading.Thread] = {}

    def current(self) -> Transaction | None:
        """The transaction of this thread."""
        found: Transaction | None = getattr(self._here, "transaction", None)
        if found is None or not found._is_open or found._pid != os.getpid():
            return None
        return found

    def begin(self, lake: Begins, isolation: str) -> None:
        """Raises InvalidInput where this thread has a transaction already."""
        if self.current() is not None:
            raise InvalidInput(
                "BEGIN inside a transaction: this thread has begun one on this lake",
                advice='End it first: lake.sql("COMMIT") or lake.sql("ROLLBACK")',
            )
        self._roll_back(lambda thread: not thread.is_alive())
        self._here.transaction = transaction = lake.transaction(isolation=isolation)
        self._open[transaction] = threading.current_thread()

    def take(self, statement: str) -> Transaction:
        """The transaction of this thread, which ends with this statement, whatever comes of it."""
        found = self.current()
        if found is None:
            raise InvalidInput(
                f"{statement} without BEGIN: this thread has begun no transaction on this lake",
                advice='Write lake.sql("BEGIN") first; outside of a transaction each statement commits itself',
            )
        self._here.transaction = None
        self._open.pop(found, None)
        return found

    def close(self) -> None:
        """Roll back the open transactions of all threads of this process."""
        self._roll_back(lambda _thread: True)

    def _roll_back(self, ends: Ends) -> None:
        for transaction, thread in list(self._open.items()):
            if transaction._pid != os.getpid():
                # The parent's, in a forked process.
                self._open.pop(transaction, None)
            elif ends(thread):
                self._open.pop(transaction, None)
                transaction.rollback()


class Ends(Protocol):
    """Whether the transaction of a thread is over."""

    def __call__(self, thread: threading.Thread, /) -> bool: ...
