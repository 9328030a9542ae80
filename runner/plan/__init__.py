"""The plan of a run: variables' places, bytes per device, and what one step communicates and computes."""
