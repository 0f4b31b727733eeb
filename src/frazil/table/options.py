"""What every write takes, and the checks of arguments before anything is written."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from frazil.commit.context import OnPhase
from frazil.commit.operations import OnConflict, OnDeleted
from frazil.commit.retry import Retry
from frazil.dml.engine import EngineName
from frazil.errors import InvalidInput
from frazil.format.metadata import MAIN, TableMetadata
from frazil.format.schemas import suggestion
from frazil.model import Isolation

Mode = Literal["merge-on-read", "copy-on-write"]
UpsertMode = Literal["equality", "position", "copy-on-write"]
MODES = ("merge-on-read", "copy-on-write")
UPSERT_MODES = ("equality", "position", "copy-on-write")

# Keys of a snapshot's summary that belong to Iceberg or to Frazil, and prefixes of table properties.
_RESERVED_SUMMARY = ("operation", "added-", "deleted-", "removed-", "total-", "changed-partition-count", "frazil.")
_TABLE_PROPERTY_PREFIXES = ("write.", "read.", "commit.", "history.", "schema.")


class WriteOptions(TypedDict, total=False):
    """What every write takes."""

    isolation: str | None
    """"serializable" or "snapshot"; by default what the table's properties say, else serializable."""
    retry: Retry | None
    commit_id: str | None
    """Makes the call idempotent: sent again, also by another process after a crash, it is found, not applied twice."""
    branch: str
    snapshot_properties: Mapping[str, str] | None
    options: Mapping[str, str] | None
    merge_schema: bool
    on_deleted: OnDeleted | None
    """What happens to appended rows that match a concurrent delete: abort the append, keep the rows or drop them."""
    on_conflict: OnConflict | None
    """What a statement does when rows that it reads arrived or changed since: redo evaluates it again on what changed
    (the default, also by the table property frazil.on-conflict), abort raises ConflictError."""
    own_snapshot: bool
    """Do not share a snapshot with concurrent appends."""
    dry_run: bool
    engine: EngineName | None
    on_phase: OnPhase | None


def checked(given: WriteOptions) -> WriteOptions:
    unknown = given.keys() - WriteOptions.__annotations__.keys()
    if unknown:
        name = min(unknown)
        raise InvalidInput(f"There is no option {name!r}", advice=suggestion(name, WriteOptions.__annotations__))
    checked_retry(given.get("retry"))
    branch = given.get("branch", MAIN)
    if not isinstance(branch, str) or not branch:
        raise InvalidInput(f"branch must be the name of a branch, not {branch!r}")
    for name in ("merge_schema", "dry_run", "own_snapshot"):
        if not isinstance(given.get(name, False), bool):
            raise InvalidInput(f"{name} must be True or False, not {given[name]!r}")  # type: ignore[literal-required]
    options, on_phase = given.get("options"), given.get("on_phase")
    if options is not None and not (isinstance(options, Mapping) and all(isinstance(key, str) for key in options)):
        raise InvalidInput(f"options must be a dict of strings, not {options!r}")
    if on_phase is not None and not callable(on_phase):
        raise InvalidInput(f"on_phase must be a function of a phase and an attempt, not {on_phase!r}")
    engine = given.get("engine")
    if engine not in (None, "arrow", "spark"):
        raise InvalidInput(f"engine must be 'arrow' or 'spark', not {engine!r}")
    return given


def check_branch(table: str, metadata: TableMetadata, branch: str) -> None:
    if branch != MAIN and branch not in metadata.refs:
        raise InvalidInput(f"The table {table} has no branch {branch!r}", advice="Create it with create_branch()")
    if metadata.refs.get(branch, {}).get("type") == "tag":
        raise InvalidInput(f"{branch!r} is a tag of {table}, and tags do not move", advice="Write to a branch")


_ISOLATION_PROPERTY = {
    "delete": "write.delete.isolation-level",
    "update": "write.update.isolation-level",
    "upsert": "write.merge.isolation-level",
    "merge": "write.merge.isolation-level",
}


def isolation_level(given: str | None, verb: str, metadata: TableMetadata) -> Isolation:
    """The argument, else the table's property for this verb, else serializable."""
    name = _ISOLATION_PROPERTY.get(verb, "")
    text = given if given is not None else metadata.properties.get(name, Isolation.SERIALIZABLE)
    if text not in tuple(Isolation):
        where = "isolation" if given is not None else f"The table property {name}"
        raise InvalidInput(f"{where} must be 'serializable' or 'snapshot', not {text!r}")
    return Isolation(text)


def checked_on_deleted(given: OnDeleted | None, verb: str, isolation: Isolation) -> OnDeleted:
    if given not in (None, "abort", "keep", "drop"):
        raise InvalidInput(f"on_deleted must be 'abort', 'keep' or 'drop', not {given!r}")
    if given is not None and given != "keep" and verb not in ("append", "upsert"):
        raise InvalidInput(f"on_deleted={given!r} is for appended rows; {verb} has none", advice="Leave it out")
    if given is not None:
        return given
    return "abort" if verb == "append" and isolation is Isolation.SERIALIZABLE else "keep"


_ON_CONFLICT = "frazil.on-conflict"


def chosen_on_conflict(given: str | None, metadata: TableMetadata) -> OnConflict:
    """The argument, else the table's property, else redo."""
    found: Any = given if given is not None else metadata.properties.get(_ON_CONFLICT, "redo")
    if found not in ("redo", "abort"):
        where = "on_conflict" if given is not None else f"The table property {_ON_CONFLICT}"
        raise InvalidInput(f"{where} must be 'redo' or 'abort', not {found!r}")
    return found  # type: ignore[no-any-return]


def chosen_mode(given: str | None, metadata: TableMetadata, name: str, known: Sequence[str], default: str) -> Any:
    chosen = given if given is not None else metadata.properties.get(name, default)
    if chosen not in known:
        where = "mode" if given is not None else f"The table property {name}"
        raise InvalidInput(f"{where} must be one of {', '.join(known)}, not {chosen!r}")
    return chosen


def checked_summary(properties: Mapping[str, str] | None) -> Mapping[str, str]:
    if not isinstance(properties, Mapping | None):
        raise InvalidInput(f"snapshot_properties must be a dict of strings, not {type(properties).__name__}")
    for key, value in (properties or {}).items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise InvalidInput(f"snapshot_properties must be strings, and {key!r}: {value!r} is not")
        if any("\ud800" <= char <= "\udfff" for char in key + value):
            raise InvalidInput(
                f"The snapshot property {key!r} contains an unpaired surrogate, which UTF-8 cannot encode"
            )
        if key.startswith(_RESERVED_SUMMARY):
            raise InvalidInput(f"The snapshot property {key!r} is reserved", advice="Use a prefix of your own")
        if key.startswith(_TABLE_PROPERTY_PREFIXES):
            raise InvalidInput(
                f"{key!r} is a table property; in a snapshot's summary it has no effect",
                advice="Use set_properties() for the table, or options={…} for one write",
            )
    return dict(properties or {})


def checked_retry(retry: Retry | None) -> Retry | None:
    if retry is not None and not isinstance(retry, Retry):
        raise InvalidInput(f"retry must be a frazil.Retry, not {retry!r}", advice="For instance frazil.Retry(tries=5)")
    return retry


def checked_commit_id(commit_id: str | None) -> str | None:
    """The caller's id of a commit; None: the commit gets a random one."""
    if commit_id is None:
        return None
    if not isinstance(commit_id, str) or not commit_id.strip() or len(commit_id) > 200:
        raise InvalidInput(f"commit_id must be a string of 1 to 200 characters, not {commit_id!r}")
    return commit_id


def check_plain(function: object) -> None:
    """Raises InvalidInput for a function that does its work after it has returned."""
    kinds = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    if any(kind(function) for kind in kinds):
        raise InvalidInput(
            "A function that is called again after a conflict must return its value itself",
            evidence="A coroutine or generator does its work after it has returned",
            advice="Give a plain function",
        )
