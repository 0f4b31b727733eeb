"""A table whose rows have names, so that the live rows are known whatever happens to the files.

It plays both sides of a race: operations that were planned on it, and winners' changes that landed since.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from hypothesis import strategies as st
from pyroaring import BitMap64

from frazil.commit.operations import Base, Kind, Read, Write
from frazil.commit.rebase import Rebased
from frazil.model import Change, Content, DataFile, Entry, Isolation, Lineage, Run, Status
from unit.samples import metadata

HEAD = metadata()
Place = tuple[str, int]


@dataclass
class World:
    """Files by path, each a list of row names; what was deleted by position; rows that were deleted by key."""

    files: dict[str, list[int]] = field(default_factory=dict)
    live: set[str] = field(default_factory=set)
    deleted: dict[str, set[int]] = field(default_factory=dict)
    by_key: set[int] = field(default_factory=set)
    changed: set[int] = field(default_factory=set)
    """Rows that got other values, and so other names."""
    marks: dict[str, Mapping[str, BitMap64]] = field(default_factory=dict)
    keys: dict[str, int] = field(default_factory=dict)
    lineages: dict[str, Lineage] = field(default_factory=dict)
    number: int = 1
    names: count[int] = field(default_factory=lambda: count(100))

    def copy(self) -> World:
        return copy.deepcopy(self)

    # What there is

    def rows(self) -> dict[int, Place]:
        """The rows that a reader sees, by name. A row that is seen twice is an error at once."""
        found: dict[int, Place] = {}
        for path in sorted(self.live):
            for at, name in enumerate(self.files[path]):
                if at not in self.deleted.get(path, ()) and name not in self.by_key:
                    assert name not in found, f"row {name} is in {found[name]} and in {path}"
                    found[name] = (path, at)
        return found

    def file(self, path: str) -> DataFile:
        return DataFile(path, len(self.files[path]), 100)

    def put(self, names: Sequence[int], kind: str = "data") -> DataFile:
        path = f"{kind}-{next(self.names)}"
        self.files[path] = list(names)
        self.live.add(path)
        return self.file(path)

    def fresh(self, how_many: int) -> list[int]:
        return [next(self.names) for _ in range(how_many)]

    def mark(self, path: str, rows: Sequence[int]) -> DataFile:
        """A file of position deletes on one data file."""
        name = f"mark-{next(self.names)}"
        self.marks[name] = {path: BitMap64(rows)}
        return DataFile(name, len(rows), 10, content=Content.POSITION_DELETES, referenced_data_file=path)

    # Winners

    def land(self, write: Write) -> Change:
        """The change of an operation that lands unchanged, as this one does."""
        self.number += 1
        entries = self._entries
        operation = _operation(write)
        sidecar = None
        # As OperationManifests._sidecar decides it.
        if write.removed and (write.added or write.kind is Kind.REWRITE):
            sidecar = f"lineage-{self.number}"
            self.lineages[sidecar] = write.lineage
        self.changed |= {self.files[path][at] for path, rows in write.moved.items() for at in rows}
        for each in write.removed:
            self.live.discard(each.file_path)
        for each in write.deletes:
            self._delete(each)
        self.live |= {each.file_path for each in write.added}
        return Change(
            self.number,
            self.number,
            operation,
            added=entries(write.added),
            removed=write.removed,
            deletes=entries(write.deletes),
            is_delete=operation == "delete" or write.kind is Kind.DELETE,
            lineage_path=sidecar,
        )

    def _entries(self, files: Sequence[DataFile]) -> tuple[Entry, ...]:
        return tuple(Entry(Status.ADDED, each, self.number, self.number, self.number) for each in files)

    def _delete(self, file: DataFile) -> None:
        if file.content == Content.EQUALITY_DELETES:
            self.by_key.add(self.keys[file.file_path])
            return
        for path, rows in self.marks[file.file_path].items():
            self.deleted.setdefault(path, set()).update(rows)

    # Mine, as it stands at the head

    def take(self, write: Write, carried: Rebased) -> None:
        for each in carried.removed:
            assert each.file_path in self.live, f"{each.file_path} is to go, and is not there"
            self.live.discard(each.file_path)
        self.live |= {each.file_path for each in carried.added}
        self.changed |= {self.files[path][at] for path, rows in write.moved.items() for at in rows}
        for each in carried.deletes:
            self._delete(each)
        for path, rows in carried.positions.items():
            assert path in self.live, f"rows of {path} are to go, and it is not there"
            self.deleted.setdefault(path, set()).update(rows)


def _operation(write: Write) -> str:
    if write.kind is Kind.REWRITE:
        return "replace"
    if write.removed or write.deletes:
        return "overwrite" if write.added else "delete"
    return "append"


@dataclass
class FullInspector:
    """Implements ``Look`` for an operation that was planned on ``base``. It reads nothing else."""

    base: World
    now: World

    def positions(self, deletes: DataFile) -> Mapping[str, BitMap64]:
        return self.now.marks[deletes.file_path]

    def lineage(self, path: str) -> Lineage | None:
        return self.now.lineages.get(path)

    def applies(self, deletes: Entry, file: DataFile) -> bool:
        return self.now.keys[deletes.file.file_path] in self.now.files[file.file_path]

    def hit_by_keys(self, deletes: Entry, file: DataFile, rows: BitMap64) -> BitMap64:
        name = self.now.keys[deletes.file.file_path]
        return rows & BitMap64(at for at, each in enumerate(self.now.files[file.file_path]) if each == name)

    def asked_to_go(self, change: Change, file: DataFile) -> BitMap64:  # noqa: ARG002 - the seam's
        return BitMap64()

    def matches(self, added: Entry, read: Read) -> bool:  # noqa: ARG002 - the seam's
        return True

    def live_rows(self, path: str) -> BitMap64 | None:
        if path not in self.base.live:
            return None
        return BitMap64(at for at in range(len(self.base.files[path])) if at not in self.base.deleted.get(path, ()))

    def seen_files(self) -> Mapping[str, DataFile]:
        return {}

    def seen_rows(self, path: str) -> tuple[DataFile, BitMap64] | None:  # noqa: ARG002 - the seam's
        return None


# Operations


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """A few small files, of which some rows are deleted already."""
    world = World()
    for size in draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)):
        path = world.put(world.fresh(size)).file_path
        world.deleted[path] = draw(st.sets(st.integers(0, size - 1), max_size=size - 1))
    return world


KINDS = ("mark", "copy", "drop", "compact")
"""Position deletes, copies of files without some rows, removed files, compacted files. There are also "put" (rows that
are replaced or added), "key" (rows that are replaced by key) and "add" (new rows)."""


@st.composite
def operations(
    draw: st.DrawFn, world: World, kinds: Sequence[str] = KINDS, isolation: Isolation = Isolation.SNAPSHOT
) -> Write | None:
    """Something to do with rows that are there; None: there are none. New files of it are not yet in the table."""
    there = sorted(world.rows().items())
    kind = draw(st.sampled_from(kinds))
    if kind == "key" and there:
        return _upsert(draw, world, there, isolation)
    if kind == "add" or not there:
        return None if kind != "add" else _write(world, Kind.APPEND, isolation, added=(_staged(world, 2),))
    if kind == "compact":
        chosen = draw(st.sets(st.sampled_from(sorted(world.live)), min_size=1))
        return _copying(draw, world, Kind.REWRITE, chosen, set(), isolation)
    if kind == "drop":
        path = draw(st.sampled_from(sorted(world.live)))
        return _write(world, Kind.DELETE, isolation, removed=(world.file(path),))
    updates = draw(st.booleans())
    chosen_rows = draw(st.sets(st.sampled_from([place for _, place in there]), min_size=1, max_size=4))
    does = Kind.UPSERT if kind == "put" else Kind.UPDATE if updates else Kind.DELETE
    if kind in ("mark", "put"):
        return _marking(world, does, chosen_rows, isolation)
    more = draw(st.sets(st.sampled_from(sorted(world.live)), max_size=1))
    return _copying(draw, world, does, {path for path, _ in chosen_rows} | more, chosen_rows, isolation)


def _write(world: World, kind: Kind, isolation: Isolation, **changes: Any) -> Write:
    base = Base(world.number, world.number)
    return Write(kind, HEAD.uuid, base=base, isolation=isolation, written_ids={1: "id", 2: "name"}, **changes)


def _staged(world: World, how_many: int, names: Sequence[int] | None = None) -> DataFile:
    """A file that is written, and that no snapshot names yet."""
    file = world.put(world.fresh(how_many) if names is None else names, "staged")
    world.live.discard(file.file_path)
    return file


def _marking(world: World, kind: Kind, places: set[Place], isolation: Isolation) -> Write:
    rows = {path: BitMap64(at for each, at in places if each == path) for path in sorted({path for path, _ in places})}
    return _write(
        world,
        kind,
        isolation,
        deletes=tuple(world.mark(path, list(found)) for path, found in rows.items()),
        positions=rows,
        touched={path: world.file(path) for path in rows},
        moved={} if kind is Kind.DELETE else rows,
        added=() if kind is Kind.DELETE else (_staged(world, len(places)),),
    )


def _copying(
    draw: st.DrawFn, world: World, kind: Kind, paths: set[str], places: set[Place], isolation: Isolation
) -> Write:
    """Files go; their rows but these are copied, in any order of the files."""
    order = draw(st.permutations(sorted(paths)))
    seen = set(world.rows().values())
    kept = [(path, at) for path in order for at in range(len(world.files[path])) if (path, at) in seen - places]
    added: list[DataFile] = []
    copies: dict[str, tuple[Run, ...]] = {}
    if kept:
        out = _staged(world, 0, [world.files[path][at] for path, at in kept])
        added.append(out)
        copies[out.file_path] = runs_of(kept)
    moved = {}
    if kind is Kind.UPDATE:
        added.append(_staged(world, len(places)))
        moved = {path: BitMap64(at for each, at in places if each == path) for path in {path for path, _ in places}}
    return _write(
        world,
        kind,
        isolation,
        removed=tuple(world.file(path) for path in order),
        copies=copies,
        added=tuple(added),
        moved=moved,
    )


def _upsert(draw: st.DrawFn, world: World, there: Sequence[tuple[int, Place]], isolation: Isolation) -> Write:
    name, _ = draw(st.sampled_from(there))
    path = f"keys-{next(world.names)}"
    world.keys[path] = name
    deletes = DataFile(path, 1, 10, content=Content.EQUALITY_DELETES, equality_ids=(1,))
    return _write(world, Kind.UPSERT, isolation, deletes=(deletes,), added=(_staged(world, 1),))


def runs_of(places: Sequence[Place]) -> tuple[Run, ...]:
    runs: list[Run] = []
    for path, at in places:
        last = runs[-1] if runs else None
        if last is not None and last.source == path and last.first + last.length == at:
            runs[-1] = Run(path, last.first, last.length + 1)
        else:
            runs.append(Run(path, at, 1))
    return tuple(runs)


def expanded(runs: Sequence[Run]) -> list[Place]:
    return [(run.source, run.first + at) for run in runs for at in range(run.length)]
