"""Third-party catalogs. Frazil sends requirements and updates, the server moves the pointer, and its answers are not
always definite (rule P30).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import Any, cast

import requests
from pyiceberg.exceptions import CommitFailedException, ServiceUnavailableError
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import TableMetadataUtil
from pyiceberg.table.update import TableRequirement, TableUpdate
from urllib3.exceptions import NewConnectionError

from frazil.catalog._db import Db, LostRace, OutcomeUnknown
from frazil.catalog._sql import TABLES
from frazil.catalog.pointer import version_of
from frazil.errors import CatalogUnavailable
from frazil.format.metadata import TableMetadata
from frazil.format.updates import apply
from frazil_verification.simulator.database import SimulatedEngine
from frazil_verification.simulator.files import File
from frazil_verification.simulator.process import Process

Requirements = Sequence[TableRequirement]
Updates = Sequence[TableUpdate]
_NO_FILES = cast("Any", SimpleNamespace(properties={}))
"""Files are read and written by Frazil's own storage."""


class SimulatedRest:
    """A server that checks requirements and moves the pointer atomically. It has the part of a PyIceberg ``Catalog``
    that ``ForeignCatalog`` uses.
    """

    name = "sim"
    properties: Mapping[str, str] = {}

    def __init__(self, process: Process) -> None:
        self._process = process
        self._engine = SimulatedEngine(process)

    def load_table(self, identifier: tuple[str, ...]) -> Table:
        location = self._engine.read(partial(_location, name=identifier[-1]))
        return Table(identifier, self._theirs(location), location, _NO_FILES, cast("Any", self))

    def commit_table(self, table: Table, requirements: Requirements, updates: Updates) -> CommitTableResponse:
        """Raises the exceptions of PyIceberg's clients."""
        return CommitTableResponse.model_construct(
            metadata_location=self._moved(table.name()[-1], requirements, updates)
        )

    def close(self) -> None:
        """The server is closed by its owner."""

    def _moved(self, name: str, requirements: Requirements, updates: Updates) -> str:
        def work(db: Db) -> str:
            before = _location(db, name)
            after = self._written(before, requirements, updates)
            _move(db, name, before, after)
            return after

        return self._sent(work)

    def _sent(self, work: Callable[[Db], str]) -> str:
        try:
            return self._engine.write(work)
        except CatalogUnavailable as error:
            raise requests.exceptions.ConnectionError(NewConnectionError(cast("Any", None), str(error))) from error
        except OutcomeUnknown as error:
            raise requests.exceptions.ConnectionError(str(error)) from error
        except LostRace as error:
            raise ServiceUnavailableError("The server has too much to do") from error

    def _written(self, location: str, requirements: Requirements, updates: Updates) -> str:
        """The next version's file. Raises CommitFailedException and, as PyIceberg does, ValueError."""
        world, theirs = self._process.world, self._theirs(location)
        for each in requirements:
            each.validate(theirs)
        before = TableMetadata.parse(self._data(location), location)
        changes = [each.model_dump(mode="json", by_alias=True, exclude_none=True) for each in updates]
        brought = {each["snapshot"]["snapshot-id"] for each in changes if each["action"] == "add-snapshot"}
        for change in changes:
            _check(change, before, brought)
        after = apply(before, changes, now_ms=world.database.now_ms, previous_location=location)
        path = f"{before.metadata_folder}/{version_of(location) + 1:05}-{len(world.files.there)}.metadata.json"
        world.files.add(path, File(after.to_json(), "server", world.schedule.now, synced=world.journal.events))
        return path

    def _theirs(self, location: str) -> Any:
        return _parsed(self._data(location))

    def _data(self, location: str) -> bytes:
        return self._process.world.files.there[location].data


class SimulatedGlue(SimulatedRest):
    """A pointer with an expected version, and a client that repeats unanswered requests: the answer is then that of the
    second request, and proves nothing about the first.
    """

    def _moved(self, name: str, requirements: Requirements, updates: Updates) -> str:
        try:
            before = self._engine.read(partial(_location, name=name))
        except CatalogUnavailable as error:
            raise requests.exceptions.ConnectionError(str(error)) from error
        after = self._written(before, requirements, updates)

        def work(db: Db) -> str:
            _move(db, name, before, after)
            return after

        return self._sent(work)

    def _sent(self, work: Callable[[Db], str]) -> str:
        while True:
            try:
                return self._engine.write(work)
            except (CatalogUnavailable, LostRace) as error:
                raise requests.exceptions.ConnectionError(str(error)) from error
            except OutcomeUnknown as error:
                if self._process.chance.random() < 0.3:
                    raise requests.exceptions.ConnectionError(str(error)) from error


def _check(change: Mapping[str, Any], before: TableMetadata, brought: Container[int]) -> None:
    """The checks of PyIceberg and Iceberg Java on an update besides its requirements. Raises ValueError."""
    if change["action"] == "add-snapshot" and change["snapshot"]["sequence-number"] <= before.last_sequence_number:
        raise ValueError(f"Cannot add a snapshot that is not newer than {before.last_sequence_number}")
    snapshot_id = change.get("snapshot-id") if change["action"] == "set-snapshot-ref" else None
    if snapshot_id is not None and snapshot_id not in brought and not before.has_snapshot(snapshot_id):
        raise ValueError(f"Cannot set {change['ref-name']} to the unknown snapshot {snapshot_id}")
    if change["action"] == "add-spec" and change["spec"]["spec-id"] in before.specs():
        raise ValueError(f"The partition spec {change['spec']['spec-id']} already exists")


@lru_cache(maxsize=256)
def _parsed(data: bytes) -> Any:
    return TableMetadataUtil.parse_raw(data.decode())


def _location(db: Db, name: str) -> str:
    row = db.execute(f"SELECT metadata_location FROM {TABLES} WHERE table_name = ?", (name,)).fetchone()  # noqa: S608
    return str(row[0])


def _move(db: Db, name: str, before: str, after: str) -> None:
    sql = f"UPDATE {TABLES} SET metadata_location = ? WHERE table_name = ? AND metadata_location = ?"  # noqa: S608
    if db.execute(sql, (after, name, before)).rowcount != 1:
        raise CommitFailedException("The table was changed by another client")
