"""Simulated histories of two versions: a change of structure alone leaves every digest as it was.

    git worktree add ../f321ba5 f321ba5 && make -C ../f321ba5 setup    (and so on)
    python benchmarks/digests.py f321ba5=../f321ba5/.venv/bin/python d9eac92=../d9eac92/.venv/bin/python

Both run the same seeds of every scene that both have, a chunk of each scene in turn, at the same time. Each chunk is
saved when it is done (``benchmarks/results/digests.json``), so that a run can be ended and taken up. Exits with 1 if a
digest differs. A digest covers every event by its words, so names that the later version changed are changed in both.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from common import RESULTS

CHUNK = 100
RENAMED = {"TicketsGone": "QueueConflict"}
"""Classes whose names are in events."""
Json = dict[str, Any]
# Versions before d9eac92 have the simulator in the product.
PROGRAM = """
import json, sys
from dataclasses import replace
try:
    from frazil_verification.simulator import SCENES, campaign, journal
except ImportError:
    from frazil.verify.simulator import SCENES, campaign, journal
scene, seed, seeds, renamed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4])
note = journal.Journal.note
def note_renamed(self, who, what):
    for old, new in renamed.items():
        what = what.replace(old, new)
    return note(self, who, what)
journal.Journal.note = note_renamed
if seeds:
    report = campaign(replace(SCENES[scene], seed=seed), seeds, 1).to_json()
    print(json.dumps({name: report[name] for name in ("commits", "violations", "digest")}))
else:
    print(json.dumps(list(SCENES)))
"""


def run(python: str, scene: str = "", seed: int = 0, seeds: int = 0) -> Any:
    done = subprocess.run(
        [python, "-c", PROGRAM, scene, str(seed), str(seeds), json.dumps(RENAMED)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return json.loads(done.stdout)


def chunks(scenes: list[str], seeds: int) -> Iterator[tuple[str, int]]:
    return ((scene, seed) for seed in range(0, seeds, CHUNK) for scene in scenes)


def summed(versions: list[str], found: list[Json]) -> Json:
    scenes = dict.fromkeys(each["scene"] for each in found)
    return {
        "benchmark": "digests",
        "figures": {},
        "versions": versions,
        "scenes": {
            scene: {
                "seeds": CHUNK * len(of_scene),
                "commits": sum(each["commits"] for each in of_scene),
                "different": sum(len(set(each["digests"].values())) > 1 for each in of_scene),
            }
            for scene in scenes
            for of_scene in [[each for each in found if each["scene"] == scene]]
        },
        "chunks": found,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("versions", nargs=2, metavar="NAME=PYTHON", help="a version, and the Python that has it")
    parser.add_argument("--seeds", type=int, default=1000, help="of each scene")
    parser.add_argument("--result", type=Path, default=RESULTS / "digests.json", help="also what is done already")
    given = parser.parse_args()
    pythons = dict(each.split("=", 1) for each in given.versions)
    found: list[Json] = []
    if given.result.exists():
        kept = json.loads(given.result.read_text())
        found = kept["chunks"] if kept["versions"] == list(pythons) else []
    done = {(each["scene"], each["seed"]) for each in found}
    one, other = (run(python) for python in pythons.values())
    with ThreadPoolExecutor(2) as threads:
        for scene, seed in chunks([each for each in one if each in other], given.seeds):
            if (scene, seed) in done:
                continue

            def of(python: str, scene: str = scene, seed: int = seed) -> Json:
                return dict(run(python, scene, seed, CHUNK))

            reports = dict(zip(pythons, threads.map(of, pythons.values()), strict=True))
            digests = {name: report["digest"] for name, report in reports.items()}
            commits = next(iter(reports.values()))["commits"]
            found.append({"scene": scene, "seed": seed, "commits": commits, "digests": digests})
            given.result.write_text(json.dumps(summed(list(pythons), found), indent=2) + "\n")
            word = "the same" if len(set(digests.values())) == 1 else "DIFFERENT"
            print(f"{scene}, {CHUNK} seeds from {seed}: {word}", flush=True)
    return int(any(len(set(each["digests"].values())) > 1 for each in found))


if __name__ == "__main__":
    sys.exit(main())
