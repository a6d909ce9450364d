"""When a batch or a sample counts as late or slow, and what follows: what the loader does, and its play goes by."""

from __future__ import annotations

AHEAD = 2
"""Tasks that a worker holds where work goes to whichever is free: the one it makes, and one more, so that it never
waits for the next."""

LATE, OVERDUE = 2e-3, 2.0
"""Seconds without any result after which the batch that the loop waits for is late; and how many times as long as
usual, if batches take longer."""

SLACK = 0.5
"""For how many batches longer than usual a worker has worked when the batch that it makes changes places."""

SPARE = 1000
"""Finished batches that may wait behind one that is late, however small they are."""

WORTH_SHARING = 1e-3
"""Seconds of work from which on a part of a batch is worth the messages."""

SLOW, MUCH = 5e-3, 5.0
"""A sample is slow that takes so many seconds at least, and so many times as long as usual."""

FARTHER = 1.5
"""How much earlier than they need be slow samples are begun: how long they take is known from another epoch."""
