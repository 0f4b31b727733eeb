"""Before a statement reads a table: deletes that another engine's rewrite lost are put back (rule P43).

That is a commit of its own, so that the statement finds the rows as they should be. A table without rewrites by other
engines pays for a look at the snapshots that are new since the last statement of this process.
"""

from __future__ import annotations

from frazil import observe
from frazil.commit.loop import commit
from frazil.commit.operations import Identity
from frazil.commit.retry import Retry
from frazil.errors import CommitFailed
from frazil.format.metadata import TableMetadata
from frazil.format.storage import Storage
from frazil.services.resurrection import Returned, returned, write_back
from frazil.table.source import CurrentTable

_TRIES = 4
_MEMO_BYTES = 200


def came_back(storage: Storage, metadata: TableMetadata, branch: str) -> tuple[Returned, ...]:
    """What came back in a branch; looked for in the snapshots that are new since this process looked last."""
    head = metadata.ref_snapshot_id(branch)
    memo = f"guarded {metadata.uuid} {branch}"
    seen: int | None = storage.parsed.get(memo)
    if head is None or head == seen:
        return ()
    found = returned(storage, metadata, branch, seen)
    if not found:
        storage.parsed.put(memo, head, _MEMO_BYTES)
    return found


def guarded(source: CurrentTable, metadata: TableMetadata, branch: str) -> TableMetadata:
    """The version to work on: this one, or the newest after deletes were put back."""
    found = came_back(source.lake.storage, metadata, branch)
    if not found:
        return metadata
    rows = sum(sum(each.rows.values()) for each in found)
    observe.log.warning(
        "%s rows of %s were deleted and came back by snapshot %s of another engine; their deletes are put back",
        rows,
        source.ident,
        found[0].snapshot.snapshot_id,
    )
    runtime = source.lake.runtime
    identity = Identity(str(runtime.new_uuid()), "", given=False, origin=source.lake.origin("restore deletes"))
    try:
        commit(source.lake.commit_context(source.ident), write_back(metadata, branch, found), identity, Retry(_TRIES))
    except CommitFailed as error:
        # Another writer has put them back already, or commits so often that the next statement has to; or what named
        # them has just expired.
        observe.log.info("the deletes of %s were not put back by this statement: %s", source.ident, error.problem)
    return source.metadata()
