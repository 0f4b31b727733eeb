"""A table as the user holds it. It is a name: every call reads the head; only a Scan pins a snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from frazil.commit.loop import Identity, OnPhase, commit, find_commit
from frazil.commit.operations import MetadataChange, Operation, Write, digest
from frazil.commit.retry import Retry, from_properties
from frazil.errors import InvalidInput
from frazil.format.metadata import TableMetadata
from frazil.format.storage import Storage
from frazil.model import Commit, Ident
from frazil.runtime import Runtime
from frazil.verbs import Call, Verbs

if TYPE_CHECKING:
    from frazil.lake import Lake


class Table(Verbs):
    """A table of a lake. Safe to share between threads; pickles as a name that opens its lake again."""

    def __init__(self, lake: Lake, ident: Ident) -> None:
        self._lake = lake
        self._ident = ident

    @property
    def name(self) -> str:
        return str(self._ident)

    def __repr__(self) -> str:
        return f"Table({self.name!r} in {self._lake.uri})"

    @property
    def metadata_location(self) -> str:
        return self._lake.catalog.load(self._ident).location

    def pyiceberg(self) -> Any:
        """The same table as PyIceberg's, for everything that is not here yet."""
        return self._lake.pyiceberg().load_table((*self._ident.namespace, self._ident.name))

    # Inner workings

    @property
    def _storage(self) -> Storage:
        return self._lake.storage

    @property
    def _runtime(self) -> Runtime:
        return self._lake.runtime

    def _metadata(self) -> TableMetadata:
        return self._lake.catalog.load(self._ident).metadata

    def _identity(self, commit_id: str | None, verb: str, **parameters: object) -> Identity:
        if commit_id is not None and (not isinstance(commit_id, str) or not commit_id.strip() or len(commit_id) > 200):
            raise InvalidInput(f"commit_id must be a text of 1 to 200 characters, not {commit_id!r}")
        return Identity(
            commit_id=commit_id if commit_id is not None else str(self._lake.runtime.new_uuid()),
            digest=digest(verb, **parameters),
            given=commit_id is not None,
        )

    def _find(self, identity: Identity, metadata: TableMetadata, branch: str) -> Commit | None:
        self._lake.check_writable()
        return find_commit(self._lake.catalog, metadata, identity, branch) if identity.given else None

    def _finish(self, call: Call, write: Write) -> Commit:
        before = () if write.is_empty else call.before
        done = self._commit([*before, write], call.identity, call.retry, call.on_phase)
        return replace(done, elapsed=self._lake.runtime.monotonic() - call.started)

    def _prepare(self, call: Call, change: MetadataChange) -> TableMetadata:
        self._commit([change], self._identity(None, change.name), call.retry, None)
        return self._metadata()

    def _change(self, change: MetadataChange, identity: Identity, base: TableMetadata, retry: Retry | None) -> Commit:
        return self._commit([change], identity, retry or _default_retry(base), None)

    def _commit(
        self, operations: Sequence[Operation], identity: Identity, retry: Retry, on_phase: OnPhase | None
    ) -> Commit:
        return commit(self._lake.commit_context(self._ident, on_phase), operations, identity, retry)


def _default_retry(metadata: TableMetadata) -> Retry:
    # A bad commit.retry.* property must not stop the very change that sets it right.
    try:
        return from_properties(metadata.properties)
    except InvalidInput:
        return Retry()
