"""Timeouts of several processes that fail or end, in seconds, and why each is longer than the one before it.

A loss is thus reported by whoever knows most about it, and no record of a run's end is cut short.
"""

from __future__ import annotations

# Between two signs of life of a process: many times per SILENCE_S, so that one late beat means nothing. A beat is 17
# bytes, so more would cost nothing but gain nothing either.
BEAT_S = 1.0

# After which a silent process is lost, and the others are told that the run ends. One that lives may be silent for
# seconds: on a machine whose cores are all busy, its threads wait for their turn.
SILENCE_S = 15.0

# A connection must prove that it knows the secret within this time, on a machine whose cores are all busy, too.
PROOF_S = 10.0

# For the main thread of a process to end by itself after it heard that the run ends. One that waits in a collective
# can't be woken, so another thread then ends the process.
MAIN_THREAD_S = 5.0

# For that other thread to record the end, which includes requests to a tracking server. Then the process exits.
RECORD_S = 25.0

# From a process's failure until the launcher kills the others. Above MAIN_THREAD_S + RECORD_S, and some seconds for
# the news and the exits.
GRACE_S = 45.0

# The launcher kills the rest sooner in two cases. After a second signal the user is impatient. Before all have joined,
# and once process 0 has ended, there is nothing to record.
SECOND_SIGNAL_S = 5.0
UNHEARD_S = 10.0

# Process 0 waits for so long until all others have heard why the run ends, before it exits.
LAST_WORDS_S = 3.0

# A process whose library reports a broken collective waits for the coordinator's reason for a little longer than a
# silent process takes to be noticed.
REASON_S = SILENCE_S + 3.0
