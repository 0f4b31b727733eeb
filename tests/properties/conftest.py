"""The settings of property tests: a busy machine is not a failure, and a build tries the same examples each time.

With FRAZIL_RANDOM=1 new examples are tried, to search for unknown bugs.
"""

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "properties",
    deadline=None,
    derandomize="FRAZIL_RANDOM" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("properties")
