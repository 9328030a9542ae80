"""The plan of a run: every variable's place, bytes per device, and what one step communicates and computes."""
