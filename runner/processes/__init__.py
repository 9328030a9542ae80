"""Several processes as one run: who they are, what they agree on, what one of them decides for all, and their ends.

Process 0 runs a small switchboard (`.hub`) that every process, itself included, holds a connection to (`.member`).
What hangs on a clock, a signal or a file is decided by process 0 and told by it; what all must know of each is
gathered by it; and the death or the silence of one is told to all the others. Numbers of the training itself never go
this way.
"""
