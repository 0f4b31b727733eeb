"""Amazon's S3 and Glue on one port of this machine, played by moto. Prints its address; ends when stdin is closed.

In a process of its own: Arrow's destructors wait for uploads while they hold the interpreter's lock, which would stop a
server in the same interpreter. With ``--glue-checks-versions`` Glue does what Amazon documents for UpdateTable with a
VersionId, which moto ignores: an update from another version than the current one is refused.
"""

from __future__ import annotations

import logging
import sys
import threading
from typing import Any

from moto.core.exceptions import JsonRESTError
from moto.glue.responses import GlueResponse
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server


def check_glue_versions() -> None:
    lock = threading.Lock()
    update = GlueResponse.update_table

    def checked_update(self: Any) -> Any:
        with lock:
            wanted = self.parameters.get("VersionId")
            name = self.parameters["TableInput"]["Name"]
            current = self.glue_backend.get_table(self.parameters["DatabaseName"], name).as_dict()["VersionId"]
            if wanted is not None and wanted != current:
                raise JsonRESTError("ConcurrentModificationException", f"Version {wanted} is not {current}")
            return update(self)

    GlueResponse.update_table = checked_update  # type: ignore[method-assign]


def main() -> None:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    if "--glue-checks-versions" in sys.argv:
        check_glue_versions()
    app = DomainDispatcherApplication(create_backend_app)
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=MotoRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
