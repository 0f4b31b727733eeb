"""Metadata and proposals for the contract suite, and the work that racing threads and processes do."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from multiprocessing.synchronize import Barrier as ProcessBarrier
from typing import Any

from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.types import LongType, NestedField, StringType

from contract.openers import Address
from frazil.catalog.base import Catalog, CommitRecord, Head, OpenedCatalog, Outcome, Prepared, Proposal
from frazil.errors import FrazilError
from frazil.format.metadata import TableMetadata
from frazil.model import Ident

EVENTS = Ident(("shop",), "events")
SCHEMA = Schema(NestedField(1, "id", LongType(), required=True), NestedField(2, "name", StringType()))


def new_metadata(location: str, properties: dict[str, str] | None = None) -> TableMetadata:
    fresh = new_table_metadata(
        schema=SCHEMA,
        partition_spec=UNPARTITIONED_PARTITION_SPEC,
        sort_order=UNSORTED_SORT_ORDER,
        location=location,
        properties=properties or {},
        table_uuid=uuid.uuid4(),
    )
    return TableMetadata.parse(fresh.model_dump_json(by_alias=True, exclude_none=True).encode(), location)


def create_table(opened: OpenedCatalog, ident: Ident = EVENTS, properties: dict[str, str] | None = None) -> Head:
    if ident.namespace not in opened.catalog.namespaces():
        opened.catalog.create_namespace(ident.namespace, {})
    # Without a warehouse the catalog's server chooses the location.
    folder = f"{opened.warehouse}/{'/'.join(ident.namespace)}/{ident.name}-{uuid.uuid4().hex[:8]}"
    location = "" if opened.warehouse is None else folder
    return opened.catalog.create(ident, new_metadata(location, properties))


def set_property(head: Head, value: str, record: CommitRecord | None = None) -> Proposal:
    return Proposal(
        updates=({"action": "set-properties", "updates": {"k": value}},),
        requirements=({"type": "assert-table-uuid", "uuid": head.metadata.uuid},),
        record=record,
    )


def add_column(head: Head, name: str) -> Proposal:
    """Two of these from one head exclude each other on every catalog, also where only the requirements decide."""
    metadata = head.metadata
    schema = metadata.schema().model_dump(mode="json", by_alias=True, exclude_none=True)
    field_id = metadata.last_column_id + 1
    fields = [*schema["fields"], {"id": field_id, "name": name, "type": "string", "required": False}]
    new_id = max(metadata.schemas()) + 1
    return Proposal(
        updates=(
            {"action": "add-schema", "schema": {**schema, "schema-id": new_id, "fields": fields}},
            {"action": "set-current-schema", "schema-id": -1},
        ),
        requirements=(
            {"type": "assert-table-uuid", "uuid": metadata.uuid},
            {"type": "assert-current-schema-id", "current-schema-id": metadata.current_schema_id},
            {"type": "assert-last-assigned-field-id", "last-assigned-field-id": metadata.last_column_id},
        ),
    )


def record_for(head: Head, commit_id: str, digest: str = "d", summary: dict[str, int] | None = None) -> CommitRecord:
    return CommitRecord(head.metadata.uuid, commit_id, digest, None, 0, summary or {})


def commit(catalog: Catalog, value: str, ident: Ident = EVENTS, record: CommitRecord | None = None) -> Outcome:
    return catalog.swap(prepared(catalog, value, ident, record))


def prepared(catalog: Catalog, value: str, ident: Ident = EVENTS, record: CommitRecord | None = None) -> Prepared:
    head = catalog.load(ident)
    return catalog.prepare(ident, head, set_property(head, value, record))


def race(works: list[Callable[[], Any]]) -> list[Any]:
    """Start all at one moment; what each returned, or the FrazilError it raised, in the same order."""
    barrier = threading.Barrier(len(works))
    results: list[Any] = [None] * len(works)

    def run(n: int, work: Callable[[], Any]) -> None:
        barrier.wait(60)
        try:
            results[n] = work()
        except FrazilError as error:
            results[n] = error
        except BaseException as error:
            results[n] = AssertionError(repr(error))

    threads = [threading.Thread(target=run, args=(n, work)) for n, work in enumerate(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    return results


def race_in_rounds(address: Address, me: int, rounds: int, barrier: ProcessBarrier, answers: Any) -> None:
    """In each round every process creates the same table, and then swaps it from the same head, all at once."""
    opened = address.open()
    try:
        for n in range(rounds):
            ident = Ident(("shop",), f"t{n}")
            barrier.wait(120)
            try:
                created: str | FrazilError = create_table(opened, ident).location
            except FrazilError as error:
                created = error
            barrier.wait(120)
            head = opened.catalog.load(ident)
            ready = opened.catalog.prepare(ident, head, add_column(head, f"c{me}"))
            barrier.wait(120)
            answers.put((n, created, head.location, opened.catalog.swap(ready)))
    finally:
        opened.catalog.close()
