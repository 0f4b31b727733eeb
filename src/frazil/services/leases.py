"""Leases on parts of a table, so that services split the work. Hints: overlapping services commit correctly (P44)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from frazil import observe
from frazil.catalog.base import Leases
from frazil.errors import FrazilError

Claim = Callable[[Iterable[str]], bool]
"""Takes a group of files by their paths; False: another service has taken it."""
LEASE_MS = 60_000
_SKETCH = 8
LEADER = "leader"
"""The scope of the process that runs the services of a table."""


@dataclass(slots=True)
class TableLeases:
    """What one owner has taken of a table. Without leases in the catalog everything is its own."""

    leases: Leases | None
    table_uuid: str
    owner: str
    lives_ms: int = LEASE_MS
    taken: set[str] = field(default_factory=set)

    def take(self, scope: str) -> bool:
        """False: another owner has it. A catalog that does not answer is no reason to wait."""
        if self.leases is None:
            return True
        try:
            is_taken = self.leases.acquire(self.table_uuid, scope, self.owner, self.lives_ms)
        except FrazilError as error:
            observe.log.debug("no lease on %s: %s", scope, error)
            return True
        if is_taken:
            self.taken.add(scope)
        return is_taken

    def claim(self, paths: Iterable[str]) -> bool:
        """Take a group of files. False: another service works on these, or on most of them."""
        mine: list[str] = []
        for scope in group_scopes(paths):
            is_new = scope not in self.taken
            if not self.take(scope):
                for each in mine:
                    self.release(each)
                return False
            if is_new:
                mine.append(scope)
        return True

    def extend(self) -> None:
        if self.leases is None or not self.taken:
            return
        try:
            self.leases.extend(self.table_uuid, self.owner, self.lives_ms)
        except FrazilError as error:
            observe.log.debug("the leases of %s were not extended: %s", self.owner, error)

    def release(self, scope: str | None = None) -> None:
        """Give one back, or all that this value has taken."""
        if self.taken:
            self.give_up(scope)

    def give_up(self, scope: str | None = None) -> None:
        """Give one back, or all that the owner has on the table."""
        if self.leases is None:
            return
        self.taken = set() if scope is None else self.taken - {scope}
        try:
            self.leases.release(self.table_uuid, self.owner, scope)
        except FrazilError as error:
            observe.log.debug("a lease of %s was not released: %s", self.owner, error)


def group_scopes(paths: Iterable[str]) -> list[str]:
    """What stands for a group of files: the smallest few of their digests.

    Two groups that share most of their files share one of these, however large they are, and a group costs so many
    requests at most. In one order, so that of two services that overlap one gets all of its group.
    """
    # By digests: a path may have values of partitions in it.
    return sorted("file " + hashlib.sha256(path.encode()).hexdigest()[:32] for path in set(paths))[:_SKETCH]
