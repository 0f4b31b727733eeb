"""From the arguments of a verb to a call: everything is checked here, before anything is written."""

from __future__ import annotations

from collections.abc import Mapping

from frazil import observe
from frazil.commit.retry import from_properties
from frazil.dml.engine import ARROW, Engine, EngineName
from frazil.dml.view import Settings, View
from frazil.errors import InvalidInput
from frazil.format.metadata import MAIN
from frazil.on_spark.session import Session, is_frame, session_of
from frazil.on_spark.session import active as active_session
from frazil.on_spark.session import checked as checked_session
from frazil.table.call import Call
from frazil.table.destination import Destination
from frazil.table.guard import guarded
from frazil.table.options import (
    WriteOptions,
    check_branch,
    checked,
    checked_on_deleted,
    checked_summary,
    chosen_on_conflict,
    isolation_level,
)
from frazil.table.source import CurrentTable

_ON_BOUND_SESSION = ("delete", "update", "compact", "resolve_deletes", "merge")


def begin(
    destination: Destination,
    verb: str,
    given: WriteOptions,
    parameters: Mapping[str, object],
    rows: object = None,
) -> Call:
    """The call of a verb on the version that the destination reads."""
    options = destination.accept(verb, given)
    observe.calling()
    source = destination.source
    runtime, name = source.lake.runtime, str(source.ident)
    started = runtime.monotonic()
    checked(options)
    engine = _engine(source.lake.spark, options.get("engine"), rows, verb)
    branch = options.get("branch", MAIN)
    metadata = source.metadata()
    check_branch(name, metadata, branch)
    isolation = isolation_level(options.get("isolation"), verb, metadata)
    # Before anything is written: a table property that is not a number must not leave files behind.
    retry = options.get("retry") or from_properties(metadata.properties)
    settings = Settings(
        isolation=isolation,
        on_deleted=checked_on_deleted(options.get("on_deleted"), verb, isolation),
        snapshot_properties=checked_summary(options.get("snapshot_properties")),
        options=dict(options.get("options") or {}),
    )
    named = {"branch": branch, **parameters}
    identity, found = destination.identify(options.get("commit_id"), verb, named, metadata, branch)
    if found is None and isinstance(source, CurrentTable) and not options.get("dry_run"):
        metadata = guarded(source, metadata, branch)
    return Call(
        view=View(source.lake.storage, runtime, metadata, branch, name),
        settings=settings,
        identity=identity,
        retry=retry,
        on_phase=options.get("on_phase"),
        merge_schema=options.get("merge_schema", False),
        dry_run=options.get("dry_run", False),
        own_snapshot=options.get("own_snapshot", False),
        on_conflict=chosen_on_conflict(options.get("on_conflict"), metadata),
        started=started,
        found=found,
        engine=engine,
    )


def _engine(bound: object, asked: EngineName | None, rows: object, verb: str) -> Engine:
    """The engine of the rows. Verbs without rows and merges run on the session that the lake is bound to, if any."""
    frame = is_frame(rows)
    session: Session | None = session_of(rows) if frame else None if bound is None else checked_session(bound)
    if asked == "arrow" and not frame:
        return ARROW
    if asked == "arrow":
        raise InvalidInput(
            "These rows are a Spark DataFrame, which engine='arrow' cannot read", advice="Pass frame.toArrow()"
        )
    if not (asked == "spark" or frame or (session is not None and verb in _ON_BOUND_SESSION)):
        return ARROW
    if session is None:
        session = active_session()
    if session is None:
        raise InvalidInput(
            f"{verb}() was asked to run on Spark, and the lake is not bound to a session",
            advice="Write connect(…, spark=frazil.spark())",
        )
    from frazil.on_spark.dml import SparkEngine

    return SparkEngine(session)
