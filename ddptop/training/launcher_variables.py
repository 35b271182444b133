"""What a launcher's variables say of this process besides its rank, as a HELLO has it.

Importing this module costs next to nothing.
"""

from __future__ import annotations

import os


def environment_number(variable: str) -> int:
    """The number in a variable; 0 where it has none."""
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() else 0


def local_rank(rank: int) -> int:
    """The place on its host: `rank` without such a variable, as mp.spawn numbers the ranks of one host."""
    text = os.environ.get("LOCAL_RANK") or os.environ.get("SLURM_LOCALID") or ""
    return int(text) if text.isdecimal() else rank


def restart_number() -> int:
    """Elastic restarts before this process, the same on all hosts (`Hello.incarnation`)."""
    # torchrun counts only restarts that its host has caused; `ddptop-run` gives the number of the rendezvous.
    return max(environment_number("TORCHELASTIC_RESTART_COUNT"), environment_number("DDPTOP_RENDEZVOUS"))
