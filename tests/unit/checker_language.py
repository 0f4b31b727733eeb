"""Histories as short texts.

A line is a transaction: its name (also its commit id), its process, when it began and ended, its operations, and what
it was told: ``A p1 0-1: put x 1; read y=2 @3 -> failed``. ``3-`` never got an answer; ``ok`` may be left out.

put x 1 · add x 1 · del x · del * · other      writes; ``u.x`` is the key x of the table u, otherwise it is t
read x=1 y= z=1,2 @3                           asked for x, y and z, saw nothing in y; pinned to version 3
scan x=1 @3                                    asked for all keys; @0 is the table before its first version
peek @3                                        asked for rows that nobody recorded
old x=1 @3                                     asked for the old version 3
at x=1 @3                                      at an instant of all tables, in which t had the version 3

``versions("A B+C ?")``: the versions 1, 2 and 3: one by A, one by B and C together, one by somebody unknown.
"""

from __future__ import annotations

from collections.abc import Mapping

from frazil.verify.checker import Key, Kind, Outcome, Read, Report, Transaction, Value, Version, Write, check

Rows = Mapping[int, Mapping[Key, tuple[Value, ...]]]


def history(text: str) -> list[Transaction]:
    return [_transaction(line.strip()) for line in text.strip().splitlines() if line.strip()]


def versions(text: str, table: str = "t", rows: Rows | None = None, parent: int | None = None) -> list[Version]:
    known = rows or {}
    return [
        Version(
            table,
            number,
            () if each == "?" else tuple(each.split("+")),
            (number - 1 or parent),
            rows=known.get(number),
        )
        for number, each in enumerate(text.split(), 1)
    ]


def kinds(report: Report) -> set[Kind]:
    return {each.kind for each in report.anomalies}


def judge(text: str, order: str, rows: Rows | None = None) -> Report:
    return check(history(text), versions(order, rows=rows))


def _transaction(line: str) -> Transaction:
    head, _, rest = line.partition(":")
    name, process, times = head.split()
    ops, _, told = rest.partition("->")
    began, _, ended = times.partition("-")
    outcome = Outcome(told.strip() or "ok")
    parsed = tuple(op for text in ops.split(";") if text.strip() for op in _ops(text.split()))
    writes = any(isinstance(op, Write) for op in parsed)
    return Transaction(
        id=name,
        process=process,
        ops=parsed,
        outcome=outcome,
        commit_id=name if writes else None,
        began=float(began),
        ended=float(ended) if ended else None,
    )


def _ops(words: list[str]) -> list[Read | Write]:
    verb, *rest = words
    if verb in ("put", "add"):
        table, key = _name(rest[0])
        return [Write(table, "put" if verb == "put" else "add", key, int(rest[1]))]
    if verb == "del":
        table, key = _name(rest[0])
        return [Write(table, "remove", every_key=True) if key == "*" else Write(table, "remove", key)]
    if verb == "other":
        return [Write(rest[0] if rest else "t", "other")]
    return [_read(verb, rest)]


def _read(verb: str, rest: list[str]) -> Read:
    pin = next((int(each[1:]) for each in rest if each.startswith("@")), None)
    seen: dict[Key, tuple[Value, ...]] = {}
    table = "t"
    for each in (part for part in rest if not part.startswith("@")):
        if "=" not in each:
            table = each
            continue
        name, _, values = each.partition("=")
        table, key = _name(name)
        seen[key] = tuple(int(value) for value in values.split(",") if value)
    return Read(
        table,
        seen=None if verb == "peek" else {key: values for key, values in seen.items() if values},
        keys=tuple(seen) if verb in ("read", "old", "at") else (),
        whole=verb == "scan",
        version=pin or None,
        empty=pin == 0,
        historic=verb == "old",
        ageless=verb == "at",
    )


def _name(text: str) -> tuple[str, str]:
    table, dot, key = text.rpartition(".")
    return (table, key) if dot else ("t", text)
