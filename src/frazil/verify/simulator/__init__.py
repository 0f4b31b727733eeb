"""A deterministic simulation of many writers: the real commit core on a virtual clock, with faults, and a judge."""

from frazil.verify.simulator.actors import ACTORS, usual
from frazil.verify.simulator.campaign import SCENES, Report, campaign, failure_json
from frazil.verify.simulator.faults import Fault, parse_faults
from frazil.verify.simulator.lake import CatalogKind
from frazil.verify.simulator.oracle import Violation
from frazil.verify.simulator.run import Result, simulate
from frazil.verify.simulator.shrink import shrink
from frazil.verify.simulator.world import Case

__all__ = [
    "ACTORS",
    "SCENES",
    "Case",
    "CatalogKind",
    "Fault",
    "Report",
    "Result",
    "Violation",
    "campaign",
    "failure_json",
    "parse_faults",
    "shrink",
    "simulate",
    "usual",
]
