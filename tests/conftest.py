"""Fixtures that every part of the test suite shares."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from urllib.parse import urlsplit

import psycopg
import pytest

from aws.server import Aws, start_aws
from servers import PostgresServer


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One Postgres for this test process. Tests that stop it start their own instead."""
    server = PostgresServer()
    yield server
    server.close()


@pytest.fixture
def postgres_uri(request: pytest.FixtureRequest) -> Iterator[str]:
    """A fresh, empty database on a real server: FRAZIL_TEST_PG where that is set, else one started here."""
    name = f"t{uuid.uuid4().hex[:12]}"
    outside = os.environ.get("FRAZIL_TEST_PG")
    if outside is None:
        server: PostgresServer = request.getfixturevalue("postgres_server")
        yield server.create_database(name)
        server.drop_database(name)
        return
    with psycopg.connect(outside, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"'.encode())
    yield urlsplit(outside)._replace(path=f"/{name}").geturl()
    with psycopg.connect(outside, autocommit=True) as connection:
        connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)'.encode())


@pytest.fixture(scope="session")
def aws() -> Iterator[Aws]:
    """S3 and Glue, played by moto; Glue checks versions as Amazon's does."""
    with start_aws() as server:
        yield server
