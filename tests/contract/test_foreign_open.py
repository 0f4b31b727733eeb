"""From a URI to a foreign catalog: what is said when it cannot be opened, and how soon."""

from __future__ import annotations

import contextlib
import http.server
import importlib.util
import json
import multiprocessing
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from frazil.catalog.base import OpenedCatalog
from frazil.catalog.foreign import open_foreign
from frazil.errors import CatalogUnavailable, InvalidInput, PermissionDenied, Unsupported
from frazil.runtime import SYSTEM
from servers import free_port

TOKEN = "tok-0815-secret"


def open_uri(uri: str, /, **properties: str) -> OpenedCatalog:
    return open_foreign(uri, warehouse=None, name=None, properties=properties, runtime=SYSTEM)


@contextlib.contextmanager
def server_that_answers(status: int, answer: object) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """Its address, and the headers of the requests it got."""
    seen: list[dict[str, str]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(dict(self.headers))
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", seen
        finally:
            server.shutdown()
            thread.join()


def test_a_rest_server_that_is_not_there_is_unavailable_at_once() -> None:
    started = time.monotonic()
    with pytest.raises(CatalogUnavailable, match="cannot be reached") as missing:
        open_uri(f"http://127.0.0.1:{free_port()}", token=TOKEN)
    assert time.monotonic() - started < 10
    assert TOKEN not in str(missing.value)


def test_a_rest_server_that_never_answers_is_unavailable_in_bounded_time() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(4)
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(CatalogUnavailable, match="cannot be reached"):
            open_uri(uri, **{"rest.read-timeout": "0.5"})


def test_a_rest_server_that_refuses_the_token_is_permission_denied() -> None:
    refusal = {"error": {"message": f"Bad token {TOKEN}", "type": "NotAuthorizedException", "code": 401}}
    with (
        server_that_answers(401, refusal) as (uri, seen),
        pytest.raises(PermissionDenied, match=r"Bad token \*\*\*") as refused,
    ):
        open_uri(uri, token=TOKEN)
    assert seen[0]["Authorization"] == f"Bearer {TOKEN}"
    assert TOKEN not in str(refused.value) + repr(refused.value)


def test_a_server_that_is_no_catalog_is_a_sentence() -> None:
    with server_that_answers(404, {"oops": True}) as (uri, _), pytest.raises(CatalogUnavailable, match="answered"):
        open_uri(uri)


def test_a_rest_servers_defaults_reach_the_storage() -> None:
    config = {"defaults": {"s3.endpoint": "http://minio"}, "overrides": {"s3.region": "mars"}}
    with server_that_answers(200, config) as (uri, _):
        opened = open_uri(uri.replace("127.0.0.1", "user:pass-word-1@127.0.0.1"), token=TOKEN)
        opened.catalog.close()
    assert opened.storage.properties == {"s3.endpoint": "http://minio", "s3.region": "mars"}
    assert (opened.kind, opened.warehouse, opened.created) == ("rest", None, False)
    assert "pass-word-1" not in opened.uri_shown
    assert TOKEN not in repr(opened)


def test_a_name_that_pyiceberg_does_not_know_is_invalid_input() -> None:
    with pytest.raises(InvalidInput, match="no catalog named 'nowhere'") as unknown:
        open_uri("pyiceberg:nowhere")
    assert "PYICEBERG_CATALOG__NOWHERE__URI" in str(unknown.value)


def test_pyicebergs_configuration_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".pyiceberg.yaml").write_text(
        f"catalog:\n  prod:\n    uri: sqlite:///{tmp_path}/prod.db\n    warehouse: {tmp_path.as_uri()}\n"
    )
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    opened = open_uri("pyiceberg:prod")
    assert (opened.kind, opened.warehouse) == ("sql", tmp_path.as_uri())
    assert opened.catalog.name == "prod"
    assert opened.catalog.namespaces() == {}
    opened.catalog.close()


def test_dynamodb_is_refused_with_a_sentence() -> None:
    with pytest.raises(Unsupported, match="DynamoDB catalog cannot commit"):
        open_uri("pyiceberg:x", type="dynamodb")


@pytest.mark.skipif(importlib.util.find_spec("thrift") is not None, reason="thrift is installed")
def test_a_missing_package_is_named_with_the_command_that_installs_it() -> None:
    with pytest.raises(Unsupported, match=r"pip install 'pyiceberg\[hive\]'"):
        open_uri("thrift://127.0.0.1:9083")


def _namespaces_in_child(opened: OpenedCatalog, answers: multiprocessing.Queue[list[str]]) -> None:
    answers.put([".".join(name) for name in opened.catalog.namespaces()])
    opened.catalog.close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_an_open_catalog_survives_a_fork(tmp_path: Path) -> None:
    opened = open_uri("pyiceberg:x", uri=f"sqlite:///{tmp_path}/x.db", warehouse=tmp_path.as_uri())
    opened.catalog.create_namespace(("shop",), {})
    fork = multiprocessing.get_context("fork")
    answers: multiprocessing.Queue[list[str]] = fork.Queue()
    child = fork.Process(target=_namespaces_in_child, args=(opened, answers))
    child.start()
    try:
        assert answers.get(timeout=60) == ["shop"]
        child.join(30)
        assert child.exitcode == 0
        assert list(opened.catalog.namespaces()) == [("shop",)]
    finally:
        child.kill()
        child.join()
        opened.catalog.close()
