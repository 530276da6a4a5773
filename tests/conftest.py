"""What no test may leave to the next, or depend on: logging that a command set up, and how busy the machine is."""

from collections.abc import Iterator

import pytest
import structlog
from hypothesis import HealthCheck, settings

# both go by the clock
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    yield
    structlog.reset_defaults()
