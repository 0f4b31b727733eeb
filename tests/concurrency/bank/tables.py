"""The bank's tables, one transfer, and what must hold at every instant."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import frazil
from concurrency.writers import Address

ACCOUNTS, START = 16, 1_000
LEFT, RIGHT, LEDGER = "bank.left", "bank.right", "bank.ledger"
SIDES = (LEFT, RIGHT)
CONSTANT = len(SIDES) * ACCOUNTS * START
RETRY = frazil.Retry(tries=200, total_s=120)


@dataclass(frozen=True)
class Transfer:
    """Between an account of one table and an account of the other."""

    number: int
    source: str
    from_id: int
    to_id: int
    amount: int

    @staticmethod
    def of(number: int) -> Transfer:
        """The same again for the same number, so that a restarted process repeats it."""
        chance = random.Random(number)
        source = chance.choice(SIDES)
        return Transfer(number, source, chance.randrange(ACCOUNTS), chance.randrange(ACCOUNTS), chance.randint(1, 9))

    @property
    def target(self) -> str:
        return RIGHT if self.source == LEFT else LEFT

    @property
    def commit_id(self) -> str:
        return f"transfer-{self.number}"

    def run(self, transaction: frazil.Transaction) -> None:
        transaction.table(self.source).update({"balance": f"balance - {self.amount}"}, f"id = {self.from_id}")
        transaction.table(self.target).update({"balance": f"balance + {self.amount}"}, f"id = {self.to_id}")
        entry = {"number": self.number, "source": self.source, "from_id": self.from_id, "to_id": self.to_id}
        transaction.table(LEDGER).append([{**entry, "amount": self.amount}])


def load_everything() -> None:
    """Run one transfer in memory, so that processes forked later need not load what it needs."""
    with frazil.connect("memory://bank-warm-up") as lake:
        fill(lake)
        lake.run(Transfer.of(0).run)
        lake.table(LEFT).compact()
        rows_at(lake.snapshot())


def open_lake(address: Address) -> frazil.Lake:
    return frazil.connect(address.uri, warehouse=address.warehouse, create=False)


def create(address: Address) -> None:
    with frazil.connect(address.uri, warehouse=address.warehouse) as lake:
        fill(lake)


def fill(lake: frazil.Lake) -> None:
    lake.create_namespace("bank")
    for name in SIDES:
        table = lake.create_table(name, "id bigint not null, balance bigint", keys=["id"])
        table.append([{"id": each, "balance": START} for each in range(ACCOUNTS)])
    ddl = "number bigint not null, source string, from_id bigint, to_id bigint, amount bigint"
    lake.create_table(LEDGER, ddl)


def rows_at(instant: Any) -> dict[str, list[dict[str, Any]]]:
    return {name: instant.table(name).scan().to_arrow().to_pylist() for name in (*SIDES, LEDGER)}


def wrong(rows: Mapping[str, list[dict[str, Any]]]) -> Iterator[str]:
    """What does not hold at an instant. Every account must be explained by the ledger, and by nothing else."""
    balances = {(name, row["id"]): row["balance"] for name in SIDES for row in rows[name]}
    if sum(balances.values()) != CONSTANT or len(balances) != len(SIDES) * ACCOUNTS:
        yield f"{len(balances)} accounts with {sum(balances.values())} in all, not {CONSTANT}"
    expected = dict.fromkeys(balances, START)
    for entry in rows[LEDGER]:
        target = RIGHT if entry["source"] == LEFT else LEFT
        expected[entry["source"], entry["from_id"]] -= entry["amount"]
        expected[target, entry["to_id"]] += entry["amount"]
    for account, balance in balances.items():
        if balance != expected[account]:
            yield f"{account} has {balance}, and the ledger explains {expected[account]}"
    yield from (f"transfer {each} is {times} times in the ledger" for each, times in _repeated(rows[LEDGER]))


def _repeated(entries: Iterable[Mapping[str, Any]]) -> list[tuple[int, int]]:
    return [(number, times) for number, times in Counter(each["number"] for each in entries).items() if times > 1]
