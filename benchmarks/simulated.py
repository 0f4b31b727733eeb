"""The simulator for hours: seeds in chunks, each chunk saved when it is done, so that a run can be ended and taken up.

    python benchmarks/simulated.py --commits 1000000 --jobs 2      make simulate-long

Of ten chunks five are of the usual kind; the others have more faults, or are on catalogs of others, or both.
``benchmarks/results/simulation.json`` has the counts, and the digest of each chunk: ``frazil simulate --seed N --seeds
200`` of the same version prints the same one.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from common import RESULTS
from frazil.verify.simulator import SCENES, campaign

CHUNK = 200
TURNS = (*("usual",) * 5, "storm", "rush", "rest", "glue", "siege")
"""One chunk after the other."""
Json = dict[str, Any]


def summed(found: list[Json]) -> Json:
    """All chunks together."""
    totals = _totals(found)
    faults: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    for each in found:
        faults.update(each["faults"])
        outcomes.update(each["outcomes"])
    seconds = totals["elapsed_s"]
    return {
        "benchmark": "simulation",
        "figures": {},
        "steps": SCENES["usual"].steps,
        **totals,
        "seeds_per_s": round(totals["seeds"] / seconds, 2),
        "commits_per_s": round(totals["commits"] / seconds, 1),
        "scenes": {scene: _totals([each for each in found if each["scene"] == scene]) for scene in SCENES},
        "faults": dict(faults.most_common()),
        "outcomes": dict(sorted(outcomes.items())),
        "violations": [violation for each in found for violation in each["violations"]],
        "chunks": [
            {name: each[name] for name in ("scene", "seed", "seeds", "commits", "elapsed_s", "digest")}
            for each in found
        ],
    }


def _totals(found: list[Json]) -> Json:
    return {
        name: round(sum(each[name] for each in found), 1)
        for name in ("seeds", "commits", "snapshots", "reads", "elapsed_s")
    }


def chunks() -> Iterator[tuple[str, int]]:
    """All chunks there are: a scene and its first seed."""
    ahead = {scene: itertools.count(0, CHUNK) for scene in SCENES}
    return ((scene, next(ahead[scene])) for scene in itertools.cycle(TURNS))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--commits", type=int, default=1_000_000, help="so many, and whole chunks")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=Path("build/simulation"), help="of the chunks that are done")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    paths = sorted(asked.folder.glob("*-*.json"), key=lambda path: path.stat().st_mtime)
    done = {path.stem: json.loads(path.read_text()) for path in paths}
    commits = sum(each["commits"] for each in done.values())
    ahead = (each for each in chunks() if "{}-{}".format(*each) not in done)
    while commits < asked.commits and not any(each["violations"] for each in done.values()):
        scene, seed = next(ahead)
        report = campaign(replace(SCENES[scene], seed=seed), CHUNK, asked.jobs)
        done[f"{scene}-{seed}"] = found = {"scene": scene, "seed": seed, **report.to_json()}
        (asked.folder / f"{scene}-{seed}.json").write_text(json.dumps(found))
        commits += found["commits"]
        sys.stderr.write(f"{sum(each['seeds'] for each in done.values())} seeds, {commits} commits\n")
    result = summed(list(done.values()))
    (RESULTS / "simulation.json").write_text(json.dumps(result, indent=1) + "\n")
    print(*(f"{name}: {result[name]}" for name in ("seeds", "commits", "seeds_per_s", "commits_per_s")), sep="\n")
    print(f"violations: {len(result['violations'])}")
    return int(bool(result["violations"]))


if __name__ == "__main__":
    sys.exit(main())
