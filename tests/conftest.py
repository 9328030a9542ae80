"""What all tests share."""

import os

from hypothesis import settings

# XLA's work on fast code for CPUs is most of a short run's time; what is computed is the same without it. Processes
# that tests start inherit this; `tests.engine.jax_runs.FAST_CODE` is an environment without.
os.environ["XLA_FLAGS"] = " ".join(
    [
        "--xla_backend_optimization_level=0",
        "--xla_llvm_disable_expensive_passes=true",
        "--xla_cpu_use_fusion_emitters=false",
    ]
)

# Machines that run tests are shared and noisy: how long an example took says nothing about it.
settings.register_profile("no_deadline", deadline=None)
settings.load_profile("no_deadline")
