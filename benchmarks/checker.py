"""How long a history takes to check, and how much memory: ``python benchmarks/checker.py --transactions 100000``.

The history is that of a serializable store: workers read some keys (now and then all) and write some, a transaction
whose reads are no longer true fails, and one in a hundred never gets an answer.
"""

from __future__ import annotations

import argparse
import random
import resource
import time
from collections.abc import Iterator

from frazil.verify.checker import Key, Outcome, Read, Transaction, Value, Version, Write, check


def history(
    count: int, workers: int, keys: int, tables: int, seed: int, *, is_broken: bool = False
) -> tuple[list[Transaction], list[Version]]:
    """A history of ``count`` transactions. ``is_broken``: nobody looks whether reads are still true at the commit."""
    chance = random.Random(seed)
    store = _Store(tables)
    transactions: list[Transaction] = []
    open_: dict[int, tuple[float, tuple[Read | Write, ...]]] = {}
    clock = 0.0
    while len(transactions) < count:
        clock += 1.0
        worker = chance.randrange(workers)
        if worker not in open_:
            open_[worker] = (clock, tuple(_begin(store, chance, keys, tables, len(transactions) + worker * 10**9)))
            continue
        began, ops = open_.pop(worker)
        name = f"T{len(transactions)}"
        writes = [op for op in ops if isinstance(op, Write)]
        is_true = is_broken or store.is_true(ops)
        if writes and is_true:
            store.commit(name, writes)
        is_silent = bool(writes) and chance.random() < 0.01
        outcome = Outcome.UNKNOWN if is_silent else Outcome.OK if is_true or not writes else Outcome.FAILED
        ended = None if is_silent else clock
        commit_id = name if writes else None
        # A worker that got no answer goes on as another one.
        process = f"w{worker}-{len(transactions)}" if is_silent else f"w{worker}"
        transactions.append(Transaction(name, process, ops, outcome, commit_id, began, ended))
    return transactions, store.versions


class _Store:
    def __init__(self, tables: int) -> None:
        self.rows: list[dict[Key, Value]] = [{} for _ in range(tables)]
        self.changed: list[dict[Key, int]] = [{} for _ in range(tables)]
        self.count = [0] * tables
        self.versions: list[Version] = []

    def is_true(self, ops: tuple[Read | Write, ...]) -> bool:
        for op in ops:
            if isinstance(op, Read):
                table = int(op.table)
                pin = int(op.version or 0)
                if op.whole and self.count[table] != pin:
                    return False
                if any(self.changed[table].get(key, 0) > pin for key in op.keys):
                    return False
        return True

    def commit(self, name: str, writes: list[Write]) -> None:
        for table in sorted({int(each.table) for each in writes}):
            self.count[table] += 1
            number = self.count[table]
            self.versions.append(Version(str(table), number, (name,), number - 1 or None))
            for write in writes:
                if int(write.table) == table:
                    self.rows[table][write.key] = write.value
                    self.changed[table][write.key] = number


def _begin(store: _Store, chance: random.Random, keys: int, tables: int, unique: int) -> Iterator[Read | Write]:
    table = chance.randrange(tables)
    rows, pin = store.rows[table], store.count[table]
    if chance.random() < 0.01:
        seen = {key: (value,) for key, value in rows.items()}
        yield Read(str(table), seen, (), True, pin or None, not pin)
    else:
        chosen = tuple(chance.sample(range(keys), 2))
        found: dict[Key, tuple[Value, ...]] = {key: (rows[key],) for key in chosen if key in rows}
        yield Read(str(table), found, chosen, False, pin or None, not pin)
    if chance.random() < 0.6:
        for key in chance.sample(range(keys), 2):
            yield Write(str(table), "put", key, unique)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transactions", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=30)
    parser.add_argument("--keys", type=int, default=1000)
    parser.add_argument("--tables", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--broken", action="store_true", help="switch off the store's check of reads")
    given = parser.parse_args()
    made = time.monotonic()
    transactions, versions = history(
        given.transactions, given.workers, given.keys, given.tables, given.seed, is_broken=given.broken
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    begun = time.monotonic()
    report = check(transactions, versions)
    took = time.monotonic() - begun
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    figures = report.figures
    print(f"{figures.transactions} transactions, {figures.versions} versions, {figures.edges} edges, seed {given.seed}")
    print(f"made in {begun - made:.1f} s, checked in {took:.1f} s; {before:.0f} MB before, {peak:.0f} MB at the peak")
    print("clean" if report.is_clean else f"found: {', '.join(f'{k.value} × {n}' for k, n in report.counts.items())}")
    print("\n".join(report.notes))


if __name__ == "__main__":
    main()
