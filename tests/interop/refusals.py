"""Pairs of statements on the same interleaving in Frazil, Iceberg Java and PyIceberg: who refuses what.

One interleaving for all: *mine* reads the table, *theirs* reads it and commits, *mine* commits; every system plays both
parts. A pair without a conflict has a serial order: its outcome must be what *theirs* followed by *mine* gives, which a
model in plain Python says. A pair with a conflict has none, so *mine* has to be refused.
"""

from __future__ import annotations

import itertools
import json
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from frazil.lake import Lake
from interop.iceberg_java import JavaCatalog, JavaError
from interop.statements import (
    COW,
    DDL,
    EU,
    MOR,
    US,
    Impossible,
    Shown,
    State,
    Statement,
    Where,
    add_column,
    append,
    compact,
    delete,
    delete_files,
    ident,
    in_order,
    overwrite,
    replace_partitions,
    row,
    set_property,
    update,
    upsert,
)
from interop.systems import Cannot, System

KEPT = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "refusals.json"
NAMESPACE = "pairs"
CONFLICTS = "Real conflicts"
# Others' waits between attempts, which nothing here depends on.
IMPATIENT = {"commit.retry.min-wait-ms": "1", "commit.retry.max-wait-ms": "5"}

FIRST = tuple(row(n) for n in (1, 2, 3, 4))
SECOND = tuple(row(n, "us") for n in (5, 6, 7, 8))
MORE = (row(11), row(12, "us"))


@dataclass(frozen=True, slots=True)
class Pair:
    what: str
    theirs: Statement
    mine: Statement
    partitioned: bool = False
    branches: tuple[str, ...] = ()
    """Made before, at the head of main."""
    extra_files: bool = False
    """Each partition has a second file, so that there is something to put together."""

    @property
    def name(self) -> str:
        return f"{self.theirs} × {self.mine}"


# Its bounds cover every score up to 1,000, so that only reading it shows that a score is not in it.
_WIDE = append(row(100, score=0), row(101, score=1000))
_SCORE_20 = Where("score", "=", 20)


def _row_pairs() -> list[Pair]:
    """Rows of one file that two statements change, in every combination of modes."""
    found = []
    for theirs, mine in ((COW, COW), (COW, MOR), (MOR, COW), (MOR, MOR)):
        changes = [
            (delete(ident(1), theirs), delete(ident(2), mine), "delete × delete of other rows in one file"),
            (update("x", ident(1), theirs), update("y", ident(2), mine), "update × update of other rows in one file"),
            (delete(ident(1), theirs), update("y", ident(2), mine), "delete × update of other rows in one file"),
            (update("x", ident(1), theirs), delete(ident(2), mine), "update × delete of other rows in one file"),
        ]
        found += [Pair(what, first, second) for first, second, what in changes]
        again = (delete(ident(1), theirs), delete(ident(1), mine))
        found.append(Pair("delete × delete of the same row", *again))
    # Between them they empty a file.
    for mode in (COW, MOR):
        halves = (delete(Where("id", "<", 3), mode), delete(Where("id", "in", (3, 4)), mode))
        found.append(Pair("delete × delete of the other rows of a file", *halves))
    return found


def _compaction_pairs() -> list[Pair]:
    found = [
        Pair("append × compaction", append(row(9)), compact()),
        Pair("compaction × append", compact(), append(row(9))),
        Pair("upsert × compaction", upsert(row(2, name="new")), compact()),
        Pair("compaction × upsert", compact(), upsert(row(2, name="new"))),
    ]
    for mode in (COW, MOR):
        for change in (delete(ident(2), mode), update("x", ident(2), mode)):
            found += [
                Pair(f"{change.verb} × compaction", change, compact()),
                Pair(f"compaction × {change.verb}", compact(), change),
            ]
    for mine in (delete_files(EU), overwrite(EU, row(20)), replace_partitions(row(20))):
        found += [
            Pair(f"{mine.verb} × compaction", mine, compact(), partitioned=True, extra_files=True),
            Pair(f"compaction × {mine.verb}", compact(), mine, partitioned=True, extra_files=True),
        ]
    return found


def _filter_pairs() -> list[Pair]:
    """Appends of rows that do not match, on a table without partitions."""
    apart = append(row(100, score=9000))
    found = []
    for mode in (COW, MOR):
        for mine in (delete(_SCORE_20, mode), update("x", _SCORE_20, mode)):
            found += [
                Pair(f"append of other rows × {mine.verb}", apart, mine),
                Pair(f"append of other rows × {mine.verb}, bounds overlap", _WIDE, mine),
                Pair(f"{mine.verb} × append", mine, apart),
            ]
    rows = (row(50, score=20),)
    return [
        Pair("append × append", append(row(9)), append(row(10))),
        *found,
        Pair("append of other rows × overwrite", apart, overwrite(_SCORE_20, *rows)),
        Pair("append of other rows × overwrite, bounds overlap", _WIDE, overwrite(_SCORE_20, *rows)),
        Pair("delete of other rows × overwrite in one file", delete(ident(3), COW), overwrite(_SCORE_20, *rows)),
        Pair("delete of other rows × overwrite in one file", delete(ident(3), MOR), overwrite(_SCORE_20, *rows)),
        Pair("overwrite × delete of other rows in one file", overwrite(_SCORE_20, *rows), delete(ident(3), MOR)),
        Pair("overwrite × update of other rows in one file", overwrite(_SCORE_20, *rows), update("x", ident(3), COW)),
    ]


def _partition_pairs() -> list[Pair]:
    eu, us = row(20, "eu"), row(21, "us")
    pairs = [
        Pair("append × append", append(eu), append(us)),
        Pair("append B × delete A", append(us), delete_files(EU)),
        Pair("delete A × append B", delete_files(EU), append(us)),
        Pair("delete A × delete B", delete_files(EU), delete_files(US)),
        Pair("append B × overwrite A", append(us), overwrite(EU, eu)),
        Pair("overwrite A × append B", overwrite(EU, eu), append(us)),
        Pair("overwrite A × overwrite B", overwrite(EU, eu), overwrite(US, us)),
        Pair("delete in A × overwrite A", delete(ident(2), MOR), overwrite(EU, eu)),
        Pair("delete in A × overwrite A", delete(ident(2), COW), overwrite(EU, eu)),
        Pair("delete in B × overwrite A", delete(ident(6), MOR), overwrite(EU, eu)),
        Pair("update in B × overwrite A", update("x", ident(6), MOR), overwrite(EU, eu)),
        Pair("update in B × update in A", update("x", ident(6), MOR), update("y", ident(2), MOR)),
        Pair("update in B × update in A", update("x", ident(6), COW), update("y", ident(2), COW)),
        Pair("append B × replace A", append(us), replace_partitions(eu)),
        Pair("replace A × append B", replace_partitions(eu), append(us)),
        Pair("replace A × replace B", replace_partitions(eu), replace_partitions(us)),
    ]
    return [replace(pair, partitioned=True) for pair in pairs]


def _upsert_pairs() -> list[Pair]:
    new = row(2, name="new")
    new_by_position = upsert(new, mode="position")
    found = [
        Pair("upsert × upsert of the same key", upsert(row(2, name="first")), upsert(row(2, name="second"))),
        Pair("upsert × upsert of the same new key", upsert(row(30, name="first")), upsert(row(30, name="second"))),
        Pair("upsert × upsert of other keys", upsert(row(1, name="first")), upsert(new)),
        Pair("append of other rows × upsert", append(row(31)), upsert(new)),
        Pair("upsert × append of other rows", upsert(new), append(row(31))),
    ]
    found += [
        Pair(
            "upsert × upsert of other keys, by position", upsert(row(1, name="first"), mode="position"), new_by_position
        ),
        Pair("append of other rows × upsert by position", append(row(31)), new_by_position),
        Pair("upsert by position × compaction", new_by_position, compact()),
        Pair("compaction × upsert by position", compact(), new_by_position),
    ]
    for mode in (COW, MOR):
        for change in (delete(ident(1), mode), update("x", ident(1), mode)):
            found += [
                Pair(f"{change.verb} × upsert of another key", change, upsert(new)),
                Pair(f"upsert of another key × {change.verb}", upsert(new), change),
            ]
    return found


_RENAME = Statement("rename column", column=("name", "title"))
_WIDEN = Statement("widen column", column=("score", "long"))
_DROP = Statement("drop column", column=("score", ""))
_PARTITION = Statement("set partitioning", partitioning=("region",))


def _metadata_pairs() -> list[Pair]:
    a, b = set_property("job.a", "1"), set_property("job.b", "2")
    tag = Statement("create tag", tag="audit")
    return [
        Pair("add column × append", add_column("extra"), append(row(9))),
        Pair("append × add column", append(row(9)), add_column("extra")),
        Pair("add column × delete", add_column("extra"), delete(ident(1), MOR)),
        Pair("add column × update", add_column("extra"), update("x", ident(1), COW)),
        Pair("delete × add column", delete(ident(1), COW), add_column("extra")),
        Pair("compaction × add column", compact(), add_column("extra")),
        Pair("rename column × append", _RENAME, append(row(9))),
        Pair("rename column × update of it", _RENAME, update("x", ident(1), MOR)),
        Pair("update × rename column", update("x", ident(1), COW), _RENAME),
        Pair("widen column × append", _WIDEN, append(row(9))),
        Pair("widen column × delete", _WIDEN, delete(ident(1), COW)),
        Pair("widen column × delete by it", _WIDEN, delete(_SCORE_20, COW)),
        Pair("append × widen column", append(row(9)), _WIDEN),
        Pair("drop column × delete", _DROP, delete(ident(1), MOR)),
        Pair("rename × widen of other columns", _RENAME, _WIDEN),
        Pair("partitioning × append", _PARTITION, append(row(9))),
        Pair("partitioning × delete", _PARTITION, delete(ident(1), MOR)),
        Pair("partitioning × update", _PARTITION, update("x", ident(1), COW)),
        Pair("append × partitioning", append(row(9)), _PARTITION),
        Pair("add column × partitioning", add_column("extra"), _PARTITION),
        Pair("two columns", add_column("extra"), add_column("other")),
        Pair("one column, one type", add_column("extra"), add_column("extra")),
        Pair("properties × properties", a, b),
        Pair("properties × append", a, append(row(9))),
        Pair("append × properties", append(row(9)), a),
        Pair("properties × add column", a, add_column("extra")),
        Pair("tag × append", tag, append(row(9))),
        Pair("append × tag", append(row(9)), tag),
        Pair("tag × tag", tag, replace(tag, tag="other")),
        Pair("appends to two branches", append(row(9), branch="a"), append(row(10), branch="b"), branches=("a", "b")),
        Pair("append to a branch × append", append(row(9), branch="a"), append(row(10)), branches=("a",)),
        Pair("append to a branch × delete", append(row(1), branch="a"), delete(ident(1), MOR), branches=("a",)),
    ]


COMMUTING: dict[str, list[Pair]] = {
    "Rows of one file": _row_pairs(),
    "Appends beside a filter": _filter_pairs(),
    "Partitions": _partition_pairs(),
    "Compaction": _compaction_pairs(),
    "Upserts": _upsert_pairs(),
    "Schema, properties, refs": _metadata_pairs(),
}
"""By subject. Each has a serial order."""

_CLASH = append(row(60, "eu", score=20))
CONFLICTING: list[Pair] = [
    *(
        pair
        for mode in (COW, MOR)
        for pair in (
            Pair("update × update of one row", update("x", ident(1), mode), update("y", ident(1), mode)),
            Pair("delete × update of one row", delete(ident(1), mode), update("y", ident(1), mode)),
            Pair("update × delete of one row", update("x", ident(1), mode), delete(ident(1), mode)),
            Pair("append of matching rows × update", _CLASH, update("y", _SCORE_20, mode)),
            Pair("append of matching rows × delete", _CLASH, delete(_SCORE_20, mode)),
        )
    ),
    Pair("append A × delete A", append(row(20)), delete_files(EU), partitioned=True),
    Pair("append A × overwrite A", append(row(20)), overwrite(EU, row(21)), partitioned=True),
    Pair("append A × replace A", append(row(20)), replace_partitions(row(21)), partitioned=True),
    Pair("overwrite A × overwrite A", overwrite(EU, row(20)), overwrite(EU, row(21)), partitioned=True),
    Pair("compaction × compaction", compact(), compact()),
    Pair("one column, two types", add_column("extra"), add_column("extra", "string")),
    Pair("drop column × append that writes it", _DROP, append(row(9))),
]


Verdict = Literal["landed", "refused", "wrong", "cannot"]


@dataclass(frozen=True, slots=True)
class Outcome:
    verdict: Verdict
    """``wrong``: it landed, and the table is not what *theirs* and then *mine* give. ``cannot``: the system has not got
    one of the statements, or refuses *mine* when nobody else is there."""
    detail: str = ""


@dataclass(frozen=True)
class Runner:
    """Plays pairs, each on a table of its own that starts with the same files."""

    lake: Lake
    java: JavaCatalog
    _names: Iterator[str] = field(default_factory=lambda: (f"{NAMESPACE}.t{n}" for n in itertools.count()))

    def play(self, pair: Pair, *, theirs: System, mine: System) -> Outcome:
        outcome = self._play(pair, theirs, mine)
        if (
            outcome.verdict == "refused"
            and (lacking := self._play(pair, theirs, mine, alone=True)).verdict == "refused"
        ):
            return Outcome("cannot", lacking.detail)
        return outcome

    def _play(self, pair: Pair, other: System, system: System, *, alone: bool = False) -> Outcome:
        table, start = self._table(pair)
        with warnings.catch_warnings():
            # PyIceberg warns of a delete that meets no row.
            warnings.simplefilter("ignore")
            try:
                mine = system.prepare(table, pair.mine)
                theirs = other.prepare(table, pair.theirs)
            except Cannot as lacking:
                return Outcome("cannot", str(lacking))
            if not alone and (reason := _refusal(other, theirs)) is not None:
                return Outcome("cannot", reason)
            if (reason := _refusal(system, mine)) is not None:
                return Outcome("refused", reason)
        return Outcome("landed") if alone else self._landed(table, start, pair)

    def _table(self, pair: Pair) -> tuple[str, State]:
        name = next(self._names)
        partitioning = ["region"] if pair.partitioned else []
        table = self.lake.create_table(name, DDL, keys=["id"], partition_by=partitioning, properties=IMPATIENT)
        # Two files, either way.
        table.append(list(FIRST))
        table.append(list(SECOND))
        if pair.extra_files:
            table.append(list(MORE))
        for branch in pair.branches:
            table.create_branch(branch)
        start = (*FIRST, *SECOND, *(MORE if pair.extra_files else ()))
        return name, State(dict.fromkeys(("main", *pair.branches), start))

    def _landed(self, table: str, start: State, pair: Pair) -> Outcome:
        seen = self._seen(table, start)
        try:
            wanted = start.after(pair.theirs).after(pair.mine)
        except Impossible as reason:
            return Outcome("wrong", str(reason))
        return Outcome("landed") if seen == wanted.shown() else Outcome("wrong", str(seen))

    def _seen(self, table: str, start: State) -> Shown:
        """The table as Iceberg Java reads it. Frazil must read the same rows, whoever wrote them."""
        java = self.java.table(table)
        metadata = java.metadata()
        refs = metadata["refs"]
        # A snapshot that is named is read under its own schema, and main under the table's.
        snapshots = {branch: None if branch == "main" else refs[branch]["snapshot_id"] for branch in start.branches}
        branches = {branch: in_order(java.rows(snapshot=snapshot)) for branch, snapshot in snapshots.items()}
        for branch, rows in branches.items():
            ours = self.lake.table(table).scan(ref=branch).to_arrow().to_pylist()
            assert in_order(ours) == rows, f"Frazil and Iceberg Java read {table} differently"
        return Shown(
            branches=branches,
            columns={each["name"]: each["type"] for each in metadata["schema"]["fields"]},
            properties={k: v for k, v in metadata["properties"].items() if k.startswith("job.")},
            tags=tuple(sorted(name for name, ref in refs.items() if ref["type"] == "tag")),
        )


def _refusal(system: System, commit: Callable[[], object]) -> str | None:
    """Why the system refused to commit; None: it did not."""
    try:
        commit()
    except Exception as error:
        if not system.is_refusal(error):
            raise
        return f"{error.kind if isinstance(error, JavaError) else type(error).__name__}: {error}"
    return None


# The results, as they are kept


def play_all(runner: Runner, systems: Sequence[System], say: Callable[[str], object]) -> dict[str, Any]:
    """Every pair in every system: subject → pairs with their verdicts."""
    found = {}
    for subject, pairs in {**COMMUTING, CONFLICTS: CONFLICTING}.items():
        found[subject] = [_played(runner, pair, systems) for pair in pairs]
        say(f"{subject}: {len(pairs)} pairs")
    return found


def _played(runner: Runner, pair: Pair, systems: Sequence[System]) -> dict[str, Any]:
    outcomes = {system.name: runner.play(pair, theirs=system, mine=system).verdict for system in systems}
    return {"what": pair.what, "theirs": str(pair.theirs), "mine": str(pair.mine), "outcomes": outcomes}


def kept() -> dict[str, Any]:
    """What the last run of ``benchmarks/refusals.py`` found."""
    return dict(json.loads(KEPT.read_text())["pairs"])


def counts(pairs: Iterable[Mapping[str, Any]], system: str) -> Counter[Verdict]:
    return Counter(pair["outcomes"][system] for pair in pairs)


def markdown(results: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """The tables of ``docs/refusals.md``."""
    systems = list(results[CONFLICTS][0]["outcomes"])
    commuting = {subject: pairs for subject, pairs in results.items() if subject != CONFLICTS}
    lines = [
        "### Pairs without a conflict: refused, of those that the system can run",
        "",
        f"| Subject | Pairs | {' | '.join(systems)} |",
        f"|---|---|{'---|' * len(systems)}",
    ]
    everything = [pair for pairs in commuting.values() for pair in pairs]
    for subject, pairs in {**commuting, "**All**": everything}.items():
        cells = [_share(counts(pairs, system)) for system in systems]
        lines.append(f"| {subject} | {len(pairs)} | {' | '.join(cells)} |")
    for subject, pairs in results.items():
        lines += ["", f"### {subject}", "", f"| Theirs | Mine | {' | '.join(systems)} |"]
        lines.append(f"|---|---|{'---|' * len(systems)}")
        for pair in pairs:
            cells = [_WORDS.get(pair["outcomes"][system], pair["outcomes"][system]) for system in systems]
            lines.append(f"| {pair['theirs']} | {pair['mine']} | {' | '.join(cells)} |")
    return "\n".join(lines)


_WORDS = {"refused": "**refused**", "wrong": "**wrong rows**", "cannot": "–"}


def _share(found: Counter[Verdict]) -> str:
    able = found.total() - found["cannot"]
    wrong = f", {found['wrong']} wrong" if found["wrong"] else ""
    return f"{found['refused']} of {able} ({found['refused'] / able:.0%}){wrong}" if able else "–"
