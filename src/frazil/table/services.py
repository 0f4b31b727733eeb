"""The services of a table: each plans from the newest version, and commits through the table's destination."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from frazil.commit.operations import Write
from frazil.dml.curves import MOST_COLUMNS
from frazil.dml.rewrite import Ordering
from frazil.dml.view import Settings, View
from frazil.errors import InvalidInput, Unsupported
from frazil.expr import Filter, parse_filter
from frazil.format.metadata import TableMetadata
from frazil.format.partitions import parse_sort, source_path
from frazil.model import Commit
from frazil.services import manifests
from frazil.services.compaction import Build, Compacted, Compaction, CompactionPlan, checked_strategy
from frazil.services.delete_files import plan_regroup, plan_resolve, regrouped, resolving
from frazil.services.leases import Claim
from frazil.services.options import delete_options, rewrite_options
from frazil.services.policy import CLUSTER, COMPACT, MANIFESTS, RESOLVE, REWRITE_DELETES
from frazil.services.progress import ServiceProgress
from frazil.table.begin import begin
from frazil.table.call import Call, Statement
from frazil.table.destination import Destination, recorded_service
from frazil.table.options import WriteOptions

Terms = Sequence[str] | str | None


@dataclass(slots=True)
class ServiceCommits:
    """The commits of one call of a service: each is a call of its own, on the newest version."""

    destination: Destination
    verb: str
    options: WriteOptions
    first: Call
    is_shared: bool = False
    """Other services may take a part of the work. A given commit id is that of the first commit then, and the others
    have it with a number.
    """
    is_whole: bool = True
    """A conflict evaluates it again on the newest version."""
    _begun: int = 0

    @property
    def is_atomic(self) -> bool:
        """A given commit id names one commit."""
        return self.destination.is_atomic or (self.first.identity.given and not self.is_shared)

    def view(self) -> View:
        if not self._begun:
            return self.first.view
        return replace(self.first.view, metadata=self.destination.source.metadata())

    def commit(self, build: Build) -> Commit:
        call = self.first
        if self._begun:
            again = {name: each for name, each in self.options.items() if name != "commit_id"}
            if call.identity.given:
                again["commit_id"] = f"{call.identity.commit_id}-{self._begun}"
            call = _named(begin(self.destination, "compact", cast("WriteOptions", again), {}), self.verb)
        self._begun += 1
        return self.destination.run(Statement(call, build, self.is_whole))


def compact(
    destination: Destination,
    where: str | None,
    strategy: str,
    by: Terms,
    options: WriteOptions,
    progress: ServiceProgress | None = None,
    claim: Claim | None = None,
) -> Commit:
    """A commit; of several the last one, with the counts of all."""
    verb = COMPACT if strategy == "binpack" else CLUSTER
    call = _named(begin(destination, "compact", options, _parameters(where, strategy, by)), verb)
    compaction = _compaction(call, where, strategy, by)
    if call.found is not None:
        return call.found
    if call.dry_run:
        planned = compaction.plan(call.view)
        return replace(call.preview(0), files_removed=planned.files)
    commits = ServiceCommits(destination, verb, options, call, is_shared=claim is not None)
    return recorded_service(destination, verb, lambda told: compaction.run(commits, told, claim).commit, progress)


def compacted(
    destination: Destination, where: str | None, strategy: str, by: Terms, options: WriteOptions
) -> Compacted:
    """The same with everything that it did, for procedures."""
    verb = COMPACT if strategy == "binpack" else CLUSTER
    call = _named(begin(destination, "compact", options, _parameters(where, strategy, by)), verb)
    compaction, commits = _compaction(call, where, strategy, by), ServiceCommits(destination, verb, options, call)
    return recorded_service(destination, verb, lambda told: compaction.run(commits, told))


def compaction_plan(
    destination: Destination, where: str | None, strategy: str, by: Terms, options: WriteOptions
) -> CompactionPlan:
    """What a compaction would do now. Nothing is written."""
    call = begin(destination, "compact", options, _parameters(where, strategy, by))
    return _compaction(call, where, strategy, by).plan(call.view)


def resolve_deletes(
    destination: Destination, where: str | None, options: WriteOptions, progress: ServiceProgress | None = None
) -> Commit:
    """Equality deletes become position deletes."""
    call = _service(destination, RESOLVE, options, {"where": where})
    chosen = _condition(where, call.view.metadata)
    if call.found is not None:
        return call.found
    if call.dry_run:
        return replace(call.preview(0), files_removed=len(plan_resolve(call.view, chosen).replaced))

    def build(view: View, settings: Settings) -> Write:
        return call.engine.resolve(view, settings, resolving(view, chosen))

    if progress is not None:
        progress.planned(plan_resolve(call.view, chosen).to_dict())
    return _recorded(destination, RESOLVE, Statement(call, build, True), progress)


def rewrite_position_deletes(
    destination: Destination, where: str | None, options: WriteOptions, progress: ServiceProgress | None = None
) -> Commit:
    """One position delete file for each data file in place of several."""
    call = _service(destination, REWRITE_DELETES, options, {"where": where})
    chosen, how = _condition(where, call.view.metadata), delete_options(call.settings.options)
    if call.found is not None:
        return call.found
    if call.dry_run:
        planned = plan_regroup(call.view, chosen, how.min_input_files, every=how.rewrite_all)
        return replace(call.preview(0), files_removed=len(planned.replaced))

    def build(view: View, settings: Settings) -> Write:
        return regrouped(view, settings, chosen, how.min_input_files, every=how.rewrite_all)

    if progress is not None:
        progress.planned(plan_regroup(call.view, chosen, how.min_input_files, every=how.rewrite_all).to_dict())
    return _recorded(destination, REWRITE_DELETES, Statement(call, build, True), progress)


def rewrite_manifests(
    destination: Destination,
    spec_id: int | None,
    sort_by: Sequence[str],
    options: WriteOptions,
    progress: ServiceProgress | None = None,
) -> Commit:
    """Manifests clustered by partition, of the target size."""
    fields = [sort_by] if isinstance(sort_by, str) else list(sort_by)
    call = _service(destination, MANIFESTS, options, {"spec_id": spec_id, "sort_by": fields})
    planned = manifests.plan(call.view, spec_id, fields)
    if call.found is not None:
        return call.found
    if call.dry_run:
        return replace(call.preview(0), files_removed=planned.replaced)

    def build(view: View, settings: Settings) -> Write:
        return manifests.rewrite(view, settings, spec_id, fields)

    if progress is not None:
        progress.planned(planned.to_dict())
    return _recorded(destination, MANIFESTS, Statement(call, build, True), progress)


def _recorded(destination: Destination, verb: str, statement: Statement, progress: ServiceProgress | None) -> Commit:
    """Run a service with one part."""

    def run(told: ServiceProgress) -> Commit:
        done = destination.run(statement)
        told.advanced(1, 1, {"snapshot_id": done.snapshot_id, "files": done.files_removed})
        return done

    return recorded_service(destination, verb, run, progress)


def _service(destination: Destination, verb: str, options: WriteOptions, parameters: Mapping[str, object]) -> Call:
    named = verb.replace(" ", "_")
    return _named(begin(destination, named, options, parameters), verb)


def _parameters(where: str | None, strategy: str, by: Terms) -> Mapping[str, object]:
    """What identifies a call. A bin-packing is what earlier versions made of it."""
    return {"where": where} if strategy == "binpack" else {"where": where, "strategy": strategy, "by": by}


def _named(call: Call, verb: str) -> Call:
    origin = call.identity.origin
    if origin is None or origin.verb == verb:
        return call
    return replace(call, identity=replace(call.identity, origin=replace(origin, verb=verb)))


def _compaction(call: Call, where: str | None, strategy: str, by: Terms) -> Compaction:
    metadata = call.view.metadata
    ordering = _ordering(metadata, checked_strategy(strategy), by)
    options: Mapping[str, Any] = call.settings.options
    chosen = rewrite_options(options, metadata.properties, metadata.specs(), is_ordered=ordering is not None)
    return Compaction(call.engine.rewrite, chosen, _condition(where, metadata), ordering)


def _condition(where: str | None, metadata: TableMetadata) -> Filter | None:
    return None if where is None else parse_filter(where, metadata.schema())


def _ordering(metadata: TableMetadata, strategy: str, by: Terms) -> Ordering | None:
    schema = metadata.schema()
    if strategy == "binpack":
        if by:
            raise InvalidInput(
                "Bin-packing keeps the order of the rows, so it takes no columns",
                advice="Write strategy='sort', 'zorder' or 'hilbert', or leave by out",
            )
        return None
    if by:
        order = parse_sort(by, schema)
    elif strategy == "sort" and metadata.default_sort_order_id:
        order = metadata.sort_order()
    else:
        raise InvalidInput(
            f"The strategy {strategy!r} needs columns",
            advice="Write by=['customer', 'ts'], or set the table's sort order",
        )
    if strategy != "sort":
        _check_curve(order.fields, schema)
    return Ordering(strategy, order)  # type: ignore[arg-type]


def _check_curve(fields: Sequence[Any], schema: Any) -> None:
    if len(fields) > MOST_COLUMNS:
        raise InvalidInput(f"A curve over {len(fields)} columns", advice=f"Give at most {MOST_COLUMNS}")
    for field in fields:
        name = schema.find_column_name(field.source_id)
        if str(field.transform) != "identity":
            raise InvalidInput(f"A curve takes columns, not {field.transform} of {name}", advice=f"Write by=[{name!r}]")
        kind = schema.find_type(field.source_id)
        if not kind.is_primitive or source_path(schema, field.source_id) is None:
            raise Unsupported(f"A curve cannot use {name}, which is {kind}", advice="Name columns with simple values")
