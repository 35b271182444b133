"""Bounds on everything that arrives from outside. A message beyond them is refused, never clipped."""

NS = 1_000_000_000
"""Nanoseconds in a second."""

REPORT_S = 0.25
"""Ranks send at multiples of this on their host's CLOCK_MONOTONIC, so that their agent reads them all in one
round, soon after. A screen at 4 Hz sees every batch, and waking up stays cheap."""

DEFAULT_BUDGET_PCT = 1.0
"""Share of the step time that ddptop may take, unless `--ddptop-budget` says otherwise."""

DEFAULT_STALL_S = 15.0
"""Least time without a step that is a stall, unless `--ddptop-stall` says otherwise."""

DEFAULT_RECORD_LIMIT_BYTES = 1 << 30
"""Size from which a recording thins itself, unless `--ddptop-record-limit` says otherwise."""

# Fields that are added at the end of a message do not raise it: the decoder fills them in.
VERSION = 1
"""Raised when a message changes meaning; a reader refuses a HELLO or a recording of another version."""

MAX_RANK_MESSAGE_BYTES = 64 * 1024
"""One ZeroMQ frame from a rank: 300 steps of 10 buckets fit, a hostile allocation does not."""

MAX_FRAME_BYTES = 9 * 1024 * 1024
"""One ZeroMQ frame to a viewer: the state of MAX_SHOWN_WORLD ranks, each with a GPU, and its history."""

MAX_ROWS = 256
"""Step rows in one STEPS message."""

MAX_BUCKETS = 2048
"""Gradient buckets of one rank over all its DDP models (25 MB each: a 50 GB model)."""

MAX_CELLS = 4 * 1024
"""Integers of bucket detail in one row: three per all-reduce."""

CURVE_KEY_CHARACTERS = 40
"""Characters of a CURVE key in Z85."""

MAX_TEXT = 512
"""Characters in one text field."""

MAX_CARD = 256
"""Entries of a rank's card (versions, DDP options, environment that matters)."""

MAX_WORLD = 65_536
"""Ranks in a process group, as far as messages and recordings can name them."""

MAX_SHOWN_WORLD = 16_384
"""Ranks of a run that is recorded: a frame of so many, each with a GPU, takes 7 MB at most."""

MUTE_AFTER = 100
"""Internal errors after which a rank records no bucket detail: something is wrong for good, and each one
costs time."""

MAX_STEP = 2**48
"""Steps, sequence numbers and other counts."""

MAX_NS = 2**62
"""A clock reading in nanoseconds (146 years)."""

MAX_US = 2**40
"""A duration in microseconds (12 days)."""

MAX_BYTES = 2**50
"""A size in bytes (1 PiB)."""

MAX_STACKS = 64
"""Threads of one rank in a piece of evidence."""

MAX_DEPTH = 128
"""Calls of one stack in a piece of evidence."""

MAX_SAMPLED_CALLS = 64
"""Calls in a tree of samples."""

MAX_OPERATIONS = 256
"""Collectives, or process groups, in a piece of evidence."""

MAX_MEMBERS = 4096
"""Ranks that a process group names one by one; the whole world is not named."""

MAX_ARRIVALS = 4096
"""Collectives of one group in one message: two full buffers of torch's flight recorder."""

MAX_COLLECTIVE_KINDS = 64
"""Kinds of collectives that such a message tells apart."""

MAX_CHECKSUMS = 1024
"""Pieces of the parameters in one message."""
