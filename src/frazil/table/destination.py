"""Where the operations of a table's verbs go: into a commit at once (here), or into a transaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Protocol, TypeVar

from frazil.commit.context import OnPhase
from frazil.commit.loop import commit
from frazil.commit.operations import Identity, MetadataChange, Operation, Write, digest
from frazil.commit.results import find_commit
from frazil.commit.retry import Retry, from_properties
from frazil.commit.unit import EvaluatedStatement
from frazil.errors import ConflictError, InvalidInput
from frazil.format.metadata import MAIN, TableMetadata
from frazil.model import Commit, Ident
from frazil.services.after_commit import after_commit
from frazil.services.execution import recorded
from frazil.services.progress import NoProgress, ServiceProgress
from frazil.services.registry import outcome_of
from frazil.table.call import Statement
from frazil.table.guard import came_back, guarded
from frazil.table.options import WriteOptions, checked_commit_id
from frazil.table.source import CurrentTable, Source

if TYPE_CHECKING:
    from frazil.lake import Lake

Result = TypeVar("Result")


class Destination(Protocol):
    """Where a verb's operation goes. The verbs themselves are the same for every destination."""

    @property
    def source(self) -> Source:
        """The table, and the version that statements are evaluated on."""
        ...

    def accept(self, verb: str, given: WriteOptions) -> WriteOptions:
        """The options of a call, with those that the destination decides.

        Raises InvalidInput or Unsupported for a verb or an option that this destination does not take.
        """
        ...

    def identify(
        self, commit_id: str | None, verb: str, parameters: Mapping[str, object], metadata: TableMetadata, branch: str
    ) -> tuple[Identity, Commit | None]:
        """The identity of a call, and the earlier commit with the same id. Raises if nothing may be written."""
        ...

    def run(self, statement: Statement) -> Commit:
        """Evaluate a statement, and commit its write or keep it."""
        ...

    @property
    def is_atomic(self) -> bool:
        """All calls together are one commit."""
        ...

    def change(
        self,
        change: MetadataChange,
        base: TableMetadata,
        *,
        identity: Identity | None = None,
        retry: Retry | None = None,
        reads: Sequence[Write] = (),
    ) -> Commit:
        """Commit a metadata change that was made on ``base``, or keep it. ``identity`` None: it gets a new one.

        ``reads``: the rows that the change depends on, as writes that change nothing and are only checked.
        """
        ...


def recorded_service(
    destination: Destination,
    verb: str,
    run: Callable[[ServiceProgress], Result],
    progress: ServiceProgress | None = None,
) -> Result:
    """Run a service that was called by hand, and keep it in the timeline if it commits by itself.

    All its commits are one action. ``progress``: the caller's, which is told instead of the timeline.
    """
    told = progress or NoProgress()
    if not isinstance(destination, CommitNow):
        return run(told)
    with recorded(destination.lake, destination.ident, verb) as action:
        done = run(told if action is None or progress is not None else action)
        if action is not None:
            action.complete(outcome_of(done))
    return done


@dataclass(frozen=True, slots=True)
class CommitNow:
    """Every call is a commit of its own."""

    lake: Lake
    ident: Ident
    is_atomic: ClassVar[bool] = False

    @property
    def source(self) -> CurrentTable:
        return CurrentTable(self.lake, self.ident)

    def accept(self, verb: str, given: WriteOptions) -> WriteOptions:  # noqa: ARG002 - it takes every verb
        return given

    def identify(
        self, commit_id: str | None, verb: str, parameters: Mapping[str, object], metadata: TableMetadata, branch: str
    ) -> tuple[Identity, Commit | None]:
        given = checked_commit_id(commit_id)
        identity = Identity(
            commit_id=str(self.lake.runtime.new_uuid()) if given is None else given,
            digest=digest(verb, **parameters),
            given=given is not None,
            origin=self.lake.origin(verb),
        )
        self.lake.check_writable()
        found = find_commit(self.lake.catalog, metadata, identity, branch) if identity.given else None
        return identity, found

    def run(self, statement: Statement) -> Commit:
        try:
            return self._run(statement)
        except ConflictError:
            branch, newest = statement.call.view.branch, self.source.metadata()
            is_broken = bool(came_back(self.lake.storage, newest, branch))
            if not (is_broken and statement.is_whole and statement.call.on_conflict == "redo"):
                raise
        # Another engine's rewrite brought rows back while it ran: evaluated again once they are gone (rule P43).
        return self._run(replace(statement, call=statement.call.on(guarded(self.source, newest, branch))))

    def _run(self, statement: Statement) -> Commit:
        call = statement.call
        with self.lake.staging.staging(call.view.metadata, at_once=call.engine.name == "spark"):
            evaluated = statement.evaluated()
            write = evaluated.write
            operations: list[Operation] = [*(() if write.is_empty else call.before), write]
            redoable = evaluated if evaluated.can_be_redone else None
            done = self._commit(operations, call.identity, call.retry, call.on_phase, redoable)
        verb = None if call.identity.origin is None else call.identity.origin.verb
        after_commit(self.lake, self.ident, call.view.metadata, verb)
        return replace(done, elapsed=self.lake.runtime.monotonic() - call.started, engine=call.engine.name)

    def change(
        self,
        change: MetadataChange,
        base: TableMetadata,
        *,
        identity: Identity | None = None,
        retry: Retry | None = None,
        reads: Sequence[Write] = (),
    ) -> Commit:
        own = identity or self.identify(None, change.name, {}, base, MAIN)[0]
        return self._commit([*reads, change], own, retry or _default_retry(base), None)

    def _commit(
        self,
        operations: Sequence[Operation],
        identity: Identity,
        retry: Retry,
        on_phase: OnPhase | None,
        statement: EvaluatedStatement | None = None,
    ) -> Commit:
        return commit(self.lake.commit_context(self.ident, on_phase), operations, identity, retry, statement)


@dataclass(frozen=True, slots=True)
class Refuse:
    """A table that can only be read."""

    source: Source
    is_atomic: ClassVar[bool] = True

    def accept(self, *_given: Any, **_named: Any) -> NoReturn:
        raise InvalidInput(
            f"This is {self.source.ident} as it was at one instant, which can only be read",
            advice="Write to lake.table(…)",
        )

    identify = run = change = accept


def _default_retry(metadata: TableMetadata) -> Retry:
    # An invalid commit.retry.* property must not stop the very change that corrects it.
    try:
        return from_properties(metadata.properties)
    except InvalidInput:
        return Retry()
