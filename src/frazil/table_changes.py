"""Changes of a table that bring no rows: columns, layout, properties, branches and tags.

Each call makes an intent from what the table is now and hands it down. A commit replays it on whatever head it finds,
so changes that do not touch each other both land.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from frazil.commit import binding
from frazil.commit.intents import Intent
from frazil.commit.operations import Identity, MetadataChange
from frazil.commit.retry import Retry
from frazil.errors import InvalidInput
from frazil.format.evolution import Name
from frazil.format.metadata import MAIN, TableMetadata
from frazil.format.properties import checked_properties
from frazil.format.times import Moment, milliseconds
from frazil.model import Commit
from frazil.table_reads import TableReads


class TableChanges(TableReads):
    """The calls, over whatever holds a table: a Table commits at once, a transaction at its end.

    Every one takes ``retry`` and ``commit_id``, which makes it idempotent: sent again, it is found, not applied twice.
    Columns inside structs are named ``"a.b"``, also through lists and maps (``"tags.element.x"`` or ``"tags.x"``); a
    name that has a dot itself goes in back-ticks. Upper and lower case are the same where that is not ambiguous.
    """

    # What a holder has to provide

    def _identity(self, commit_id: str | None, verb: str, **parameters: object) -> Identity:
        raise NotImplementedError

    def _find(self, identity: Identity, metadata: TableMetadata, branch: str) -> Commit | None:
        """The earlier commit with this id. Refuses where nothing may be written."""
        raise NotImplementedError

    def _change(self, change: MetadataChange, identity: Identity, base: TableMetadata, retry: Retry | None) -> Commit:
        """Commit a change that was made on ``base``, or keep it for later."""
        raise NotImplementedError

    def _make(
        self,
        verb: str,
        parameters: Mapping[str, object],
        make: Callable[[TableMetadata], Intent],
        retry: Retry | None,
        commit_id: str | None,
        branch: str = MAIN,
    ) -> Commit:
        if retry is not None and not isinstance(retry, Retry):
            raise InvalidInput(f"retry must be a frazil.Retry, not {retry!r}", advice="For instance Retry(tries=5)")
        base = self._metadata()
        # Named by the call, not by the intent: once a rename has landed, there is no intent to be made of it again.
        named = {key: value if isinstance(value, Mapping) else repr(value) for key, value in parameters.items()}
        identity = self._identity(commit_id, verb, **named)
        found = self._find(identity, base, branch)
        if found is not None:
            return found
        change = MetadataChange(base.uuid, make(base), name=verb.replace("_", " "))
        return self._change(change, identity, base, retry)

    # Columns

    def add_column(
        self,
        name: Name,
        type: object,  # noqa: A002 - as people say it
        *,
        after: Name | None = None,
        first: bool = False,
        doc: str | None = None,
        required: bool = False,
        retry: Retry | None = None,
        commit_id: str | None = None,
    ) -> Commit:
        """Add an optional column, last unless ``first`` or ``after`` another. Its type: Spark DDL, Arrow, PyIceberg.

        A column of this name and type is as good as added; of another type it is refused. Different columns commute.
        """
        return self._make(
            "add_column",
            {"name": name, "type": str(type), "after": after, "first": first, "doc": doc},
            lambda base: binding.make_add_column(
                base, name, type, doc=doc, required=required, first=first, after=after
            ),
            retry,
            commit_id,
        )

    def drop_column(self, *names: Name, retry: Retry | None = None, commit_id: str | None = None) -> Commit:
        """Drop columns. Rows keep them in files, and nothing reads them; a new column of the name starts empty."""
        return self._make(
            "drop_column", {"names": names}, lambda base: binding.make_drop_columns(base, names), retry, commit_id
        )

    def rename_column(self, old: Name, new: str, *, retry: Retry | None = None, commit_id: str | None = None) -> Commit:
        """Give a column another name inside its struct; ``new`` is that name alone."""
        return self._make(
            "rename_column",
            {"old": old, "new": new},
            lambda base: binding.make_rename_column(base, old, new),
            retry,
            commit_id,
        )

    def widen_column(
        self,
        name: Name,
        type: object,  # noqa: A002 - as people say it
        *,
        retry: Retry | None = None,
        commit_id: str | None = None,
    ) -> Commit:
        """Let a column hold more: int to long, float to double, decimals with more digits before the point."""
        return self._make(
            "widen_column",
            {"name": name, "type": str(type)},
            lambda base: binding.make_widen_column(base, name, type),
            retry,
            commit_id,
        )

    def move_column(
        self,
        name: Name,
        *,
        first: bool = False,
        after: Name | None = None,
        before: Name | None = None,
        retry: Retry | None = None,
        commit_id: str | None = None,
    ) -> Commit:
        """Move a column among its siblings."""
        return self._make(
            "move_column",
            {"name": name, "first": first, "after": after, "before": before},
            lambda base: binding.make_move_column(base, name, first=first, after=after, before=before),
            retry,
            commit_id,
        )

    def make_optional(self, name: Name, *, retry: Retry | None = None, commit_id: str | None = None) -> Commit:
        """Let a required column be null from now on. There is no way back."""
        return self._make(
            "make_optional", {"name": name}, lambda base: binding.make_make_optional(base, name), retry, commit_id
        )

    def set_column_doc(
        self, name: Name, doc: str | None, *, retry: Retry | None = None, commit_id: str | None = None
    ) -> Commit:
        """Set a column's comment; None takes it away."""
        return self._make(
            "set_column_doc",
            {"name": name, "doc": doc},
            lambda base: binding.make_set_doc(base, name, doc),
            retry,
            commit_id,
        )

    def set_keys(self, names: Sequence[Name], *, retry: Retry | None = None, commit_id: str | None = None) -> Commit:
        """Say which columns identify a row, for upserts; each must be required. No names: the table has no keys."""
        return self._make(
            "set_keys", {"names": names}, lambda base: binding.make_set_keys(base, names), retry, commit_id
        )

    # Layout

    def set_partitioning(
        self, partition_by: Sequence[str], *, retry: Retry | None = None, commit_id: str | None = None
    ) -> Commit:
        """Partition new files by ``["day(ts)", "bucket(16, id)"]``; files that are there stay as they are."""
        return self._make(
            "set_partitioning",
            {"partition_by": partition_by},
            lambda base: binding.make_set_partitioning(base, partition_by),
            retry,
            commit_id,
        )

    def set_sort_order(
        self, sort_by: Sequence[str], *, retry: Retry | None = None, commit_id: str | None = None
    ) -> Commit:
        """Sort the rows of new files by ``["ts desc", "id"]``; no terms: unsorted."""
        return self._make(
            "set_sort_order",
            {"sort_by": sort_by},
            lambda base: binding.make_set_sort_order(base, sort_by),
            retry,
            commit_id,
        )

    # Properties

    def set_properties(
        self, properties: Mapping[str, str], *, retry: Retry | None = None, commit_id: str | None = None
    ) -> Commit:
        """Set table properties. Different keys commute; on one key the last writer wins."""
        updates = checked_properties(properties)
        return self._make(
            "set_properties",
            {"properties": updates},
            lambda base: binding.make_property_change(base, updates),
            retry,
            commit_id,
        )

    def remove_properties(self, *keys: str, retry: Retry | None = None, commit_id: str | None = None) -> Commit:
        """Remove table properties; those that are not there are no matter."""
        return self._make(
            "remove_properties",
            {"keys": keys},
            lambda base: binding.make_property_change(base, removals=keys),
            retry,
            commit_id,
        )

    # History

    def expire_snapshots(
        self,
        older_than: Moment | None = None,
        retain_last: int | None = None,
        *,
        retry: Retry | None = None,
        commit_id: str | None = None,
    ) -> Commit:
        """Forget snapshots older than a moment, with the last ``retain_last`` of every branch kept.

        No file is deleted: the table stops naming them, and what nothing names is for orphan removal. By default the
        table's ``history.expire.*`` properties decide (5 days, 1 snapshot); a branch's or tag's own rule wins. What a
        branch or a tag names when the commit lands is kept, whoever made it meanwhile.
        """
        limit = None if older_than is None else milliseconds(older_than, "older_than")
        return self._make(
            "expire_snapshots",
            {"older_than": limit, "retain_last": retain_last},
            lambda base: binding.make_expire_snapshots(base, limit, retain_last),
            retry,
            commit_id,
        )

    # Branches and tags

    def create_branch(
        self,
        name: str,
        snapshot: int | str | None = None,
        *,
        max_ref_age_ms: int | None = None,
        max_snapshot_age_ms: int | None = None,
        min_snapshots_to_keep: int | None = None,
        retry: Retry | None = None,
        commit_id: str | None = None,
    ) -> Commit:
        """Start a branch at a snapshot, or where another branch or tag is; by default at the head of main."""
        retention = {
            "max_ref_age_ms": max_ref_age_ms,
            "max_snapshot_age_ms": max_snapshot_age_ms,
            "min_snapshots_to_keep": min_snapshots_to_keep,
        }
        return self._make(
            "create_branch",
            {"name": name, "snapshot": snapshot, **retention},
            lambda base: binding.make_new_ref(base, name, "branch", snapshot, **retention),
            retry,
            commit_id,
        )

    def create_tag(
        self,
        name: str,
        snapshot: int | str | None = None,
        *,
        max_ref_age_ms: int | None = None,
        retry: Retry | None = None,
        commit_id: str | None = None,
    ) -> Commit:
        """Name a snapshot, by default the head of main."""
        return self._make(
            "create_tag",
            {"name": name, "snapshot": snapshot, "max_ref_age_ms": max_ref_age_ms},
            lambda base: binding.make_new_ref(base, name, "tag", snapshot, max_ref_age_ms=max_ref_age_ms),
            retry,
            commit_id,
        )

    def drop_branch(self, name: str, *, retry: Retry | None = None, commit_id: str | None = None) -> Commit:
        """Drop a branch. If somebody commits to it meanwhile, it stays, and this is a ConflictError."""
        return self._make(
            "drop_branch",
            {"name": name},
            lambda base: binding.make_remove_ref(base, name, "branch"),
            retry,
            commit_id,
        )

    def drop_tag(self, name: str, *, retry: Retry | None = None, commit_id: str | None = None) -> Commit:
        return self._make(
            "drop_tag", {"name": name}, lambda base: binding.make_remove_ref(base, name, "tag"), retry, commit_id
        )

    def fast_forward(
        self, branch: str, to: int | str, *, retry: Retry | None = None, commit_id: str | None = None
    ) -> Commit:
        """Move a branch on to what was built on top of it, such as main to an audited branch.

        Whoever commits to ``branch`` meanwhile makes it a ConflictError: nothing is overwritten.
        """
        return self._make(
            "fast_forward",
            {"branch": branch, "to": to},
            lambda base: binding.make_fast_forward(base, branch, to),
            retry,
            commit_id,
            branch,
        )

    def rollback_to(
        self, snapshot: int | str, *, branch: str = MAIN, retry: Retry | None = None, commit_id: str | None = None
    ) -> Commit:
        """Take a branch back to an earlier snapshot of its own history, named by its id or by a tag.

        Whoever commits meanwhile makes it a ConflictError: nobody's rows are rolled back unseen.
        """
        return self._make(
            "rollback_to",
            {"snapshot": snapshot, "branch": branch},
            lambda base: binding.make_rollback(base, snapshot, branch),
            retry,
            commit_id,
            branch,
        )

    def set_current_snapshot(
        self, snapshot: int | str, *, branch: str = MAIN, retry: Retry | None = None, commit_id: str | None = None
    ) -> Commit:
        """Let a branch name any snapshot of the table, also one outside its history."""
        return self._make(
            "set_current_snapshot",
            {"snapshot": snapshot, "branch": branch},
            lambda base: binding.make_set_current(base, snapshot, branch),
            retry,
            commit_id,
            branch,
        )
