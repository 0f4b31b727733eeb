"""The share of pairs without a conflict that Frazil, Iceberg Java and PyIceberg refuse, each on the same interleavings.

Needs Java (``make interop`` says what); ``tests/interop/refusals.py`` has the pairs, ``docs/refusals.md`` the results.
"""

from __future__ import annotations

import json
import logging
import tempfile
from importlib.metadata import version
from pathlib import Path

import common  # noqa: F401 - puts the tests on the path
from interop.conftest import sqlite_in
from interop.iceberg_java import start_iceberg_java
from interop.refusals import CONFLICTS, KEPT, NAMESPACE, Runner, counts, play_all
from interop.systems import FrazilSystem, JavaSystem, PyIcebergSystem


def main() -> None:
    # Lost races are what this is about.
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder, start_iceberg_java(Path(folder)) as process:
        place = sqlite_in(Path(folder) / "lake", process)
        java = place.iceberg_java()
        with place.lake() as lake:
            lake.create_namespace(NAMESPACE)
            systems = (FrazilSystem(lake), JavaSystem(java), PyIcebergSystem(place.pyiceberg()))
            results = play_all(Runner(lake, java), systems, print)
    commuting = [pair for subject, pairs in results.items() if subject != CONFLICTS for pair in pairs]
    for system in systems:
        found = counts(commuting, system.name)
        able = found.total() - found["cannot"]
        print(f"{system.name:<14} refuses {found['refused']:3} of {able} pairs without a conflict, {dict(found)}")
    versions = {"Frazil": version("frazil"), "PyIceberg": version("pyiceberg"), "Iceberg Java": "1.12.0"}
    # No figures in the sense of the other benchmarks: nothing here is a time.
    body = {"benchmark": "refusals", "versions": versions, "figures": {}, "pairs": results}
    KEPT.write_text(json.dumps(body, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
