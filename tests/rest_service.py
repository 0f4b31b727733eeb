"""An Iceberg REST catalog for tests, over HTTP, that commits to several tables atomically.

PyIceberg's own requirements and updates decide, so that what Frazil sends is judged by other code. What a server does
wrong is scripted: a plan decides about one commit to several tables.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.catalog.rest import Capability, CreateTableRequest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.table import CommitTableRequest
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import AssertCreate, update_table_metadata

Name = tuple[str, ...]
Answer = tuple[int | None, Any]
"""A status and a body. None: the connection is closed without an answer."""

COMMIT_TRANSACTION = "POST /v1/{prefix}/transactions/commit"
_OTHERS = tuple(str(each) for name, each in vars(Capability).items() if name.startswith("V1_"))
ENDPOINTS = (*(each for each in _OTHERS if "view" not in each and "plan" not in each), COMMIT_TRANSACTION)
_ERRORS = {
    400: "BadRequestException",
    404: "NoSuchTableException",
    409: "CommitFailedException",
}


class Refused(Exception):
    """The request is answered with this status, and nothing was changed."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Sent:
    """A commit to several tables that has arrived. ``apply`` raises Refused."""

    changes: tuple[CommitTableRequest, ...]
    service: RestService

    def apply(self) -> int:
        """As the endpoint should: all of it, or nothing."""
        self.service.commit(self.changes)
        return 204

    def apply_one(self, number: int) -> None:
        """Half of it."""
        self.service.commit(self.changes[number : number + 1])

    def apply_one_by_one(self, between: Callable[[], object]) -> int:
        """As Iceberg's reference server: all are checked, then committed one by one, and what has moved is left out."""
        prepared = [(change, self.service.version(_name(change))) for change in self.changes]
        self.service.commit(self.changes, dry_run=True)
        for number, (change, before) in enumerate(prepared):
            if self.service.version(_name(change)) == before:
                self.service.commit([change])
            if not number:
                between()
        return 204


Plan = Callable[[Sent], int | None]


@dataclass
class RestService:
    """The server's state. ``plans``: what becomes of the next commits to several tables, one each."""

    warehouse: Path
    endpoints: Sequence[str] | None = ENDPOINTS
    url: str = ""
    token: str | None = None
    """Requests without it are answered 401."""
    plans: deque[Plan] = field(default_factory=deque)
    on_load: Callable[[str], object] | None = None
    """Called with a table's name before each answer to a GET of it."""
    received: list[tuple[CommitTableRequest, ...]] = field(default_factory=list)
    """The commits to several tables."""
    tables: dict[Name, tuple[str, TableMetadata]] = field(default_factory=dict)
    namespaces: dict[Name, dict[str, str]] = field(default_factory=dict)
    _lock: Any = field(default_factory=threading.RLock)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def version(self, name: Name) -> str:
        return self.tables[name][0] if name in self.tables else ""

    # Commits

    def commit(self, changes: Sequence[CommitTableRequest], *, dry_run: bool = False) -> None:
        with self._lock:
            found = [(_name(change), self._changed(change)) for change in changes]
            for name, after in found if not dry_run else ():
                if after is not None:
                    self._put(name, after)

    def transaction(self, body: bytes) -> Answer:
        changes = tuple(CommitTableRequest.model_validate(each) for each in json.loads(body)["table-changes"])
        self.received.append(changes)
        sent = Sent(changes, self)
        plan = self.plans.popleft() if self.plans else Sent.apply
        return plan(sent), None

    def _changed(self, change: CommitTableRequest) -> TableMetadata | None:
        """The next version of a table; None: the change has no updates. Raises Refused."""
        name = _name(change)
        location, before = self.tables.get(name, ("", None))
        if before is None and not any(isinstance(each, AssertCreate) for each in change.requirements):
            raise Refused(404, f"Table does not exist: {'.'.join(name)}")
        try:
            for requirement in change.requirements:
                requirement.validate(before)
        except CommitFailedException as error:
            raise Refused(409, str(error)) from error
        if not change.updates:
            return None
        try:
            return update_table_metadata(
                before or MetastoreCatalog._empty_table_metadata(),
                change.updates,
                enforce_validation=before is None,
                metadata_location=location or None,
            )
        except ValueError as error:
            raise Refused(400, str(error)) from error

    def _put(self, name: Name, metadata: TableMetadata) -> None:
        location = f"{metadata.location}/metadata/{next(self._numbers):05}.metadata.json"
        path = Path(location.removeprefix("file://"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(metadata.model_dump_json())
        self.tables[name] = location, metadata

    # Other requests

    def answer(self, method: str, path: str, query: dict[str, list[str]], body: bytes) -> Answer:
        """Raises Refused."""
        if self.on_load is not None and method == "GET" and path.count("/") == 3:
            self.on_load(path.rpartition("/")[2])
        with self._lock if path != "transactions/commit" else contextlib.nullcontext():
            parts = [tuple(unquote(each).split("\x1f")) for each in path.split("/")]
            match method, [each[0] for each in parts], len(parts):
                case "GET", ["config"], 1:
                    listed = {} if self.endpoints is None else {"endpoints": list(self.endpoints)}
                    return 200, {"defaults": {}, "overrides": {}, **listed}
                case "POST", ["transactions", "commit"], 2:
                    return self.transaction(body)
                case "POST", ["tables", "rename"], 2:
                    return self._rename(json.loads(body))
                case _, ["namespaces", *_], 1 | 2:
                    return self._on_namespaces(method, parts[1:], query, body)
                case _, ["namespaces", _, "tables" | "register", *_], 3:
                    return self._on_tables(method, parts[1], parts[2][0], body)
                case _, ["namespaces", _, "tables", _], 4:
                    return self._on_table(method, (*parts[1], parts[3][0]), body)
        raise Refused(404, f"No such endpoint: {method} {path}")

    def _on_namespaces(self, method: str, named: list[Name], query: dict[str, list[str]], body: bytes) -> Answer:
        if not named and method == "GET":
            parent = tuple(query["parent"][0].split("\x1f")) if "parent" in query else ()
            below = [each for each in self.namespaces if each[: len(parent)] == parent and len(each) == len(parent) + 1]
            return 200, {"namespaces": below}
        if not named:
            asked = json.loads(body)
            name = tuple(asked["namespace"])
            if name in self.namespaces:
                raise Refused(409, f"Namespace already exists: {name}")
            self.namespaces[name] = asked.get("properties", {})
            return 200, asked
        if named[0] not in self.namespaces:
            raise Refused(404, f"Namespace does not exist: {named[0]}")
        if method == "DELETE":
            if any(each[:-1] == named[0] for each in self.tables):
                raise Refused(409, f"Namespace {named[0]} is not empty")
            del self.namespaces[named[0]]
            return 204, None
        return (
            (204, None) if method == "HEAD" else (200, {"namespace": named[0], "properties": self.namespaces[named[0]]})
        )

    def _on_tables(self, method: str, namespace: Name, what: str, body: bytes) -> Answer:
        if namespace not in self.namespaces:
            raise Refused(404, f"Namespace does not exist: {namespace}")
        if method == "GET":
            names = [each for each in self.tables if each[:-1] == namespace]
            return 200, {"identifiers": [{"namespace": each[:-1], "name": each[-1]} for each in names]}
        asked = json.loads(body)
        name = (*namespace, asked["name"])
        if name in self.tables:
            raise Refused(409, f"Table already exists: {'.'.join(name)}")
        if what == "register":
            location = asked["metadata-location"]
            read = TableMetadataUtil.parse_raw(Path(location.removeprefix("file://")).read_text())
            self.tables[name] = location, read
            return self._loaded(name)
        request = CreateTableRequest.model_validate({"location": None, **asked})
        location = request.location or f"{self.warehouse.as_uri()}/{'/'.join(name)}-{next(self._numbers)}"
        made = new_table_metadata(
            schema=request.table_schema,
            partition_spec=request.partition_spec or UNPARTITIONED_PARTITION_SPEC,
            sort_order=request.write_order or UNSORTED_SORT_ORDER,
            location=location,
            properties=request.properties,
        )
        if request.stage_create:
            return 200, {"metadata": json.loads(made.model_dump_json())}
        self._put(name, made)
        return self._loaded(name)

    def _on_table(self, method: str, name: Name, body: bytes) -> Answer:
        if name not in self.tables:
            raise Refused(404, f"Table does not exist: {'.'.join(name)}")
        if method == "POST":
            self.commit([CommitTableRequest.model_validate_json(body)])
        elif method == "DELETE":
            del self.tables[name]
            return 204, None
        return (204, None) if method == "HEAD" else self._loaded(name)

    def _loaded(self, name: Name) -> Answer:
        location, metadata = self.tables[name]
        return 200, {"metadata-location": location, "metadata": json.loads(metadata.model_dump_json())}

    def _rename(self, asked: dict[str, Any]) -> Answer:
        old, new = ((*asked[key]["namespace"], asked[key]["name"]) for key in ("source", "destination"))
        if old not in self.tables or new[:-1] not in self.namespaces:
            raise Refused(404, f"Table does not exist: {old}")
        if new in self.tables:
            raise Refused(409, f"Table already exists: {new}")
        self.tables[new] = self.tables.pop(old)
        return 204, None


def _name(change: CommitTableRequest) -> Name:
    return (*change.identifier.namespace.root, change.identifier.name)


@contextlib.contextmanager
def serving(service: RestService) -> Iterator[RestService]:
    """The service on a free port of this machine, until the block ends."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(service))
    server.daemon_threads = True
    service.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield service
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def _handler(service: RestService) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            where = urlsplit(self.path)
            try:
                if service.token is not None and self.headers.get("Authorization") != f"Bearer {service.token}":
                    raise Refused(401, "no token")
                path = where.path.removeprefix("/v1/").strip("/")
                status, found = service.answer(self.command, path, parse_qs(where.query), body)
            except Refused as refused:
                status, found = refused.status, _error(refused.status, str(refused))
            if status is None:
                self.close_connection = True
                return
            if found is None and status >= 400:
                found = _error(status, "as planned")
            data = b"" if found is None else json.dumps(found).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        do_GET = do_HEAD = do_POST = do_DELETE = _serve  # noqa: N815 - as the base class has it

        def log_message(self, *_: object) -> None:
            """Nothing."""

    return Handler


def _error(status: int, message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": _ERRORS.get(status, "ServerError"), "code": status}}
