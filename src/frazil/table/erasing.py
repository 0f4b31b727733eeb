"""The commits of an erasure, and its order (``services/erase.py``)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping

from frazil.commit.manifest_merge import without_removed
from frazil.commit.operations import Kind, Write
from frazil.dml.clean import clean
from frazil.dml.view import Settings, View
from frazil.expr import Filter, parse_filter, with_params
from frazil.format.metadata import MAIN, TableMetadata
from frazil.model import Commit
from frazil.services import erase
from frazil.services.erase import ErasureReport
from frazil.services.reachable import own_folders
from frazil.services.search import Searcher, texts_of
from frazil.table import changes, writes
from frazil.table.begin import begin
from frazil.table.call import Build, Statement
from frazil.table.destination import CommitNow
from frazil.table.options import WriteOptions
from frazil.table.upkeep import remove_orphans, service_context

_FUTURE_MS = 1 << 53
_MOST_ROUNDS = 20
_ORPHANS = dt.timedelta(hours=1)


def erase_rows(
    destination: CommitNow,
    where: str,
    params: Mapping[str, object] | None,
    *,
    drop_tags: bool,
    case_sensitive: bool,
) -> ErasureReport:
    destination.lake.check_writable()
    context = service_context(destination)
    (text,) = with_params(params, where)
    texts = texts_of(where, params)
    before = context.head().metadata
    condition = parse_filter(text, before.schema(), case_sensitive=case_sensitive)
    _, tags = erase.holding(Searcher(context.storage, before, condition), before.refs)
    if not drop_tags:
        erase.refuse_tags(tags)
    for tag in tags:
        changes.drop_tag(tag).run(destination, None, None)
    deleted = [_erase_on(destination, branch, text, condition, case_sensitive) for branch in _branches(before)]
    unexpired = context.head().metadata
    changes.expire_snapshots(_FUTURE_MS, 1).run(destination, None, None)
    removed = erase.remove_files(context, unexpired)
    grace = _ORPHANS if destination.lake.catalog.deletions is not None else dt.timedelta(days=1)
    orphans = remove_orphans(destination, grace, dry_run=False, location=None, on_phase=None)
    for folder in own_folders(before)[:2]:
        # The names of folders may be values of partition columns.
        context.storage.remove_empty_folders(folder)
    outside = erase.scrub(context)
    after = context.head().metadata
    searcher = Searcher(context.storage, after, condition.rebound(after.schema()), texts)
    files, remaining = erase.searched(context, searcher)
    kept = {each.snapshot_id for each in after.snapshots()}
    return erase.report(
        context,
        files_searched=files,
        files_removed=removed + orphans.files_removed,
        snapshots_expired=sum(1 for each in before.snapshots() if each.snapshot_id not in kept),
        rows_deleted=sum(each.rows_deleted for each in deleted),
        refs_dropped=tags,
        remaining=remaining,
        outside=outside,
    )


def _branches(metadata: TableMetadata) -> list[str]:
    return [MAIN, *(name for name, ref in metadata.refs.items() if ref["type"] == "branch" and name != MAIN)]


def _erase_on(destination: CommitNow, branch: str, text: str, where: Filter, case_sensitive: bool) -> Commit:
    """Delete, and take every trace of the rows out of a branch's newest snapshot."""
    deleted = writes.delete(destination, text, "copy-on-write", None, case_sensitive, {"branch": branch})
    _repeated(destination, branch, lambda view, settings: clean(view, settings, where))
    _repeated(destination, branch, _without_removed, is_whole=False)
    return deleted


def _without_removed(view: View, _settings: Settings) -> Write:
    found = without_removed(view.storage, view.runtime, view.metadata, view.branch)
    return found or Write(Kind.REWRITE, view.metadata.uuid, base=view.base, branch=view.branch)


def _repeated(destination: CommitNow, branch: str, build: Build, *, is_whole: bool = True) -> None:
    """Until nothing is left to do: other writers may delete rows meanwhile."""
    options: WriteOptions = {"branch": branch, "engine": "arrow"}
    for _ in range(_MOST_ROUNDS):
        call = begin(destination, "erase", options, {})
        if not destination.run(Statement(call, build, is_whole)).changed:
            return
