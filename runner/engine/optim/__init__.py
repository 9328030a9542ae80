"""Optimizers: update rules with their stock counterparts, schedules, gradient clipping, paths of their state."""
