"""The plan of a run.

Every variable's place, bytes per device, and what one step communicates and computes.
"""
