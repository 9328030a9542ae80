"""The plan of a run: every variable's place, bytes a device, and what one training step communicates and computes."""

from runner.plan.base import Plan
from runner.plan.make import make_plan

__all__ = ["Plan", "make_plan"]
