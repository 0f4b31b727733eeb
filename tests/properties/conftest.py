"""One way of running properties: a busy machine is no failure, and a build tries the same examples each time.

With FRAZIL_RANDOM=1 others are tried, for who looks for what is not known yet.
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
