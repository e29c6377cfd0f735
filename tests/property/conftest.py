"""What holds for every property."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# Tests never depend on time: a busy machine is no failure.
settings.register_profile("catalejo", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("catalejo")
