"""Erasure: rows are forgotten for good, and every remaining file is searched for them.

    delete ─▶ copy files that still hold them ─▶ leave removed files out of manifests ─▶ expire ─▶ delete files
           ─▶ orphans ─▶ scrub the catalog ─▶ search every remaining file ─▶ report

Each step finds what is left to do, so an erasure that was interrupted is finished by calling it again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import orjson

from frazil.catalog.base import FileKind
from frazil.errors import InvalidInput
from frazil.format.metadata import TableMetadata
from frazil.format.storage import is_below, same_path
from frazil.format.times import iso
from frazil.services.context import ServiceContext
from frazil.services.deletion import DeletionRun
from frazil.services.expiry import unrecorded
from frazil.services.reachable import beside, own_folders
from frazil.services.search import Searcher, known_files
from frazil.wording import counted

_MOST_SHOWN = 100


@dataclass(frozen=True, slots=True)
class Remaining:
    """A place where rows of the condition are or may be."""

    where: str
    why: str


@dataclass(frozen=True, slots=True)
class ErasureReport:
    """What an erasure removed, and what it searched afterwards. It does not contain the condition."""

    table: str
    table_uuid: str
    proven: bool
    """Every file that remains was searched, and none holds a row of the condition."""
    files_searched: int
    files_removed: int
    snapshots_expired: int
    rows_deleted: int
    refs_dropped: tuple[str, ...]
    remaining: tuple[Remaining, ...]
    """Why it is not proven."""
    outside: tuple[str, ...]
    """Where copies may be that are out of reach: logs and backups of a database server, of a file system."""
    finished_at: str
    digest: str = ""
    """SHA-256 of all the above, as JSON."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def to_json(self) -> str:
        return orjson.dumps(self.to_dict(), option=orjson.OPT_INDENT_2).decode()

    def __str__(self) -> str:
        verdict = "no row of the condition is left" if self.proven else "NOT PROVEN"
        removed = (counted(self.rows_deleted, "row"), counted(self.snapshots_expired, "snapshot"))
        lines = [
            f"Erasure on {self.table} ({self.table_uuid}), finished {self.finished_at}",
            f"  {removed[0]} deleted, {removed[1]} expired, {counted(self.files_removed, 'file')} removed",
            f"  {counted(self.files_searched, 'remaining file')} searched: {verdict}",
        ]
        lines += [f"  dropped: {each}" for each in self.refs_dropped]
        lines += [f"  remains: {each.where}: {each.why}" for each in self.remaining]
        lines += [f"  out of reach: {each}" for each in self.outside]
        return "\n".join((*lines, f"  digest {self.digest}"))


def holding(searcher: Searcher, refs: Mapping[str, Mapping[str, Any]]) -> tuple[list[int], list[str]]:
    """The snapshots that hold rows of the condition, and the tags that keep one of these."""
    found = [each.snapshot_id for each in searcher.metadata.snapshots() if searcher.snapshot_holds(each)]
    tags = [name for name, ref in refs.items() if ref["type"] == "tag" and ref["snapshot-id"] in found]
    return found, tags


def refuse_tags(tags: Sequence[str]) -> None:
    if tags:
        raise InvalidInput(
            f"{counted(len(tags), 'tag')} of the table keep rows of the condition: {', '.join(sorted(tags))}",
            advice="Drop them first, or pass drop_tags=True",
        )


def remove_files(context: ServiceContext, before: TableMetadata) -> int:
    """Delete what the snapshots had that expired since ``before``, with lineage and earlier metadata files."""
    return DeletionRun(context, metadata_age_ms=0).run(unrecorded(context, before)).total


def scrub(context: ServiceContext) -> tuple[str, ...]:
    """Take the condition and keys out of what the catalog keeps; where they may remain all the same."""
    scrubber = context.catalog.scrubber
    if scrubber is None:
        return ("what the catalog's server keeps of earlier versions",)
    return scrubber.scrub(context.head().metadata.uuid)


def searched(context: ServiceContext, searcher: Searcher) -> tuple[int, list[Remaining]]:
    """Search every file below the table's folders, and those that it names elsewhere."""
    head = context.head()
    others = beside(context, head.metadata)
    heads = (head, *others.heads)
    known = known_files(context.storage, heads)
    paths: dict[str, str] = {form: file.file_path for form, file in known.items()}
    for root in dict.fromkeys(own_folders(head.metadata)[:2]):
        form = same_path(root)
        inner = [each for each in others.folders if is_below(each, form)]
        for info in context.storage.list(root):
            path = same_path(info.path)
            if is_below(path, form) and not any(is_below(path, each) for each in inner):
                paths.setdefault(path, info.path)
    found = [Remaining(path, why) for path in paths.values() if (why := searcher.problem(path, known)) is not None]
    log = context.catalog.deletions
    noted = [] if log is None else log.noted(head.metadata.uuid, "", _MOST_SHOWN)
    listed = {each.where for each in found}
    found += [
        Remaining(each.path, "it is to be deleted, and is still there")
        for each in noted
        if each.path not in listed and each.kind is not FileKind.ORPHAN
    ]
    return len(paths), found


def report(
    context: ServiceContext,
    *,
    files_searched: int,
    files_removed: int,
    snapshots_expired: int,
    rows_deleted: int,
    refs_dropped: Sequence[str],
    remaining: Sequence[Remaining],
    outside: Sequence[str],
) -> ErasureReport:
    head = context.head()
    facts: dict[str, Any] = {
        "table": str(context.ident),
        "table_uuid": head.metadata.uuid,
        "proven": not remaining,
        "files_searched": files_searched,
        "files_removed": files_removed,
        "snapshots_expired": snapshots_expired,
        "rows_deleted": rows_deleted,
        "refs_dropped": tuple(refs_dropped),
        "remaining": tuple(remaining),
        "outside": tuple(outside),
        "finished_at": iso(context.runtime.now_ms()),
    }
    digest = hashlib.sha256(orjson.dumps(facts, option=orjson.OPT_SORT_KEYS, default=asdict)).hexdigest()
    return ErasureReport(**facts, digest=digest)
