"""Replays a history in commit order on the sequential model, and finds the first commit that differs.

For each commit, at its position in the branch's history, the rows after it, the rows its transaction read, and its
counts are checked; for each call without a snapshot, that its reads come from one state it could have seen. Every
snapshot must belong to a call, every acknowledged call must have its snapshot, and no commit may precede one that had
ended when it began.
"""

from __future__ import annotations

import bisect
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from concurrency.histories.model import (
    WITHOUT_ROWS,
    Effect,
    Frozen,
    Layout,
    State,
    Step,
    apply,
    counted,
    looked_at,
    row_text,
    selected,
)
from concurrency.histories.records import Record, Remains, Version

RECENT = 5
_OF_ROWS = frozenset(
    {
        "history unbroken since the base",
        "required files still exist",
        "my files not removed by another",
        "no new deletes on my files",
        "one owner for each row",
        "no added rows match my filter",
        "no removed rows match my filter",
        "no new delete files match my filter",
    }
)


@dataclass(frozen=True)
class Divergence:
    """The first difference between history and model: what is wrong, at which commit, and the commits before it."""

    kind: str
    what: str
    record: Record | None = None
    missing: Counter[Frozen] = field(default_factory=Counter)
    """Rows that the model has and the table has not."""
    surplus: Counter[Frozen] = field(default_factory=Counter)
    recent: tuple[Record, ...] = ()

    def __str__(self) -> str:
        lines = [f"{self.kind}: {self.what}"]
        if self.record is not None:
            lines.append(f"  at {self.record}")
        lines += [f"  expected, not there: {_times(row, n)}" for row, n in sorted(self.missing.items(), key=str)]
        lines += [f"  there, not expected: {_times(row, n)}" for row, n in sorted(self.surplus.items(), key=str)]
        if self.recent:
            lines.append(f"  the {len(self.recent)} commits before it, oldest first:")
            lines += [f"    {each}" for each in self.recent]
        return "\n".join(lines)


@dataclass(frozen=True)
class Verdict:
    commits: int
    """How many the model has applied."""
    compared: int
    """After how many of them the table's rows were read and compared."""
    divergence: Divergence | None = None
    needless: tuple[Record, ...] = ()
    """Conflicts of calls whose selected rows were the same at the end as at the beginning."""


def replay(records: Sequence[Record], remains: Remains, layout: Layout, *, every: int = 1) -> Verdict:
    """``every``: compare the rows of each so-many-th version, and always of the last."""
    if (found := _crash(records) or _not_redone(records)) is not None:
        return Verdict(0, 0, found)
    placed = _place(records, remains.versions)
    if isinstance(placed, Divergence):
        return Verdict(0, 0, placed)
    return _Replay(records, placed, remains, layout, every).verdict()


def statistics(records: Sequence[Record], verdict: Verdict) -> str:
    """Outcomes by operation, then conflicts by operation and check, and how many of them the rows do not explain."""
    outcomes = Counter((record.name, record.verdict) for record in records)
    names = sorted({name for name, _ in outcomes})
    kinds = sorted({outcome for _, outcome in outcomes})
    lines = [f"{'':18}" + "".join(f"{kind:>11}" for kind in kinds)]
    lines += [f"{name:18}" + "".join(f"{outcomes[name, kind] or '':>11}" for kind in kinds) for name in names]
    refused = Counter((record.name, check) for record in records for check in record.checks)
    needless = Counter((record.name, check) for record in verdict.needless for check in record.checks)
    lines += [
        f"{count:6} × {name}: {check}"
        + (f", {needless[name, check]} not because of rows" if needless[name, check] else "")
        for (name, check), count in refused.most_common()
    ]
    return "\n".join(lines)


def _crash(records: Sequence[Record]) -> Divergence | None:
    for record in records:
        if record.outcome == "crashed":
            return Divergence("crash", "a call raised what no caller expects", record)
    return None


def _not_redone(records: Sequence[Record]) -> Divergence | None:
    """Rows that changed refuse no statement that can be evaluated again; a transaction is not evaluated again."""
    for record in records:
        if record.redone and record.transaction:
            return Divergence("redo", "a transaction was evaluated again", record)
        is_refused = record.outcome == "conflict" and bool(record.checks) and _OF_ROWS.issuperset(record.checks)
        if is_refused and record.is_redoable:
            return Divergence("redo", "a statement was refused because of rows, and not evaluated again", record)
    return None


def _place(records: Sequence[Record], versions: Sequence[Version]) -> list[list[Record]] | Divergence:
    """For each version the records it holds: none for the inner versions of a transaction, several when folded."""
    by_id = {record.id: record for record in records}
    by_snapshot: dict[int | None, list[Record]] = {}
    for record in records:
        if record.makes_snapshot:
            by_snapshot.setdefault(record.snapshot_id, []).append(record)
    last_of = {version.commit_id: version.snapshot_id for version in versions}
    placed: list[list[Record]] = []
    for version in versions:
        owners = sorted(by_snapshot.pop(version.snapshot_id, []), key=lambda each: each.group_index)
        if not owners:
            owner = by_id.get(version.commit_id)
            if owner is None or owner.outcome not in ("committed", "unknown"):
                ending = "that no record names" if owner is None else f"that ended as {owner.outcome!r}"
                return Divergence("ghost", f"snapshot {version.snapshot_id} is of a write {ending}", owner)
            # The answer was lost, and the table shows that it landed.
            if owner.outcome == "unknown" and last_of[version.commit_id] == version.snapshot_id:
                owners = [replace(owner, snapshot_id=version.snapshot_id)]
        if len({each.group_index for each in owners}) < len(owners):
            what = f"snapshot {version.snapshot_id} is claimed by {', '.join(each.id for each in owners)}"
            return Divergence("shared", what, owners[0])
        placed.append(owners)
    for snapshot_id, lost in by_snapshot.items():
        return Divergence("lost", f"the acknowledged snapshot {snapshot_id} is not in the history", lost[0])
    return placed


class _Replay:
    """One pass over the versions; ``_states[i]`` is the model after the first i records of ``_done``."""

    def __init__(
        self, records: Sequence[Record], placed: list[list[Record]], remains: Remains, layout: Layout, every: int
    ) -> None:
        self._records = records
        self._placed = placed
        self._remains = remains
        self._layout = layout
        self._every = every
        self._states: list[State] = [()]
        self._done: list[Record] = []
        self._latest_start = float("-inf")
        self._compared = 0

    def verdict(self) -> Verdict:
        found = self._commits() or self._without_snapshot()
        found = found or _columns(self._records, self._remains) or _properties(self._records, self._remains)
        return Verdict(len(self._done), self._compared, found, tuple(self._needless()) if found is None else ())

    def _commits(self) -> Divergence | None:
        for number, (version, owners) in enumerate(zip(self._remains.versions, self._placed, strict=True), 1):
            for record in owners:
                if (found := self._advance(record)) is not None:
                    return found
            wanted = number % self._every == 0 or number == len(self._placed)
            if owners and wanted and (found := self._compare(version)) is not None:
                return found
        return None

    def _advance(self, record: Record) -> Divergence | None:
        """Apply one record to the model, and judge its place, what it read and what it counted."""
        if record.finished < self._latest_start:
            return self._diverges("order", "it had ended before a commit that precedes it began", record)
        self._latest_start = max(self._latest_start, record.started)
        walked = _walk(self._states[-1], record, self._layout)
        if isinstance(walked, Misread):
            found = self._diverges("stale read", f"a scan is not of the state before its commit: {walked.step}", record)
            return replace(found, missing=walked.missing, surplus=walked.surplus)
        if record.outcome != "unknown" and (wrong := self._miscounted(record)) is not None:
            return self._diverges("count", wrong, record)
        self._states.append(walked[-1].state)
        self._done.append(record)
        return None

    def _miscounted(self, record: Record) -> str | None:
        """A row that was replaced by key concurrently still counts as deleted, a row that was deleted does not: so
        the number of deleted rows lies between those of the states since the call began.
        """
        said = (record.inserted, record.updated, record.deleted)
        first = len(self._done)
        while first and self._done[first - 1].finished >= record.started:
            first -= 1
        did = [_counts(state, record, self._layout) for state in reversed(self._states[first:])]
        deleted = [each[2] for each in did]
        if said[:2] in [each[:2] for each in did] and min(deleted) <= said[2] <= max(deleted):
            return None
        return "it counted {} inserted, {} updated, {} deleted; the model {}, {}, {}".format(*said, *did[0])

    def _compare(self, version: Version) -> Divergence | None:
        self._compared += 1
        there, expected = counted(self._remains.read(version.snapshot_id)), counted(self._states[-1])
        if there == expected:
            return None
        what = "the table's rows are not the model's after this commit"
        found = Divergence("rows", what, self._done[-1], recent=tuple(self._done[-1 - RECENT : -1]))
        return replace(found, missing=expected - there, surplus=there - expected)

    def _without_snapshot(self) -> Divergence | None:
        """What left no snapshot must have seen one state of the table, of those while it ran."""
        # The last commit that had ended before, and the first that began after: monotone, so they can be searched.
        ends = list(itertools.accumulate((each.finished for each in reversed(self._done)), min))[::-1]
        starts = list(itertools.accumulate((each.started for each in self._done), max))
        for record in self._records:
            if record.makes_snapshot or record.outcome == "unknown":
                continue
            first = bisect.bisect_left(ends, record.started)
            last = bisect.bisect_right(starts, record.finished)
            if not any(_explains(state, record, self._layout) for state in self._states[first : last + 1]):
                what = f"no state explains it; it could have seen those after {first} to {last} commits"
                return Divergence("unexplained", what, record, recent=tuple(self._done[max(0, last - RECENT) : last]))
        return None

    def _needless(self) -> Iterator[Record]:
        """Files may conflict where rows do not: two writers cannot both replace the same file."""
        ends = list(itertools.accumulate((each.finished for each in self._done), max))
        for record in self._records:
            if record.outcome == "conflict" and record.steps[0].verb not in WITHOUT_ROWS:
                before = self._states[bisect.bisect_left(ends, record.started)]
                after = self._states[bisect.bisect_left(ends, record.finished)]
                if _looks_same(before, after, record, self._layout):
                    yield record

    def _diverges(self, kind: str, what: str, record: Record) -> Divergence:
        return Divergence(kind, what, record, recent=tuple(self._done[-RECENT:]))


@dataclass(frozen=True)
class Misread:
    """A scan that returned other rows than the model has."""

    step: Step
    missing: Counter[Frozen]
    surplus: Counter[Frozen]


def _walk(state: State, record: Record, layout: Layout) -> list[Effect] | Misread:
    """The effects of a record's steps, one after the other, each seeing the ones before it."""
    effects: list[Effect] = []
    for step in record.steps:
        if step.seen is not None:
            expected, read = counted(selected(state, step.where or ("true",))), counted(step.seen)
            if expected != read:
                return Misread(step, expected - read, read - expected)
        effects.append(apply(state, step, layout))
        state = effects[-1].state
    return effects


def _explains(state: State, record: Record, layout: Layout) -> bool:
    walked = _walk(state, record, layout)
    if isinstance(walked, Misread):
        return False
    return record.outcome != "unchanged" or counted(walked[-1].state) == counted(state)


def _looks_same(before: State, after: State, record: Record, layout: Layout) -> bool:
    for step in record.steps:
        if counted(looked_at(before, step, layout)) != counted(looked_at(after, step, layout)):
            return False
        before, after = apply(before, step, layout).state, apply(after, step, layout).state
    return True


def _counts(state: State, record: Record, layout: Layout) -> tuple[int, int, int]:
    inserted, updated, deleted = 0, 0, 0
    for step in record.steps:
        effect = apply(state, step, layout)
        state = effect.state
        inserted, updated, deleted = inserted + effect.inserted, updated + effect.updated, deleted + effect.deleted
    return inserted, updated, deleted


def _columns(records: Sequence[Record], remains: Remains) -> Divergence | None:
    """An acknowledged column has its type; a refused one was there already, and in a conflict another type won."""
    for record in records:
        step = record.steps[0]
        if step.verb != "add_column" or record.outcome in ("unknown", "exhausted"):
            continue
        type_ = remains.columns.get(step.name)
        right = {
            "committed": type_ == step.value,
            "unchanged": type_ == step.value,
            "refused": type_ is not None,
            "conflict": type_ is not None and type_ != step.value,
        }
        if not right[record.outcome]:
            return Divergence("column", f"after all, the column {step.name} is of type {type_}", record)
    return None


def _properties(records: Sequence[Record], remains: Remains) -> Divergence | None:
    """A property has the value of a write that no other write of it entirely followed."""
    written: dict[str, list[Record]] = {}
    for record in records:
        if record.steps[0].verb == "set_properties" and record.outcome in ("committed", "unchanged"):
            written.setdefault(record.steps[0].name, []).append(record)
    for name, writes in written.items():
        latest = max(each.started for each in writes)
        possible = {each.steps[0].value for each in writes if each.finished >= latest}
        if remains.properties.get(name) not in possible:
            what = f"after all, the property {name} is {remains.properties.get(name)!r}, not one of {sorted(possible)}"
            return Divergence("property", what, writes[-1])
    return None


def _times(row: Frozen, count: int) -> str:
    return row_text(dict(row)) + (f" × {count}" if count > 1 else "")
