"""Statements as values, in the words of Frazil, PyIceberg and Iceberg Java, and a model that says what they mean."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

DDL = "id bigint not null, region string, name string, score int"
COLUMNS = {"id": "long", "region": "string", "name": "string", "score": "int"}

Row = dict[str, Any]
Mode = Literal["copy-on-write", "merge-on-read", "position"]
COW: Mode = "copy-on-write"
MOR: Mode = "merge-on-read"


def row(number: int, region: str = "eu", name: str | None = None, score: int | None = None) -> Row:
    points = 10 * number if score is None else score
    return {"id": number, "region": region, "name": name or f"n{number}", "score": points}


@dataclass(frozen=True, slots=True)
class Where:
    """A comparison of one column, in the words of all three systems."""

    column: str
    sign: Literal["=", ">", "<", "in"]
    value: Any

    def __str__(self) -> str:
        values = self.value if self.sign == "in" else (self.value,)
        words = ", ".join(f"'{v}'" if isinstance(v, str) else str(v) for v in values)
        return f"{self.column} in ({words})" if self.sign == "in" else f"{self.column} {self.sign} {words}"

    def json(self) -> dict[str, Any]:
        if self.sign == "in":
            return {"type": "in", "term": self.column, "values": list(self.value)}
        names = {"=": "eq", ">": "gt", "<": "lt"}
        return {"type": names[self.sign], "term": self.column, "value": self.value}

    def matches(self, each: Row) -> bool:
        value = each[self.column]
        if self.sign == "in":
            return value in self.value
        compare: dict[str, Callable[[Any, Any], bool]] = {"=": operator.eq, ">": operator.gt, "<": operator.lt}
        return bool(compare[self.sign](value, self.value))


@dataclass(frozen=True, slots=True)
class Statement:
    verb: Literal[
        "append", "delete", "delete files", "update", "overwrite", "replace partitions", "upsert", "compact",
        "add column", "drop column", "rename column", "widen column",
        "set partitioning", "set properties", "create tag",
    ]  # fmt: skip
    rows: tuple[Row, ...] = ()
    where: Where | None = None
    mode: Mode | None = None
    set: Mapping[str, Any] = field(default_factory=dict)
    branch: str = "main"
    column: tuple[str, str] = ("", "")
    """Name and type, or old and new name."""
    partitioning: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    tag: str = ""

    def __str__(self) -> str:
        about = {
            "append": f"id {', '.join(str(r['id']) for r in self.rows)}",
            "overwrite": f"where {self.where}",
            "replace partitions": ", ".join(sorted({str(r["region"]) for r in self.rows})),
            "upsert": f"key {', '.join(str(r['id']) for r in self.rows)}",
            "add column": " ".join(self.column),
            "drop column": self.column[0],
            "rename column": " to ".join(self.column),
            "widen column": " to ".join(self.column),
            "set partitioning": ", ".join(self.partitioning),
            "set properties": ", ".join(self.properties),
            "create tag": self.tag,
        }.get(self.verb, f"where {self.where}" if self.where else "")
        words = (self.verb, self.mode or "", about, f"on {self.branch}" if self.branch != "main" else "")
        return " ".join(w for w in words if w)


def append(*rows: Row, branch: str = "main") -> Statement:
    return Statement("append", rows=rows, branch=branch)


def delete(where: Where, mode: Mode) -> Statement:
    return Statement("delete", where=where, mode=mode)


def delete_files(where: Where) -> Statement:
    """A delete that takes whole files, so that none is written."""
    return Statement("delete files", where=where)


def update(name: str, where: Where, mode: Mode) -> Statement:
    return Statement("update", where=where, mode=mode, set={"name": name})


def overwrite(where: Where, *rows: Row) -> Statement:
    return Statement("overwrite", rows=rows, where=where)


def replace_partitions(*rows: Row) -> Statement:
    return Statement("replace partitions", rows=rows)


def upsert(*rows: Row, mode: Mode | None = None) -> Statement:
    return Statement("upsert", rows=rows, mode=mode)


def compact() -> Statement:
    return Statement("compact")


def add_column(name: str, kind: str = "int") -> Statement:
    return Statement("add column", column=(name, kind))


def set_property(key: str, value: str) -> Statement:
    return Statement("set properties", properties={key: value})


def ident(number: int) -> Where:
    return Where("id", "=", number)


EU, US = Where("region", "=", "eu"), Where("region", "=", "us")


# The model


class Impossible(Exception):
    """The statement makes no sense on this table."""


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    kind: str


@dataclass(frozen=True, slots=True)
class State:
    """A table. Columns have the names that they had when the statements were made, which is what these mean."""

    branches: Mapping[str, tuple[Row, ...]]
    columns: Mapping[str, Column] = field(default_factory=lambda: {c: Column(c, k) for c, k in COLUMNS.items()})
    """First name → the name and type of today."""
    properties: Mapping[str, str] = field(default_factory=dict)
    tags: tuple[str, ...] = ()

    def after(self, statement: Statement) -> State:
        """Raises Impossible."""
        match statement.verb:
            case "set properties":
                return replace(self, properties={**self.properties, **statement.properties})
            case "create tag":
                return replace(self, tags=tuple(sorted((*self.tags, statement.tag))))
            case "set partitioning" | "compact":
                return self
            case "add column" | "drop column" | "rename column" | "widen column":
                return replace(self, columns=self._columns_after(statement))
            case _:
                if any(each.keys() - self.columns for each in statement.rows):
                    raise Impossible("a row has a column that the table has not")
                rows = tuple(_rows(self.branches[statement.branch], statement))
                return replace(self, branches={**self.branches, statement.branch: rows})

    def _columns_after(self, statement: Statement) -> dict[str, Column]:
        (name, word), old = statement.column, self.columns.get(statement.column[0])
        match statement.verb:
            case "add column":
                if old is not None and old.kind != word:
                    raise Impossible(f"{name} is of another type")
                return {**self.columns, name: Column(name, word)}
            case "drop column":
                return {first: column for first, column in self.columns.items() if first != name}
            case "rename column":
                return {**self.columns, name: replace(self.columns[name], name=word)}
            case _:
                return {**self.columns, name: replace(self.columns[name], kind=word)}

    def shown(self) -> Shown:
        return Shown(
            branches={branch: self._shown(rows) for branch, rows in self.branches.items()},
            columns={column.name: column.kind for column in self.columns.values()},
            properties=self.properties,
            tags=self.tags,
        )

    def _shown(self, rows: Iterable[Row]) -> tuple[Row, ...]:
        return in_order({column.name: each.get(first) for first, column in self.columns.items()} for each in rows)


@dataclass(frozen=True, slots=True)
class Shown:
    """What a reader sees of a table."""

    branches: Mapping[str, tuple[Row, ...]]
    columns: Mapping[str, str]
    """Name → type."""
    properties: Mapping[str, str]
    tags: tuple[str, ...]


def _rows(before: tuple[Row, ...], statement: Statement) -> Iterable[Row]:
    where = statement.where
    match statement.verb:
        case "append":
            return (*before, *statement.rows)
        case "delete" | "delete files":
            return [r for r in before if not _matches(where, r)]
        case "update":
            return [{**r, **statement.set} if _matches(where, r) else r for r in before]
        case "overwrite":
            return [*(r for r in before if not _matches(where, r)), *statement.rows]
        case "replace partitions":
            regions = {r["region"] for r in statement.rows}
            return [*(r for r in before if r["region"] not in regions), *statement.rows]
        case "upsert":
            keys = {r["id"] for r in statement.rows}
            return [*(r for r in before if r["id"] not in keys), *statement.rows]
        case _:
            return before


def _matches(where: Where | None, each: Row) -> bool:
    return where is not None and where.matches(each)


def in_order(rows: Iterable[Row]) -> tuple[Row, ...]:
    return tuple(sorted(rows, key=lambda each: [(name, str(value)) for name, value in sorted(each.items())]))
