"""Half of a commit to several tables: what a catalog leaves behind that is not atomic over tables.

Catalogs that keep commit ids in the swap's own transaction cannot leave one. The others record the id with each table
that is written to, so that a table without it gives the half away.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from frazil.catalog.base import Catalog, Head
from frazil.catalog.records import find_record, keeps_since
from frazil.commit.unit import CommitUnit
from frazil.errors import NoSuchTable, PartlyCommitted
from frazil.model import Commit, Ident
from frazil.wording import listed


def check_whole(catalog: Catalog, unit: CommitUnit, heads: Mapping[Ident, Head], done: Mapping[Ident, Commit]) -> None:
    """Raises PartlyCommitted if a commit that was found in some of its tables is certainly not in the others.

    ``done``: those that it was found in. A commit with the same id that may have had other tables proves nothing.
    """
    written = {each.ident: heads[each.ident] for each in unit.written}
    records = (find_record(written[ident].metadata, unit.identity.commit_id) for ident in done)
    is_own = any(each.has_landed_in(written[each.ident].metadata) for each in unit.written)
    if is_own or any(each is not None and each.digest == unit.identity.digest for each in records):
        check_tables(catalog, unit.identity.commit_id, written, done)


def check_tables(catalog: Catalog, commit_id: str, heads: Mapping[Ident, Head], done: Mapping[Ident, Commit]) -> None:
    """The same of a commit to exactly these tables."""
    if catalog.capabilities.records_commit_ids or len(done) == len(heads):
        return
    found = (heads[ident].metadata.snapshot(commit.snapshot_id or 0) for ident, commit in done.items())
    since_ms = min((each.timestamp_ms for each in found if each is not None), default=0)
    # The heads were read one after the other: the commit may have landed in between.
    missing = [ident for ident in heads if ident not in done and _is_missing(catalog, ident, commit_id, since_ms)]
    if missing:
        raise half_error(commit_id, tuple(done), missing, "its id is recorded with some of its tables only")


def _is_missing(catalog: Catalog, ident: Ident, commit_id: str, since_ms: int) -> bool:
    try:
        metadata = catalog.load(ident).metadata
    except NoSuchTable:
        return True
    return find_record(metadata, commit_id) is None and keeps_since(metadata, since_ms)


def half_error(commit_id: str, landed: Sequence[Ident], missing: Sequence[Ident], cause: str) -> PartlyCommitted:
    has, lacks = [str(each) for each in landed], [str(each) for each in missing]
    return PartlyCommitted(
        f"Half of this transaction was committed: {listed(has)} {_have(has)} it, {listed(lacks)} {_have(lacks)} not",
        commit_id=commit_id,
        committed=tuple(has),
        missing=tuple(lacks),
        evidence=f"The catalog is not atomic over tables; {cause}",
        advice=f"Nothing was deleted, and the call must not be repeated as it is. Find the snapshots of the commit "
        f"{commit_id} in history(), and either undo {'these' if len(has) > 1 else 'this one'} with rollback_to() or "
        f"commit to {listed(lacks)} what is missing there. Do not use transactions over several tables on this catalog",
    )


def _have(names: Sequence[str]) -> str:
    return "have" if len(names) > 1 else "has"
