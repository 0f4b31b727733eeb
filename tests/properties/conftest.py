"""One way of running properties: a busy machine is no failure."""

from hypothesis import HealthCheck, settings

settings.register_profile("properties", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("properties")
