"""Several processes as one run: rank and world size, what they agree on, what process 0 decides, and how they end.

Process 0 runs a small server (`.coordinator`). Every process, process 0 included, has a connection to it (`.member`).
Decisions that depend on a clock, a signal or a file are made by process 0 and broadcast; values that all processes
need from each other are all-gathered; and all are told if one of them dies or falls silent (`.timeouts`). The numbers
of the training itself never take this way.
"""
