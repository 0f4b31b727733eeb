"""Three small tables on each kind of database, and transactions that are held at a phase of their commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import frazil
from frazil.commit.context import Phase
from frazil.transaction import Course, Transaction
from surface.matrix import files_of, named_files

DDL = "id bigint not null, v bigint"
DATABASES = ("memory", "sqlite", "postgres")
NAMES = ("s.a", "s.b", "s.c")


@contextmanager
def three_tables(request: pytest.FixtureRequest, tmp_path: Path, database: str) -> Iterator[frazil.Lake]:
    if database == "postgres":
        uri, warehouse = request.getfixturevalue("postgres_uri"), str(tmp_path / "warehouse")
    else:
        uri, warehouse = "memory://" if database == "memory" else str(tmp_path / "lake"), None
    with frazil.connect(uri, warehouse=warehouse) as lake:
        lake.create_namespace("s")
        for name in NAMES:
            lake.create_table(name, DDL, keys=["id"]).append([row(1, 10), row(2, 20)])
        yield lake


def row(key: int, v: int) -> dict[str, int]:
    return {"id": key, "v": v}


def values(lake: frazil.Lake, name: str) -> dict[int, int]:
    return {each["id"]: each["v"] for each in lake.table(name).scan().to_arrow().to_pylist()}


def total(lake: frazil.Lake, *names: str) -> int:
    instant = lake.snapshot()
    return sum(each["v"] for name in names for each in instant.table(name).scan().to_arrow().to_pylist())


def stray_files(lake: frazil.Lake, name: str) -> set[str]:
    """Files under a table's location that its metadata does not lead to."""
    found, named = ({path.removeprefix("file://") for path in of(lake.table(name))} for of in (files_of, named_files))
    return found - named


def heads(lake: frazil.Lake) -> dict[str, str]:
    return {str(ident): location for ident, location in (lake.catalog.instant() or {}).items()}


def held(lake: frazil.Lake, at: Phase, then: Callable[[], object], **options: Any) -> Transaction:
    """A transaction in whose first attempt ``then`` runs once, at a phase."""
    waiting = [then]

    def on_phase(phase: Phase, _attempt: int) -> None:
        if phase is at and waiting:
            waiting.pop()()

    course = Course(before_pin=lambda _ident: None, on_phase=on_phase, is_named=True)
    given = {"isolation": "serializable", "retry": None, "commit_id": None, **options}
    return Transaction(lake, **given, course=course)


def move(tx: Transaction, amount: int = 1) -> None:
    tx.table("s.a").update(set={"v": f"v - {amount}"}, where="id = 1")
    tx.table("s.b").update(set={"v": f"v + {amount}"}, where="id = 1")
    tx.table("s.c").append([row(100 + amount, 0)])
