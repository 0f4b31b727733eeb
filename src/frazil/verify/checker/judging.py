"""Names the anomaly where a read or a version shows other values than it should, key by key."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from frazil.verify.checker.cells import Cell
from frazil.verify.checker.effects import effects_of, without
from frazil.verify.checker.findings import Findings, Names
from frazil.verify.checker.landing import Landing, TableHistory
from frazil.verify.checker.model import Key, Kind, Outcome, Value, Version


class Judge:
    """Checks the rows of one table."""

    def __init__(self, landing: Landing, history: TableHistory, findings: Findings) -> None:
        self._landing = landing
        self._history = history
        self._findings = findings
        self._names = Names(landing)

    # Versions

    def version(self, version: Version, index: int, cell: Cell, actual: Sequence[Value]) -> None:
        """A version holds other values than its transactions wrote."""
        at = f"version {version.id} of {self._history.table}"
        before = self._history.slots[index]
        for value in without(actual, cell.values):
            self._extra(value, cell, actual, at, index)
        for value in without(cell.values, actual):
            writer = self._history.writer_of.get((cell.key, value))
            blame = [each for each in before if each is not None]
            self._lost(writer, blame, cell, value, at)

    def _extra(self, value: Value, cell: Cell, actual: Sequence[Value], at: str, index: int) -> None:
        key, names, table = cell.key, self._names, self._history.table
        name = (key, value)
        if name not in self._history.writer_of:
            self._unwritten([], key, value, at)
            return
        writer = self._history.writer_of[name]
        if writer is None:
            return
        who = names.tx(writer)
        if value in cell.values:
            times = Counter(actual)[value]
            words = f"{who} wrote {value!r} to {names.key(key)} once, and {at} holds it {times} times"
            self._findings.add(Kind.DUPLICATE, table, [writer], lambda: words, name)
        elif writer not in self._history.place:
            self._not_landed(writer, key, value, at)
        elif self._history.place[writer][0] > index:
            words = (
                f"{at} holds {value!r} in {names.key(key)}, which {who} wrote only in {names.version(writer, table)}"
            )
            self._findings.add(Kind.MOVED_SNAPSHOT, table, [writer], lambda: words, name)
        else:
            self._back(writer, cell, value, at, [])

    def _not_landed(self, writer: int, key: Key, value: Value, at: str) -> None:
        """The table has rows of a commit that is in no version."""
        transaction = self._landing.transactions[writer]
        if transaction.outcome is Outcome.FAILED:
            words = f"{transaction.id} was reported as failed, and {at} holds its {value!r} in {self._names.key(key)}"
            self._findings.add(Kind.FALSE_FAILURE, self._history.table, [writer], lambda: words, [writer])

    # Reads

    def read(self, reader: int, cell: Cell, observed: tuple[Value, ...], index: int) -> None:
        """A read pinned to a version saw other values than the version holds."""
        who = self._names.tx(reader)
        table = self._history.table
        at = (
            f"version {self._history.versions[index].id} of {table}, as {who} read it,"
            if index >= 0
            else f"{table} before its first version, as {who} read it,"
        )
        missing = without(cell.values, observed)
        explained = False
        for value in without(observed, cell.values):
            explained |= self._extra_read(reader, cell, value, observed, at, bool(missing))
        for value in missing:
            if explained and any(self._is_later(cell, each, value) for each in observed):
                continue
            explained = True
            self._lost(self._history.writer_of.get((cell.key, value)), [reader], cell, value, at)
        if not explained:
            self._moved(reader, cell, observed, at)

    def _extra_read(
        self, reader: int, cell: Cell, value: Value, observed: tuple[Value, ...], at: str, is_instead: bool
    ) -> bool:
        """Name the anomaly of an unexpected value; False: the anomaly of a missing value covers it."""
        key, names, table = cell.key, self._names, self._history.table
        if self.traced(reader, key, value) is None:
            return True
        writer = self._history.writer_of[key, value]
        assert writer is not None
        if value in cell.values:
            words = f"{names.tx(writer)} wrote {value!r} to {names.key(key)} once, and {at} holds it several times"
            self._findings.add(Kind.DUPLICATE, table, [writer, reader], lambda: words, (key, value))
            return True
        if cell.entry(value) is None:
            # A later version wrote it: the read did not see the version that it names.
            self._moved(reader, cell, observed, at)
            return True
        if is_instead and cell.log[-1].values:
            # The old value instead of the new one: reported as the loss of the new one.
            return False
        self._back(writer, cell, value, at, [reader])
        return True

    def _is_later(self, cell: Cell, one: Value, other: Value) -> bool:
        here, there = cell.entry(one), cell.entry(other)
        return here is None or there is None or here > there

    def traced(self, reader: int, key: Key, value: Value) -> int | None:
        """The writer of a value that was read. None: unknown, or the value must not be read, which is reported here."""
        names, table, name = self._names, self._history.table, (key, value)
        if name not in self._history.writer_of:
            self._unwritten([reader], key, value, names.tx(reader))
            return None
        writer = self._history.writer_of[name]
        if writer is None:
            return None
        source = self._landing.transactions[writer]
        if self._landing.landed[writer] and (writer in self._history.place or not self._history.is_given):
            if value in _passing(source.ops, table, key):
                words = (
                    f"{names.tx(reader)} read {value!r} in {names.key(key)} of {table}, "
                    f"which {source.id} wrote and then replaced itself"
                )
                self._findings.add(Kind.G1B, table, [writer, reader], lambda: words, (reader, key, value))
                return None
            return writer
        if self._is_really_absent(writer):
            how = "was reported as failed" if source.outcome is Outcome.FAILED else "is in no version of the table"
            words = (
                f"{names.tx(reader)} read {value!r} in {names.key(key)} of {table}, and its writer {source.id} {how}"
            )
            self._findings.add(Kind.G1A, table, [writer, reader], lambda: words, (reader, key, value))
        return None

    def _is_really_absent(self, writer: int) -> bool:
        source = self._landing.transactions[writer]
        if source.outcome is Outcome.OK:
            # Lost, expired or rolled back, which is reported elsewhere: it may have existed when it was read.
            return False
        if source.outcome is Outcome.FAILED:
            return True
        history = self._history
        return history.is_given and not history.is_truncated and source.commit_id not in history.rolled_back

    # Anomalies of versions and reads

    def _unwritten(self, readers: list[int], key: Key, value: Value, where: str) -> None:
        if self._history.is_closed:
            verb = "read" if readers else "holds"
            place = f"{self._names.key(key)} of {self._history.table}"
            words = f"{where} {verb} {value!r} in {place}, which no transaction wrote"
            self._findings.add(Kind.UNWRITTEN, self._history.table, readers, lambda: words, (key, value))

    def _back(self, writer: int, cell: Cell, value: Value, at: str, readers: list[int]) -> None:
        names, key = self._names, cell.key
        entry = cell.entry(value) or 0
        later = [
            each.writer
            for number, each in enumerate(cell.log)
            if number > entry and (each.start == number or value in each.takes)
        ][:1]
        gone = [f"{names.tx(each)} deleted it in {names.version(each, self._history.table)}" for each in later]
        words = (
            f"{names.tx(writer)} wrote {value!r} to {names.key(key)} in {names.version(writer, self._history.table)}, "
            f"{''.join(gone) or 'it was absent in between'}, and {at} holds it again"
        )
        self._findings.add(
            Kind.RESURRECTED, self._history.table, [writer, *later, *readers], lambda: words, (key, value)
        )

    def _lost(self, writer: int | None, blame: list[int], cell: Cell, value: Value, at: str) -> None:
        if writer is None:
            return
        names, table = self._names, self._history.table
        words = (
            f"{names.tx(writer)} wrote {value!r} to {names.key(cell.key)} and landed in "
            f"{names.version(writer, table)}; no transaction deleted it, and {at} does not hold it"
        )
        numbers = [writer, *(each for each in blame if each != writer)]
        self._findings.add(Kind.LOST_WRITE, table, numbers, lambda: words, (cell.key, value))

    def _moved(self, reader: int, cell: Cell, observed: tuple[Value, ...], at: str) -> None:
        names = self._names
        words = (
            f"{at} holds {names.values(observed)} in {names.key(cell.key)}, "
            f"and by the table's history {names.values(cell.values)}"
        )
        self._findings.add(Kind.MOVED_SNAPSHOT, self._history.table, [reader], lambda: words, (reader, cell.key))


def _passing(ops: Sequence[object], table: str, key: Key) -> Sequence[Value]:
    effect = effects_of(ops, table).keys.get(key)  # type: ignore[arg-type]
    return () if effect is None else effect.passing
