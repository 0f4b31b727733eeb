"""Random merges on Arrow, beside a model that goes through all pairs of rows."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import frazil

Row = dict[str, Any]
Test = Callable[[Row, Row], bool | None]
INTEGER: Any = pa.int32()
SCHEMA = pa.schema([pa.field("id", INTEGER), pa.field("n", INTEGER), pa.field("s", pa.string())])
NOTHING: Row = dict.fromkeys(SCHEMA.names)
NAMES = itertools.count()


def both(test: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool | None]:
    """SQL's comparisons: NULL where one side is."""
    return lambda a, b: None if a is None or b is None else test(a, b)


equal = both(lambda a, b: a == b)
less = both(lambda a, b: a < b)


def every(*parts: bool | None) -> bool | None:
    return False if False in parts else None if None in parts else True


ON: dict[str, Test] = {
    "target.id = source.id": lambda t, s: equal(t["id"], s["id"]),
    "source.n = target.n and target.id = source.id": lambda t, s: every(equal(t["n"], s["n"]), equal(t["id"], s["id"])),
    "target.id = source.id and target.n < source.n": lambda t, s: every(equal(t["id"], s["id"]), less(t["n"], s["n"])),
    "target.id < source.id": lambda t, s: less(t["id"], s["id"]),
    "target.id = source.id or target.n = source.n": lambda t, s: (
        True in (equal(t["id"], s["id"]), equal(t["n"], s["n"])) or None
    ),
}
TARGET: dict[str | None, Test] = {
    None: lambda t, s: True,  # noqa: ARG005
    "target.n > 1": lambda t, s: less(1, t["n"]),  # noqa: ARG005
    "target.s is null": lambda t, s: t["s"] is None,  # noqa: ARG005
}
SOURCE: dict[str | None, Test] = {
    None: lambda t, s: True,  # noqa: ARG005
    "source.n < 2": lambda t, s: less(s["n"], 2),  # noqa: ARG005
    "source.s = 'a'": lambda t, s: equal(s["s"], "a"),  # noqa: ARG005
}
MATCHED: dict[str | None, Test] = {**TARGET, **SOURCE, "target.n = source.n": lambda t, s: equal(t["n"], s["n"])}
When = Literal["matched", "not matched", "not matched by source"]
TESTS: dict[str, dict[str | None, Test]] = {"matched": MATCHED, "not matched": SOURCE, "not matched by source": TARGET}
VALUES: dict[str, dict[str, tuple[str, Callable[[Row, Row], Any]]]] = {
    "matched": {"n": ("source.n", lambda t, s: s["n"]), "s": ("target.s", lambda t, s: t["s"])},  # noqa: ARG005
    "not matched": {"id": ("source.id", lambda t, s: s["id"]), "n": ("9", lambda t, s: 9)},  # noqa: ARG005
    "not matched by source": {"s": ("'alone'", lambda t, s: "alone")},  # noqa: ARG005
}


@dataclass(frozen=True)
class Branch:
    when: When
    deletes: bool
    condition: str | None

    def applies(self, target: Row, source: Row) -> bool:
        return TESTS[self.when][self.condition](target, source) is True

    def row(self, target: Row, source: Row) -> Row:
        return {**target, **{name: make(target, source) for name, (_, make) in VALUES[self.when].items()}}

    def add(self, merge: frazil.MergeBuilder) -> frazil.MergeBuilder:
        values = {name: text for name, (text, _) in VALUES[self.when].items()}
        if self.when == "not matched":
            return merge.when_not_matched_insert(values, self.condition)
        if self.when == "matched":
            return (
                merge.when_matched_delete(self.condition)
                if self.deletes
                else merge.when_matched_update(values, self.condition)
            )
        if self.deletes:
            return merge.when_not_matched_by_source_delete(self.condition)
        return merge.when_not_matched_by_source_update(values, self.condition)


class Repeated(Exception):
    """A row of the table would be changed twice."""


@dataclass
class Outcome:
    rows: list[Row]
    updated: int = 0
    inserted: int = 0
    deleted: int = 0

    def apply(self, branch: Branch | None, target: Row, source: Row) -> None:
        if branch is None:
            self.rows.append(target)
        elif branch.deletes:
            self.deleted += 1
        else:
            self.updated += 1
            self.rows.append(branch.row(target, source))


def model(targets: list[Row], sources: list[Row], on: str, branches: list[Branch]) -> Outcome:
    def first(when: When, target: Row, source: Row) -> Branch | None:
        return next((each for each in branches if each.when == when and each.applies(target, source)), None)

    found, met = Outcome([]), set()
    matched = [each for each in branches if each.when == "matched"]
    repeats = matched == [Branch("matched", deletes=True, condition=None)]
    for target in targets:
        partners = [number for number, source in enumerate(sources) if ON[on](target, source) is True]
        met.update(partners)
        if not partners:
            found.apply(first("not matched by source", target, NOTHING), target, NOTHING)
            continue
        changes = [(branch, sources[each]) for each in partners if (branch := first("matched", target, sources[each]))]
        if len(changes) > 1 and not repeats:
            raise Repeated
        branch, source = changes[0] if changes else (None, NOTHING)
        found.apply(branch, target, source)
    for number, source in enumerate(sources):
        branch = first("not matched", NOTHING, source) if number not in met else None
        if branch is not None:
            found.inserted += 1
            found.rows.append(branch.row(NOTHING, source))
    return found


ids = st.sampled_from([0, 1, 2, 3, None])
numbers = st.sampled_from([1, 2, 3, None])
row = st.fixed_dictionaries({"id": ids, "n": numbers, "s": st.sampled_from(["a", "b", None])})


def clauses(when: When) -> st.SearchStrategy[list[Branch]]:
    """Clauses of one kind: any number with a condition, and one without at the end or none."""
    kinds = st.sampled_from([False] if when == "not matched" else [False, True])
    tests = st.sampled_from([each for each in TESTS[when] if each is not None])
    some = st.lists(st.builds(Branch, st.just(when), kinds, tests), max_size=2)
    last = st.lists(st.builds(Branch, st.just(when), kinds, st.none()), max_size=1)
    return st.builds(lambda first, then: first + then, some, last)


branches = (
    st.tuples(clauses("not matched"), clauses("matched"), clauses("not matched by source"))
    .map(lambda found: list(itertools.chain.from_iterable(found)))
    .filter(bool)
)


@pytest.fixture(scope="module")
def lake() -> Iterator[frazil.Lake]:
    with frazil.connect("memory://") as lake:
        lake.create_namespace("m")
        yield lake


def counted(found: list[Row]) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row[name] for name in SCHEMA.names) for row in found)


@settings(max_examples=250)
@given(
    st.lists(st.lists(row, max_size=4), min_size=1, max_size=3),
    st.lists(row, max_size=4),
    st.sampled_from(list(ON)),
    branches,
    st.booleans(),
)
def test_a_merge_does_what_the_model_does(
    lake: frazil.Lake, files: list[list[Row]], sources: list[Row], on: str, branches: list[Branch], copies: bool
) -> None:
    table = lake.create_table(f"m.t{next(NAMES)}", "id int, n int, s string")
    for each in files:
        table.append(pa.Table.from_pylist(each, SCHEMA))
    merge = table.merge(pa.Table.from_pylist(sources, SCHEMA), on, mode="copy-on-write" if copies else "merge-on-read")
    for clause in branches:
        merge = clause.add(merge)
    targets = list(itertools.chain.from_iterable(files))
    try:
        expected = model(targets, sources, on, branches)
    except Repeated:
        with pytest.raises(frazil.InvalidInput, match="rows of the source"):
            merge.execute()
        assert counted(table.scan().to_arrow().to_pylist()) == counted(targets)
        return
    done = merge.execute()
    assert counted(table.scan().to_arrow().to_pylist()) == counted(expected.rows)
    assert (done.rows_updated, done.rows_inserted, done.rows_deleted) == (
        expected.updated,
        expected.inserted,
        expected.deleted,
    )
