"""No property is judged by how long it took: the machine that runs the tests may be busy."""

from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
