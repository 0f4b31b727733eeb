"""One commit to several tables of a REST catalog: ``POST /v1/{prefix}/transactions/commit`` (rule P40).

Tables that are written to bring requirements and updates, tables that the commit depends on requirements alone. A
server that is atomic over tables compares all of them and applies all or nothing. Not every server is: Iceberg's
reference implementation checks all tables and then commits them one after the other, and drops the change of a table
that has moved in between, with a success for an answer. So the heads are read again after every answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pydantic
from pyiceberg.table import CommitTableRequest, Namespace, TableIdentifier
from pyiceberg.table.update import TableRequirement, TableUpdate

from frazil.catalog.base import Committed, Guard, Head, Outcome, Prepared, Stale, Unknown
from frazil.catalog.foreign_errors import Failure, Wording, failure
from frazil.catalog.foreign_outcomes import Trace, is_fenced, is_new, trace_of
from frazil.errors import FrazilError, NoSuchTable, Unsupported
from frazil.model import Ident
from frazil.runtime import Runtime
from frazil.wording import listed

Heads = Mapping[Ident, Head | None]

UPDATES: pydantic.TypeAdapter[tuple[TableUpdate, ...]] = pydantic.TypeAdapter(tuple[TableUpdate, ...])
REQUIREMENTS: pydantic.TypeAdapter[tuple[TableRequirement, ...]] = pydantic.TypeAdapter(tuple[TableRequirement, ...])

_LOOKS = 5
"""How often tables without the commit are read again while others have it, before it is called half applied."""
_FIRST_WAIT_S = 0.05
_BAD_REQUEST = (400, 404, 405, 406, 422, 501)


class TransactionClient(Protocol):
    """A PyIceberg catalog that commits to several tables."""

    def commit_tables(self, changes: Sequence[CommitTableRequest]) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class TableTransaction:
    """The commit, and what became of it."""

    client: TransactionClient
    load: Callable[[Ident], Head]
    runtime: Runtime
    wording: Wording
    prepared: tuple[Prepared, ...]
    guards: tuple[Guard, ...]

    def run(self) -> Outcome:
        changes = [_change(each.ident, each.proposal.requirements, each.proposal.updates) for each in self.prepared]
        changes += [_change(each.ident, each.requirements) for each in self.guards]
        try:
            self.client.commit_tables(changes)
        except Exception as error:  # noqa: BLE001 - whatever it is, the commit may have succeeded before (rule P30)
            return self._found_out(failure(error, self.wording, self._subject), error)
        return self._confirmed()

    @property
    def _subject(self) -> str:
        tables: list[Prepared | Guard] = [*self.prepared, *self.guards]
        return listed([str(each.ident) for each in tables])

    # What an answer meant

    def _confirmed(self) -> Outcome:
        """The server says that all of it is committed."""
        try:
            heads, traces = self._settled(self._heads(self.prepared), is_expected=True)
        except FrazilError:
            # The answer is the only evidence there is.
            return Committed("")
        if self._without(traces):
            if Trace.LANDED in traces.values():
                return self._half("the server said that all of it was committed", traces)
            moved = self._moved(heads)
            return Unknown("The server said that it was committed, and no table has it") if moved is None else moved
        return self._committed(heads)

    def _found_out(self, failed: Failure, error: Exception) -> Outcome:
        try:
            heads, traces = self._settled(self._heads((*self.guards, *self.prepared)))
        except FrazilError as unreadable:
            if failed.answered and failed.error is not None:
                raise failed.error from error
            return Unknown(f"{failed.cause}; then the tables could not be read: {unreadable.problem}")
        if Trace.LANDED in traces.values():
            return self._half(failed.cause, traces) if self._without(traces) else self._committed(heads)
        return self._absent(failed, error, heads, traces)

    def _absent(self, failed: Failure, error: Exception, heads: Heads, traces: Mapping[Ident, Trace]) -> Outcome:
        """No table has it."""
        if Trace.UNCLEAR in traces.values():
            return Unknown(f"{failed.cause}; what would show the commit may have expired")
        moved = self._moved(heads)
        if failed.answered and moved is not None:
            return moved
        is_whole = Trace.GONE not in traces.values()
        if is_whole and moved is not None and is_fenced(self.prepared, self.guards, heads):
            return moved
        if failed.error is not None:
            raise self._refusal(failed, error) from error
        # A request that changes nothing leaves nothing to find out.
        return Unknown(failed.cause) if self.prepared else Stale(None)

    def _refusal(self, failed: Failure, error: Exception) -> FrazilError:
        made = [str(each.ident) for each in self.prepared if is_new(each)]
        assert failed.error is not None
        if not made or failed.status not in _BAD_REQUEST:
            return failed.error
        return Unsupported(
            f"{self.wording.catalog} does not create {listed(made)} in a transaction",
            evidence=self.wording.text(error),
            advice="Nothing was committed. Create the table first: lake.create_table(…); then write to it in a "
            "transaction",
        )

    def _committed(self, heads: Heads) -> Committed:
        first = heads.get(self.prepared[0].ident) if self.prepared else None
        return Committed("" if first is None else first.location)

    def _moved(self, heads: Heads) -> Stale | None:
        """A table that is not where this commit was made for it."""
        expected = [(each.ident, each.head.location) for each in self.prepared]
        expected += [(each.ident, each.location) for each in self.guards]
        for ident, location in expected:
            head = heads.get(ident)
            found = "" if head is None else head.location
            if ident in heads and found != location:
                return Stale(found or None, ident)
        return None

    def _half(self, cause: str, traces: Mapping[Ident, Trace]) -> Unknown:
        landed = tuple(ident for ident, trace in traces.items() if trace is Trace.LANDED)
        return Unknown(cause, landed, self._without(traces))

    # Heads

    def _settled(self, heads: Heads, *, is_expected: bool = False) -> tuple[Heads, dict[Ident, Trace]]:
        """Tables without the commit are read again once another one has it, or should have it.

        The heads are read one after the other: a commit that lands in between is missing from those read first. And a
        server that commits table by table may not have come to its end.
        """
        traces = self._traces(heads)
        for n in range(_LOOKS):
            missing = self._without(traces)
            if not missing or not (is_expected or Trace.LANDED in traces.values()):
                break
            if n:
                self.runtime.sleep(_FIRST_WAIT_S * 2**n * (0.5 + self.runtime.random()))
            heads = {**heads, **{ident: self._head(ident) for ident in missing}}
            traces = self._traces(heads)
        return heads, traces

    def _traces(self, heads: Heads) -> dict[Ident, Trace]:
        return {each.ident: trace_of(each, heads[each.ident]) for each in self.prepared}

    @staticmethod
    def _without(traces: Mapping[Ident, Trace]) -> tuple[Ident, ...]:
        return tuple(ident for ident, trace in traces.items() if trace is Trace.ABSENT)

    def _heads(self, tables: Iterable[Prepared | Guard]) -> dict[Ident, Head | None]:
        return {each.ident: self._head(each.ident) for each in tables}

    def _head(self, ident: Ident) -> Head | None:
        try:
            return self.load(ident)
        except NoSuchTable:
            return None


def _change(
    ident: Ident, requirements: Iterable[Mapping[str, Any]], updates: Iterable[Mapping[str, Any]] = ()
) -> CommitTableRequest:
    return CommitTableRequest(
        identifier=TableIdentifier(namespace=Namespace(list(ident.namespace)), name=ident.name),
        requirements=REQUIREMENTS.validate_python(tuple(requirements)),
        updates=UPDATES.validate_python(tuple(updates)),
    )
