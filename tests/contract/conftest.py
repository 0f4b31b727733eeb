from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from contract.openers import OPENERS, Address, Opener
from frazil.catalog.base import Catalog, OpenedCatalog


@pytest.fixture(params=OPENERS, ids=lambda opener: opener.name)
def opener(request: pytest.FixtureRequest) -> Opener:
    found: Opener = request.param
    reason = found.notyet.get(request.node.originalname)
    if reason is not None:
        pytest.skip(f"not yet: {reason}")
    return found


@pytest.fixture
def address(opener: Opener, request: pytest.FixtureRequest, tmp_path: Path) -> Address:
    """An empty catalog of each kind in turn."""
    return opener.address(request, tmp_path)


@pytest.fixture
def opened(address: Address) -> Iterator[OpenedCatalog]:
    found = address.open()
    yield found
    found.catalog.close()


@pytest.fixture
def catalog(opened: OpenedCatalog) -> Catalog:
    return opened.catalog
