"""A lake of one table in SQLite's memory, right or with a flaw on purpose, to see whether a history's judge notices."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import frazil
from concurrency.histories.model import Layout, Row
from concurrency.histories.programs import COLUMNS
from frazil.model import Conflict

NAMES = ("k", "p", "v", "note", *COLUMNS)

Counts = tuple[int, int, int]
"""Rows inserted, updated, deleted."""


class Sqlite:
    """Rows in SQLite's memory, changed by SQL text."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._db = sqlite3.connect(":memory:")
        self._db.execute(f"create table t ({', '.join(NAMES)})")
        self.insert(rows)

    def insert(self, rows: Sequence[Row]) -> int:
        marks = ", ".join("?" * len(NAMES))
        self._db.executemany(f"insert into t values ({marks})", [[each.get(name) for name in NAMES] for each in rows])
        return len(rows)

    def delete(self, where: str) -> int:
        return self._db.execute(f"delete from t where {where}").rowcount

    def update(self, assignments: Mapping[str, str], where: str) -> int:
        texts = ", ".join(f"{name} = {text}" for name, text in assignments.items())
        return self._db.execute(f"update t set {texts} where {where}").rowcount

    def rows(self, where: str = "true") -> list[Row]:
        return [dict(zip(NAMES, each, strict=True)) for each in self._db.execute(f"select * from t where {where}")]

    def close(self) -> None:
        self._db.close()


def replaced(rows: Sequence[Row], layout: Layout) -> str:
    """The partitions of these rows, as a condition."""
    if layout.partition_by == "p":
        return "p in ({})".format(", ".join(f"'{row['p']}'" for row in rows))
    return "k / 4 in ({})".format(", ".join(str(row["k"] // 4) for row in rows))


def upserted(rows: Sequence[Row], layout: Layout) -> str:
    """The keys of these rows, as a condition."""
    quoted = [" and ".join(f"{name} = {row[name]!r}" for name in layout.keys) for row in rows]
    return " or ".join(f"({each})" for each in quoted)


class ToyLake:
    """``flaw`` is one of

    ``none``              a transaction whose base is not the head is refused
    ``overwrites``        the last commit wins, whole
    ``reads unchecked``   writes are done again on the head, whatever was read
    ``forgets``           the ninth commit is acknowledged and dropped
    ``half``              a refused transaction leaves its rows
    ``skips duplicates``  equal rows are stored once
    """

    def __init__(self, flaw: str, layout: Layout) -> None:
        self.flaw = flaw
        self.layout = layout
        self.versions: list[tuple[str, list[Row]]] = []
        self.columns = dict.fromkeys(NAMES, "long")
        self.properties: dict[str, str] = {}

    @property
    def head(self) -> list[Row]:
        return self.versions[-1][1] if self.versions else []

    def create_namespace(self, _name: str) -> None:
        assert not self.versions

    def create_table(self, _name: str, _schema: str, **options: Any) -> None:
        assert options["keys"] == list(self.layout.keys)

    def table(self, _name: str) -> ToyTable:
        return ToyTable(self)

    def transaction(self, commit_id: str) -> ToyTransaction:
        return ToyTransaction(self, commit_id)


class ToyTransaction:
    """Works on a copy of the head as it was when the transaction began."""

    def __init__(self, lake: ToyLake, commit_id: str) -> None:
        self._lake = lake
        self._base = len(lake.versions)
        self._work = Sqlite(lake.head)
        self._calls: list[Callable[[Sqlite], Counts]] = []
        self._counts: list[Counts] = []
        self._commit_id = commit_id

    def table(self, _name: str) -> ToyTransaction:
        return self

    def rollback(self) -> None:
        self._work.close()

    def scan(self, where: str) -> Any:
        return _scanned(self._work.rows(where))

    def append(self, rows: Sequence[Row]) -> None:
        self._do(lambda sqlite: (sqlite.insert(rows), 0, 0))

    def delete(self, where: str, **_mode: str) -> None:
        self._do(lambda sqlite: (0, 0, sqlite.delete(where)))

    def overwrite(self, rows: Sequence[Row], where: str) -> None:
        self._do(lambda sqlite: (0, 0, sqlite.delete(where)))
        self.append(rows)

    def replace_partitions(self, rows: Sequence[Row]) -> None:
        self.overwrite(rows, replaced(rows, self._lake.layout))

    def update(self, set: Mapping[str, str], where: str, **_mode: str) -> None:  # noqa: A002
        self._do(lambda sqlite: (0, sqlite.update(set, where), 0))

    def upsert(self, rows: Sequence[Row], mode: str) -> None:
        where = upserted(rows, self._lake.layout)
        if mode == "equality":
            self._do(lambda sqlite: (0, 0, 0 * sqlite.delete(where)))
            self.append(rows)
            return
        old = self._work.rows(where)
        met = len({self._lake.layout.key(row) for row in old})
        self._do(lambda sqlite: (-met, met, sqlite.delete(where) - met))
        self.append(rows)

    def compact(self, where: str | None = None) -> None: ...

    def commit(self) -> frazil.Commit:
        lake, rows = self._lake, self._work.rows()
        raced = self._base != len(lake.versions)
        if raced and lake.flaw == "half":
            lake.versions.append((self._commit_id, rows))
        if raced and lake.flaw not in ("overwrites", "reads unchecked"):
            raise frazil.ConflictError("The table has moved on", conflicts=(Conflict("moved", "another commit"),))
        counts = self._counts
        if raced and lake.flaw == "reads unchecked":
            again = Sqlite(lake.head)
            counts = [call(again) for call in self._calls]
            rows = again.rows()
            again.close()
        if lake.flaw == "skips duplicates":
            rows = list({tuple(row.items()): row for row in rows}.values())
        inserted, updated, deleted = (sum(each) for each in zip((0, 0, 0), *counts, strict=True))
        changed = bool(inserted or updated or deleted)
        snapshot_id = len(lake.versions) + changed
        if lake.flaw == "forgets" and snapshot_id == 9:
            snapshot_id = 1009
        elif changed:
            lake.versions.append((self._commit_id, rows))
        self.rollback()
        return frazil.Commit(
            snapshot_id=snapshot_id,
            sequence_number=snapshot_id,
            commit_id=self._commit_id,
            changed=changed,
            rows_inserted=inserted,
            rows_updated=updated,
            rows_deleted=deleted,
        )

    def _do(self, call: Callable[[Sqlite], Counts]) -> None:
        self._calls.append(call)
        self._counts.append(call(self._work))


class ToyTable:
    """Each call is a transaction of its own."""

    def __init__(self, lake: ToyLake) -> None:
        self._lake = lake
        self.properties = lake.properties

    def __getattr__(self, verb: str) -> Callable[..., frazil.Commit]:
        def call(*arguments: Any, commit_id: str, **options: Any) -> frazil.Commit:
            transaction = ToyTransaction(self._lake, commit_id)
            getattr(transaction, verb)(*arguments, **options)
            return transaction.commit()

        return call

    @property
    def schema(self) -> Any:
        fields = [SimpleNamespace(name=name, field_type=type_) for name, type_ in self._lake.columns.items()]
        return SimpleNamespace(column_names=list(self._lake.columns), fields=fields)

    def history(self) -> list[Any]:
        return [
            SimpleNamespace(snapshot_id=number, summary={"frazil.commit-id": commit_id}, is_current_ancestor=True)
            for number, (commit_id, _) in enumerate(self._lake.versions, 1)
        ]

    def scan(self, snapshot: int) -> Any:
        return _scanned(self._lake.versions[snapshot - 1][1])

    def add_column(self, name: str, type_: str, commit_id: str) -> frazil.Commit:
        if name in self._lake.columns:
            raise frazil.InvalidInput(f"The column {name} is there")
        self._lake.columns[name] = type_
        return frazil.Commit(snapshot_id=None, sequence_number=0, commit_id=commit_id)

    def set_properties(self, properties: Mapping[str, str], commit_id: str) -> frazil.Commit:
        self._lake.properties.update(properties)
        return frazil.Commit(snapshot_id=None, sequence_number=0, commit_id=commit_id)


def _scanned(rows: list[Row]) -> Any:
    return SimpleNamespace(to_arrow=lambda: SimpleNamespace(to_pylist=lambda: rows))
