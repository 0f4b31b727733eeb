"""A tiny store with versions, in memory: concurrent transactions at a chosen level, or with no checks at all."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Literal

from frazil.verify.checker import Key, Outcome, Read, Transaction, Value, Version, Write

Rows = dict[Key, tuple[Value, ...]]
Checks = Literal["serial", "serializable", "snapshot", "none"]


@dataclass
class _Open:
    name: str
    process: str
    began: float
    pin: int
    ops: list[Read | Write] = field(default_factory=list)


@dataclass
class Store:
    """Runs transactions of some workers, one step at a time, and writes down what they did and were told."""

    chance: random.Random
    checks: Checks
    workers: int = 3
    keys: int = 3
    removes: bool = True
    silence: float = 0.1
    """How often a client gets no answer."""
    pins: bool = True
    """Reads say which version they saw."""
    states: list[Rows] = field(default_factory=lambda: [{}])
    touched: list[set[Key]] = field(default_factory=lambda: [set()])
    versions: list[Version] = field(default_factory=list)
    transactions: list[Transaction] = field(default_factory=list)
    clock: float = 0.0
    value: int = 0

    def run(self, count: int) -> None:
        open_: dict[int, _Open] = {}
        for number in range(count):
            self.clock += 1
            worker = 0 if self.checks == "serial" else self.chance.randrange(self.workers)
            if worker not in open_:
                open_[worker] = self._begin(f"T{number}", f"w{worker}")
                if self.checks != "serial":
                    continue
            self.clock += 1
            self._end(open_.pop(worker))

    def _begin(self, name: str, process: str) -> _Open:
        tx = _Open(name, process, self.clock, len(self.states) - 1)
        for _ in range(self.chance.randrange(3)):
            tx.ops.append(self._read(tx.pin))
        for _ in range(self.chance.randrange(3)):
            tx.ops.append(self._write(tx.pin))
        return tx

    def _read(self, pin: int) -> Read:
        rows = self.states[pin]
        whole = self.chance.random() < 0.25
        keys = () if whole else tuple(self.chance.sample(range(self.keys), self.chance.randint(1, 2)))
        seen = {key: values for key, values in rows.items() if values and (whole or key in keys)}
        known = self.pins or self.chance.random() < 0.2
        return Read("t", seen, keys, whole, (pin or None) if known else None, known and not pin)

    def _write(self, pin: int) -> Write:
        self.value += 1
        key = self.chance.randrange(self.keys)
        there = self.states[pin].get(key, ())
        if self.removes and there and self.chance.random() < 0.3:
            return Write("t", "remove", key, self.chance.choice(there), one_value=True)
        # Odd keys are sets, even ones hold one value.
        if self.removes and self.chance.random() < 0.25:
            return Write("t", "remove", key)
        return Write("t", "add" if key % 2 else "put", key, self.value)

    def _end(self, tx: _Open) -> None:
        writes = [op for op in tx.ops if isinstance(op, Write)]
        lands = not writes or self._may_land(tx, {op.key for op in writes})
        changed = bool(writes) and lands and self._land(tx.name, writes)
        outcome = Outcome.OK if lands else Outcome.FAILED
        process, ended = tx.process, self.clock
        if writes and self.chance.random() < self.silence:
            # Whoever asks next is another process.
            outcome, process, ended = Outcome.UNKNOWN, f"{tx.process}-{tx.name}", None  # type: ignore[assignment]
        name = tx.name if writes else None
        self.transactions.append(
            Transaction(tx.name, process, tuple(tx.ops), outcome, name, tx.began, ended, changed or not lands)
        )

    def _may_land(self, tx: _Open, written: set[Key]) -> bool:
        since: set[Key] = set().union(*self.touched[tx.pin + 1 :])
        if self.checks in ("none", "serial"):
            return True
        if self.checks == "snapshot":
            return not since & written
        reads = [op for op in tx.ops if isinstance(op, Read)]
        return not any(since if read.whole else since.intersection(read.keys) for read in reads)

    def _land(self, name: str, writes: list[Write]) -> bool:
        rows = dict(self.states[-1])
        for op in writes:
            rows[op.key] = _after(op, rows.get(op.key, ()))
        if {key: values for key, values in rows.items() if values} == self.states[-1]:
            # Nothing matched.
            return False
        changed = {op.key: rows[op.key] for op in writes}
        self.states.append({key: values for key, values in rows.items() if values})
        self.touched.append(set(changed))
        self.versions.append(Version("t", len(self.states) - 1, (name,), len(self.states) - 2 or None, rows=changed))
        return True


def _after(op: Write, before: tuple[Value, ...]) -> tuple[Value, ...]:
    if op.one_value:
        return tuple(each for each in before if each != op.value)
    return {"remove": (), "put": (op.value,), "add": (*before, op.value)}[op.kind]


def ran(seed: int, checks: Checks, count: int = 40, **options: object) -> Store:
    store = Store(random.Random(seed), checks, **options)  # type: ignore[arg-type]
    store.run(count)
    return store
