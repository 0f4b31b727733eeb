"""The services of many tables in a process of their own: ``lake.services().run()`` and ``frazil services run``.

Each table has one leader among the processes that run services, by a lease that expires (rule P44). A process that is
asked to stop finishes what it is committing and gives its leases back, so that another one goes on at once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Protocol

from frazil import observe
from frazil.errors import FrazilError, InvalidInput, NoSuchTable
from frazil.model import Ident
from frazil.services import policy
from frazil.services.execution import Done, Limits, ServedLake, owner_of, run_due
from frazil.services.leases import LEASE_MS, TableLeases
from frazil.services.policy import Mode

_LEAST_INTERVAL_S = 0.01


class LakeOfTables(ServedLake, Protocol):
    def tables(self, namespace: None = None) -> list[str]: ...

    def check_writable(self) -> None: ...


class Services:
    """The services of a lake's tables. ``run()`` in one thread; ``stop()`` from any other, or a signal handler."""

    def __init__(self, lake: LakeOfTables, tables: Sequence[str] | None, interval_s: float) -> None:
        lake.check_writable()
        if isinstance(tables, str) or not isinstance(tables, Sequence | None):
            raise InvalidInput(f"tables must be a list of names, not {tables!r}")
        if not isinstance(interval_s, int | float) or interval_s < _LEAST_INTERVAL_S:
            raise InvalidInput(f"interval_s must be a number of seconds, not {interval_s!r}")
        self._lake = lake
        self._named = None if tables is None else tuple(Ident.parse(each) for each in tables)
        self._interval_s = float(interval_s)
        self._owner = owner_of(lake)
        self._stop = threading.Event()
        # It lasts over a round or two that take long.
        lease_ms = max(LEASE_MS, int(3000 * interval_s))
        self._limits = Limits(self._stop.is_set, keeps_lease=True, lease_ms=lease_ms)
        self._led: dict[str, TableLeases] = {}

    def run(self, *, once: bool = False) -> list[Done]:
        """Run what is due, every so often, until ``stop()``. ``once``: one round, whose results are returned."""
        try:
            while True:
                done = list(self._round())
                if once or self._stop.wait(self._interval_s):
                    return done
        finally:
            self._hand_over()

    def stop(self) -> None:
        """End after what is being committed."""
        self._stop.set()

    def _round(self) -> Iterator[Done]:
        for ident in self._tables():
            if self._stop.is_set():
                return
            try:
                yield from self._serve(ident)
            except NoSuchTable:
                # It was dropped, or it is another process's to make.
                continue
            except FrazilError as error:
                observe.log.warning("the services of %s did not run: %s", ident, error)

    def _tables(self) -> Sequence[Ident]:
        if self._named is not None:
            return self._named
        return [Ident.parse(each) for each in self._lake.tables()]

    def _serve(self, ident: Ident) -> list[Done]:
        metadata = self._lake.catalog.load(ident).metadata
        if self._named is None and policy.mode_of(metadata) is not Mode.SERVICE:
            return []
        self._led.setdefault(metadata.uuid, TableLeases(self._lake.catalog.leases, metadata.uuid, self._owner.token))
        return run_due(self._lake, ident, self._owner, self._limits) or []

    def _hand_over(self) -> None:
        for each in self._led.values():
            each.give_up()
        self._led.clear()
