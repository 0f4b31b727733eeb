"""PyIceberg's REST client with timeouts, which its own sessions lack."""

from __future__ import annotations

import functools

from pyiceberg.catalog.rest import RestCatalog
from requests import Session

CONNECT_TIMEOUT = "rest.connect-timeout"
READ_TIMEOUT = "rest.read-timeout"


class BoundedRestCatalog(RestCatalog):
    """``rest.connect-timeout`` and ``rest.read-timeout``, in seconds, bound every request."""

    def _create_session(self) -> Session:
        # A private name, because the session exists only inside: the constructor already talks to the server with it.
        session = super()._create_session()
        limits = (float(self.properties.get(CONNECT_TIMEOUT, "5")), float(self.properties.get(READ_TIMEOUT, "60")))
        # On the session and not on an adapter: PyIceberg mounts one of its own where requests are signed.
        session.request = functools.partial(session.request, timeout=limits)  # type: ignore[method-assign]
        return session
