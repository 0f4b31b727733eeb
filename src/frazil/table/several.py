"""Whether a catalog can commit several tables at once."""

from __future__ import annotations

from frazil.catalog.base import LakeCatalog
from frazil.errors import Unsupported


def check_several(catalog: LakeCatalog, what: str) -> None:
    """Raises Unsupported where the catalog cannot swap several tables at once."""
    if not catalog.capabilities.swaps_tables:
        raise Unsupported(
            f"The catalog {catalog.name} commits one table at a time and does not take {what}",
            advice="Commit one table after the other, each with a commit_id, so that the rest can be repeated; or "
            "write to branches and fast-forward them at the end; or keep the tables in a catalog on SQLite or "
            "Postgres, or on a REST server with the endpoint transactions/commit",
        )
