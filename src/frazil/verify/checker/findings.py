"""The anomalies found so far: a few witnesses of each kind and table, and their number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from frazil.verify.checker.landing import Landing
from frazil.verify.checker.model import Anomaly, Key, Kind, Level, Step, Value

_DIRECT: dict[Kind, Level] = {
    # Every level requires that a table holds exactly the effects of its transactions.
    Kind.DUPLICATE: Level.READ_UNCOMMITTED,
    Kind.LOST_WRITE: Level.READ_UNCOMMITTED,
    Kind.RESURRECTED: Level.READ_UNCOMMITTED,
    Kind.UNWRITTEN: Level.READ_UNCOMMITTED,
    Kind.G1A: Level.READ_COMMITTED,
    Kind.G1B: Level.READ_COMMITTED,
    Kind.FALSE_FAILURE: Level.READ_COMMITTED,
    Kind.INTERNAL: Level.SNAPSHOT_ISOLATION,
    Kind.MOVED_SNAPSHOT: Level.SNAPSHOT_ISOLATION,
    Kind.STALE_READ: Level.STRICT_SERIALIZABLE,
    Kind.REAL_TIME: Level.STRICT_SERIALIZABLE,
}


class Findings:
    """Collects anomalies. Only those that are kept are put into words."""

    def __init__(self, landing: Landing, witnesses: int) -> None:
        self._landing = landing
        self._witnesses = witnesses
        self._kept: dict[tuple[Kind, tuple[str, ...]], list[Anomaly]] = {}
        self._seen: set[tuple[object, ...]] = set()
        self.counts: Counter[Kind] = Counter()

    def add(
        self, kind: Kind, table: str, numbers: Sequence[int], words: Callable[[], str], about: Sequence[object] = ()
    ) -> None:
        """Add an anomaly without a cycle. Anomalies ``about`` the same things count once."""
        name = (kind, table, *(about or numbers))
        if name in self._seen:
            return
        self._seen.add(name)
        ids = tuple(self._landing.transactions[each].id for each in numbers)
        self._keep(kind, (table,), lambda: Anomaly(kind, _DIRECT[kind], (table,), ids, words()))

    def add_cycle(self, kind: Kind, level: Level, cycle: Sequence[Step], words: str) -> None:
        tables = tuple(sorted({step.table for step in cycle if step.table is not None}))
        ids = tuple(step.before for step in cycle)
        self._keep(kind, tables, lambda: Anomaly(kind, level, tables, ids, words, tuple(cycle)))

    def _keep(self, kind: Kind, tables: tuple[str, ...], make: Callable[[], Anomaly]) -> None:
        self.counts[kind] += 1
        kept = self._kept.setdefault((kind, tables), [])
        if len(kept) < self._witnesses:
            kept.append(make())

    def anomalies(self) -> Iterable[Anomaly]:
        """The worst first."""
        found = (each for kept in self._kept.values() for each in kept)
        return sorted(found, key=lambda each: (each.rules_out, list(Kind).index(each.kind), each.tables))


class Names:
    """Names of transactions, versions, keys and values for sentences."""

    def __init__(self, landing: Landing) -> None:
        self._landing = landing

    def tx(self, number: int) -> str:
        return self._landing.transactions[number].id

    def version(self, number: int, table: str) -> str:
        """The version in which a transaction landed."""
        history = self._landing.histories[table]
        place = history.place.get(number)
        return "no version" if place is None else f"version {history.versions[place[0]].id}"

    @staticmethod
    def key(key: Key) -> str:
        return f"key {key!r}"

    @staticmethod
    def values(values: Sequence[Value]) -> str:
        if not values:
            return "nothing"
        shown = ", ".join(repr(each) for each in values[:5])
        return shown if len(values) <= 5 else f"{shown} and {len(values) - 5} more"
