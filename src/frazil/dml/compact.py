"""The same rows in fewer files: small ones of one partition are put together, and deleted rows are left out.

Delete files that no longer apply to any file are removed, so that readers without equality deletes can read the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from frazil.commit.operations import Kind, RowCounts, Write
from frazil.dml.view import Settings, View
from frazil.dml.write_builder import Pieces, WriteBuilder
from frazil.errors import InvalidInput
from frazil.expr import Filter, parse_filter
from frazil.format.partitions import partition_identity
from frazil.model import Content
from frazil.read.arrow import ReadContext
from frazil.read.plan import FileTask
from frazil.read.positions import rows_with_positions

TARGET = "target-file-size-bytes"
MIN_FILES = "min-input-files"
_DEFAULT_TARGET = 512 * 1024 * 1024
_SMALL = 0.75
"""A file below this share of the target size is small, as in Iceberg's own rewrite."""


Claim = Callable[[Sequence[str]], bool]
"""Takes a group of files by their paths; False: another service has taken it."""


@dataclass(frozen=True, slots=True)
class Packing:
    """How files are put together."""

    target: int
    least: int
    """A group of fewer files is not rewritten, unless some of its rows are deleted."""
    for_files: Mapping[str, str]
    """The options of the Parquet writer."""


def packing(view: View, settings: Settings) -> Packing:
    """Options: target-file-size-bytes, min-input-files, and those of every write."""
    options = {name: text for name, text in settings.options.items() if name != MIN_FILES}
    target = _whole(options.get(TARGET) or view.metadata.properties.get(f"write.{TARGET}"), TARGET, _DEFAULT_TARGET)
    return Packing(target, _whole(settings.options.get(MIN_FILES), MIN_FILES, 2), options)


def compact(view: View, settings: Settings, where: Filter | None = None, claim: Claim = lambda _paths: True) -> Write:
    """Rewrite small files and files with deleted rows, partition by partition. ``where`` selects files, not rows.

    Delete files that no longer apply to any file are removed, also outside ``where``. ``claim`` is asked for each group
    of files: False leaves it to another service.
    """
    how = packing(view, settings)
    with WriteBuilder(view, replace(settings, options=how.for_files)) as builder:
        found = groups_of(chosen_files(view, where), how, lambda task: _has_deletes(task, builder.read_context))
        for group in claimed(found, claim):
            view.check_size(group, "compact")
            for task in group:
                builder.remove(task)
            builder.copy(copied_rows(group, builder.read_context), group[0].file, is_sorted=len(group) == 1)
        builder.drop_unneeded_deletes()
        return builder.build(Kind.REWRITE, RowCounts())


def chosen_files(view: View, where: Filter | None) -> list[FileTask]:
    """Statistics decide which files; all their live rows are copied."""
    chosen = parse_filter(None, view.schema) if where is None else view.bound(where)
    return [replace(task, residual=None) for task in view.tasks(chosen)]


def copied_rows(tasks: list[FileTask], context: ReadContext) -> Pieces:
    """The live rows of these files, one file after another."""
    for task in tasks:
        for batch, numbers in rows_with_positions(task, context):
            yield task.file.file_path, batch, numbers


def groups_of(tasks: list[FileTask], how: Packing, has_deletes: Callable[[FileTask], bool]) -> Iterator[list[FileTask]]:
    """Groups of files to rewrite together: one spec and partition, and at most the target size."""
    by_partition: dict[object, list[FileTask]] = {}
    for task in tasks:
        if task.file.file_size_in_bytes < _SMALL * how.target or has_deletes(task):
            key = (task.file.spec_id, partition_identity(task.file.partition))
            by_partition.setdefault(key, []).append(task)
    for found in by_partition.values():
        for group in _packed(found, how.target):
            if len(group) >= how.least or any(has_deletes(task) for task in group):
                yield group


def claimed(groups: Iterable[list[FileTask]], claim: Claim) -> Iterator[list[FileTask]]:
    """The groups that no other service works on."""
    return (group for group in groups if claim([task.file.file_path for task in group]))


def _packed(tasks: list[FileTask], target: int) -> Iterator[list[FileTask]]:
    group: list[FileTask] = []
    size = 0
    for task in tasks:
        if group and size + task.file.file_size_in_bytes > target:
            yield group
            group, size = [], 0
        group.append(task)
        size += task.file.file_size_in_bytes
    yield group


def _has_deletes(task: FileTask, context: ReadContext) -> bool:
    """Whether deletes apply to the file's rows. Equality deletes count without reading the rows."""
    if any(ref.file.content == Content.EQUALITY_DELETES for ref in task.deletes):
        return True
    return bool(context.deletes.positions(task.deletes, task.file.file_path))


def _whole(text: str | None, name: str, default: int) -> int:
    if text is None:
        return default
    try:
        number = int(text)
    except (ValueError, TypeError):
        number = 0
    if number < 1:
        raise InvalidInput(f"The option {name} is {text!r}", advice="Give a whole number of at least 1")
    return number
