"""Compaction: which files are rewritten, which of them together, and in how many commits. Planning is pure.

    files of a snapshot ──choose──▶ candidates ──by partition, pack──▶ groups ──▶ commits, one after the other
                                                                          ▲                  │
                                                                          └── groups lost ◀──┘

A group that another writer took files of is lost alone: what is left of it is planned again, on the newest version.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from frazil import observe
from frazil.commit.operations import Write
from frazil.dml.rewrite import Ordering, Rewriting
from frazil.dml.view import Settings, View
from frazil.errors import (
    CommitUnknown,
    ConflictError,
    FrazilError,
    InvalidInput,
    PartlyCommitted,
    RetriesExhausted,
)
from frazil.expr import Filter, parse_filter
from frazil.format.partitions import partition_identity
from frazil.model import Commit, Content
from frazil.read.deletes import Deletes
from frazil.read.plan import FileTask, named_file
from frazil.services.leases import Claim
from frazil.services.options import RewriteOptions
from frazil.services.progress import NoProgress, ServiceProgress
from frazil.services.timeline import COMMIT_IDS

Build = Callable[[View, Settings], Write]
ROUNDS = 3
"""How often groups are planned: once, and then those that were lost."""


@dataclass(frozen=True, slots=True)
class FileGroup:
    """Files of one spec and partition that are rewritten together, and lost together."""

    spec_id: int
    partition: tuple[Any, ...]
    files: tuple[str, ...]
    size_in_bytes: int
    rows: int
    delete_files: int
    """How many delete files apply to them."""

    @staticmethod
    def of(tasks: Sequence[FileTask]) -> FileGroup:
        first = tasks[0].file
        return FileGroup(
            first.spec_id,
            first.partition,
            tuple(task.file.file_path for task in tasks),
            sum(task.file.file_size_in_bytes for task in tasks),
            sum(task.file.record_count for task in tasks),
            len({ref.file.file_path for task in tasks for ref in task.deletes}),
        )


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """What a compaction does."""

    table: str
    snapshot_id: int | None
    strategy: str
    commits: tuple[tuple[FileGroup, ...], ...] = ()
    """The groups of each commit."""

    @property
    def groups(self) -> tuple[FileGroup, ...]:
        return tuple(group for commit in self.commits for group in commit)

    @property
    def files(self) -> int:
        return sum(len(group.files) for group in self.groups)

    @property
    def size_in_bytes(self) -> int:
        return sum(group.size_in_bytes for group in self.groups)

    def to_dict(self) -> dict[str, Any]:
        """For JSON. Partition values that JSON does not have are texts."""
        return {
            "table": self.table,
            "snapshot_id": self.snapshot_id,
            "strategy": self.strategy,
            "files": self.files,
            "bytes": self.size_in_bytes,
            "commits": [[_group_to_dict(group) for group in commit] for commit in self.commits],
        }


def _group_to_dict(group: FileGroup) -> dict[str, Any]:
    values = [each if isinstance(each, int | float | str | None) else str(each) for each in group.partition]
    return {
        "spec_id": group.spec_id,
        "partition": values,
        "files": list(group.files),
        "bytes": group.size_in_bytes,
        "rows": group.rows,
        "delete_files": group.delete_files,
    }


def plan(
    tasks: Iterable[FileTask],
    options: RewriteOptions,
    *,
    table: str,
    snapshot_id: int | None,
    ordering: Ordering | None = None,
    deleted_rows: Callable[[FileTask], int | None],
) -> CompactionPlan:
    """Which of these files are rewritten. Pure.

    ``deleted_rows``: how many rows position deletes remove from a file that some apply to; None: equality deletes apply
    as well.
    """
    chooser = _Chooser(options, deleted_rows)
    by_partition: dict[object, list[FileTask]] = {}
    for task in tasks:
        if chooser.chooses(task):
            key = (task.file.spec_id, partition_identity(task.file.partition))
            by_partition.setdefault(key, []).append(task)
    # Sorted rows of one partition belong together; files that keep their order are copied by the target size.
    most = options.max_group_bytes if ordering is not None else min(options.target, options.max_group_bytes)
    packed = (group for found in by_partition.values() for group in _packed(found, most, options.max_group_files))
    groups = _in_order([FileGroup.of(group) for group in packed if chooser.is_worth(group)], options)
    commits = tuple(_batched(_limited(groups, options.max_files), options))
    return CompactionPlan(table, snapshot_id, "binpack" if ordering is None else ordering.kind, commits)


class _Chooser:
    def __init__(self, options: RewriteOptions, deleted_rows: Callable[[FileTask], int | None]) -> None:
        self._options = options
        self._deleted_rows = deleted_rows
        self._known: dict[str, bool] = {}

    def chooses(self, task: FileTask) -> bool:
        """Whether a file is a candidate: too small, too large, with many deleted rows, or of another spec."""
        options, size = self._options, task.file.file_size_in_bytes
        if options.rewrite_all or not options.smallest <= size <= options.largest:
            return True
        return self._has_many_deletes(task) or self._moves(task)

    def is_worth(self, group: Sequence[FileTask]) -> bool:
        """A group of few files stays as it is, unless one of them has a reason of its own."""
        options = self._options
        if options.rewrite_all or len(group) >= options.min_input_files:
            return True
        size = sum(task.file.file_size_in_bytes for task in group)
        return size > options.largest or any(self._has_many_deletes(task) or self._moves(task) for task in group)

    def _moves(self, task: FileTask) -> bool:
        return self._options.output_spec_id not in (None, task.file.spec_id)

    def _has_many_deletes(self, task: FileTask) -> bool:
        path = task.file.file_path
        if path not in self._known:
            self._known[path] = bool(task.deletes) and self._count_deletes(task)
        return self._known[path]

    def _count_deletes(self, task: FileTask) -> bool:
        options = self._options
        if options.delete_files is not None and len(task.deletes) >= options.delete_files:
            # Position deletes that name several files may name none of this one's rows.
            return any(_surely_applies(task, ref.file) for ref in task.deletes) or self._deleted_rows(task) != 0
        if options.delete_ratio is None:
            return False
        rows = self._deleted_rows(task)
        return rows is not None and rows >= options.delete_ratio * max(1, task.file.record_count)


def _surely_applies(task: FileTask, deletes: Any) -> bool:
    return deletes.content == Content.EQUALITY_DELETES or named_file(deletes) == task.file.file_path


def _packed(tasks: Sequence[FileTask], most_bytes: int, most_files: int | None) -> Iterator[list[FileTask]]:
    group: list[FileTask] = []
    size = 0
    for task in tasks:
        is_full = most_files is not None and len(group) >= most_files
        if group and (is_full or size + task.file.file_size_in_bytes > most_bytes):
            yield group
            group, size = [], 0
        group.append(task)
        size += task.file.file_size_in_bytes
    yield group


def _in_order(groups: list[FileGroup], options: RewriteOptions) -> list[FileGroup]:
    if options.job_order == "none":
        return groups
    what, _, direction = options.job_order.partition("-")
    by_size = what == "bytes"
    return sorted(
        groups,
        key=lambda group: group.size_in_bytes if by_size else len(group.files),
        reverse=direction == "desc",
    )


def _limited(groups: list[FileGroup], most_files: int | None) -> list[FileGroup]:
    """Whole groups, as many as fit."""
    if most_files is None:
        return groups
    chosen: list[FileGroup] = []
    left = most_files
    for group in groups:
        if len(group.files) <= left:
            chosen.append(group)
            left -= len(group.files)
    return chosen


def _batched(groups: Sequence[FileGroup], options: RewriteOptions) -> Iterator[tuple[FileGroup, ...]]:
    """The groups of each commit: at least a file's worth of data, and not more commits than the options say."""
    total = sum(group.size_in_bytes for group in groups)
    least = max(options.target, -(-total // options.max_commits)) if options.is_partial else total + 1
    batch: list[FileGroup] = []
    size = 0
    for group in groups:
        batch.append(group)
        size += group.size_in_bytes
        if size >= least:
            yield tuple(batch)
            batch, size = [], 0
    if batch:
        yield tuple(batch)


# Running


class Committing(Protocol):
    """Where the commits of a service go."""

    @property
    def is_atomic(self) -> bool:
        """Everything must be one commit."""

    def view(self) -> View:
        """The newest version of the table."""

    def commit(self, build: Build) -> Commit: ...


@dataclass(frozen=True, slots=True)
class Compacted:
    """What a compaction did."""

    commit: Commit
    """Of several commits the last one, with the counts of all."""
    planned: CompactionPlan
    rewritten_files: int = 0
    rewritten_bytes: int = 0
    added_files: int = 0
    failed_files: int = 0
    """Planned, and still there: their groups were lost to other writers."""
    removed_delete_files: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Compaction:
    """A compaction of one table: its choice of files and how they are rewritten."""

    rewrite: Callable[[View, Settings, Rewriting], Write]
    """The engine's."""
    options: RewriteOptions
    where: Filter | None = None
    """It selects files by their statistics, not rows."""
    ordering: Ordering | None = None

    def plan(self, view: View, only: Collection[str] | None = None) -> CompactionPlan:
        """``only``: of these files."""
        tasks = self._tasks(view).values()
        deletes = view.read_context().deletes
        return plan(
            [task for task in tasks if only is None or task.file.file_path in only],
            self.options,
            table=view.table,
            snapshot_id=view.base.snapshot_id,
            ordering=self.ordering,
            deleted_rows=lambda task: _deleted_rows(task, deletes),
        )

    def write(self, view: View, settings: Settings, groups: Sequence[FileGroup], *, drops_unneeded: bool) -> Write:
        """Rewrite what is still there of these groups."""
        tasks = self._tasks(view, everywhere=True)
        left = (tuple(tasks[path] for path in group.files if path in tasks) for group in groups)
        work = Rewriting(
            tuple(group for group in left if group),
            self.ordering,
            self.options.output_spec_id,
            drops_unneeded,
            self.options.for_files,
        )
        return self.rewrite(view, settings, work)

    def _tasks(self, view: View, *, everywhere: bool = False) -> dict[str, FileTask]:
        """By path. All live rows of a file are copied."""
        wanted = parse_filter(None, view.schema) if self.where is None or everywhere else view.bound(self.where)
        return {task.file.file_path: replace(task, residual=None) for task in view.tasks(wanted)}

    def run(
        self, committing: Committing, progress: ServiceProgress | None = None, claim: Claim | None = None
    ) -> Compacted:
        """Plan, and commit group by group. Raises the conflict if not one group could be committed.

        ``claim`` is asked for each group right before it is rewritten: False leaves it to another service.
        """
        whole = replace(self, options=replace(self.options, is_partial=False)) if committing.is_atomic else self
        return _Run(whole, committing, progress or NoProgress(), claim or (lambda _paths: True)).run()


def _deleted_rows(task: FileTask, deletes: Deletes) -> int | None:
    if any(ref.file.content == Content.EQUALITY_DELETES for ref in task.deletes):
        return None
    return sum(len(part) for part in deletes.positions(task.deletes, task.file.file_path).parts)


@dataclass(slots=True)
class _Run:
    compaction: Compaction
    committing: Committing
    progress: ServiceProgress
    claim: Claim
    landed: list[Commit] = field(default_factory=list)
    tried: set[str] = field(default_factory=set)
    """The files of all groups that were not left to another service."""
    left: frozenset[str] = frozenset()
    """Those that are still there."""
    error: ConflictError | RetriesExhausted | None = None
    has_dropped: bool = False

    def run(self) -> Compacted:
        first = self.compaction.plan(self.committing.view())
        self.progress.planned(first.to_dict())
        try:
            self._commit_rounds(first)
        except (CommitUnknown, PartlyCommitted):
            raise
        except FrazilError as error:
            if not self._has_landed:
                raise
            # An error would say that nothing was committed.
            observe.log.warning("a compaction of %s ended after a part of it: %s", first.table, error)
        if self.error is not None and not self._has_landed:
            raise self.error
        return self._result(first)

    @property
    def _has_landed(self) -> bool:
        return any(each.changed for each in self.landed)

    def _commit_rounds(self, found: CompactionPlan) -> None:
        """Commit, and plan again what was lost."""
        for _ in range(ROUNDS):
            lost_any = self._commit_all(found)
            if not lost_any or self.committing.is_atomic:
                return
            self.left = self._still_there()
            found = self.compaction.plan(self.committing.view(), self.left) if self.left else found
            if not self.left or not found.groups or self.progress.should_stop:
                return
        self.left = self._still_there()

    def _commit_all(self, found: CompactionPlan) -> bool:
        """Whether a group may have been lost."""
        batches = found.commits or ((),)
        may_have_lost = False
        for number, planned in enumerate(batches, 1):
            groups = [group for group in planned if self.claim(group.files)]
            self.tried.update(path for group in groups for path in group.files)
            is_last = number == len(batches)
            drops = is_last and not self.has_dropped
            if not (groups or drops):
                continue
            try:
                done = self.committing.commit(self._build(groups, drops_unneeded=drops))
            except (ConflictError, RetriesExhausted) as error:
                if self.committing.is_atomic or not self.compaction.options.is_partial:
                    raise
                self.error, may_have_lost = error, True
                continue
            self.landed.append(done)
            self.has_dropped |= drops
            may_have_lost |= done.redone > 0
            self._tell(number, len(batches), done)
            if self.progress.should_stop and not is_last:
                return False
        return may_have_lost

    def _tell(self, number: int, total: int, done: Commit) -> None:
        made = [each.commit_id for each in self.landed if each.changed]
        told = {"snapshot_id": done.snapshot_id, "files": done.files_removed}
        self.progress.advanced(number, total, {**told, COMMIT_IDS: made} if made else told)

    def _build(self, groups: Sequence[FileGroup], *, drops_unneeded: bool) -> Build:
        return lambda view, settings: self.compaction.write(view, settings, groups, drops_unneeded=drops_unneeded)

    def _still_there(self) -> frozenset[str]:
        view = self.committing.view()
        return frozenset(task.file.file_path for task in view.tasks(parse_filter(None, view.schema))) & self.tried

    def _result(self, planned: CompactionPlan) -> Compacted:
        commit, counts = combined(self.landed), self._counts()
        rewritten = self.tried - self.left
        done = sum(group.size_in_bytes for group in planned.groups if rewritten.issuperset(group.files))
        return Compacted(
            commit,
            planned,
            rewritten_files=counts["deleted-data-files"],
            rewritten_bytes=done if commit.changed else 0,
            added_files=counts["added-data-files"],
            failed_files=len(self.left),
            removed_delete_files=counts["removed-delete-files"],
        )

    def _counts(self) -> dict[str, int]:
        """Of the snapshots' summaries; where these cannot be read, what the commits themselves know."""
        counts = dict.fromkeys(("added-data-files", "deleted-data-files", "removed-delete-files"), 0)
        try:
            metadata = self.committing.view().metadata
        except FrazilError:
            known = combined(self.landed)
            return {**counts, "added-data-files": known.files_added, "deleted-data-files": known.files_removed}
        for each in self.landed:
            found = None if not each.changed or each.snapshot_id is None else metadata.snapshot(each.snapshot_id)
            for name in counts:
                text = "" if found is None else str(found.summary.get(name, ""))
                counts[name] += int(text) if text.isdigit() else 0
        return counts


def combined(commits: Sequence[Commit]) -> Commit:
    """Several commits of one call: the last one that changed something, with the counts of all."""
    if len(commits) == 1:
        return commits[0]
    last = next((each for each in reversed(commits) if each.changed), commits[-1])
    return replace(
        last,
        attempts=sum(each.attempts for each in commits),
        rebased_over=sum(each.rebased_over for each in commits),
        elapsed=sum(each.elapsed for each in commits),
        redone=sum(each.redone for each in commits),
        rows_inserted=sum(each.rows_inserted for each in commits),
        rows_updated=sum(each.rows_updated for each in commits),
        rows_deleted=sum(each.rows_deleted for each in commits),
        files_added=sum(each.files_added for each in commits),
        files_removed=sum(each.files_removed for each in commits),
        bytes_written=sum(each.bytes_written for each in commits),
    )


def checked_strategy(strategy: str) -> str:
    if strategy not in STRATEGIES:
        raise InvalidInput(f"strategy must be one of {', '.join(STRATEGIES)}, not {strategy!r}")
    return strategy


STRATEGIES = ("binpack", "sort", "zorder", "hilbert")
