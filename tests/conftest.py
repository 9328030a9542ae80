"""What all tests share."""

from hypothesis import settings

# Machines that run tests are shared and noisy: how long an example took says nothing about it.
settings.register_profile("no_deadline", deadline=None)
settings.load_profile("no_deadline")
