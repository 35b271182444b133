"""Hangs, deaths, mismatches, wrong numbers: one line each, what is done to a rank and what is to be said."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Incident:
    """What `incident_script.py` does at a step drawn at random, to a rank drawn at random."""

    name: str
    """`hang-asleep`; before the first `-` is the group that `--rows` takes."""
    words: str
    """Pattern of what is to be said; {rank} is the drawn rank, {others} the other two: `0 and 2`, {step} that
    of the fault, {near} one of the 16 before or after it."""
    place: bool = True
    """The line of the script at which the fault begins is to be named."""
    world: int = 3
    most_s: float = 30.0
    """How long it is waited for what is to be said."""

    @property
    def kind(self) -> str:
        """What the script takes."""
        return self.name.partition("-")[2]

    @property
    def group(self) -> str:
        """`hang`, `death`, `mismatch`, `numbers`, `slower` or `healthy`."""
        return self.name.partition("-")[0]


INCIDENTS: tuple[Incident, ...] = (
    Incident("hang-asleep", r"rank {rank} is missing: it has not entered all_reduce"),
    Incident("hang-loop", r"rank {rank} is missing: it has not entered all_reduce"),
    Incident("hang-worker", r"it waits for DataLoader workers? pid [\d ]+in \S+ __getitem__"),
    Incident("hang-lock", r"rank {rank} does not answer: a C call holds the interpreter lock"),
    Incident("hang-stopped", r"process is stopped \(SIGSTOP\)", place=False),
    Incident("hang-late", r"rank {rank} is in .*; .* for it in init_process_group", place=False, most_s=90.0),
    Incident("hang-checkpoint", r"rank {rank} is in save_checkpoint, 2 ranks wait in barrier"),
    Incident("death-exception", r"rank {rank} failed.*ValueError: bad sample"),
    Incident("death-shape", r"rank {rank} failed.*RuntimeError: mat1 and mat2"),
    Incident("death-kill", r"rank {rank} was killed by SIGKILL", place=False),
    Incident("death-memory", r"rank {rank} was killed by SIGKILL.*out of memory", place=False),
    Incident("death-segv", r"rank {rank} crashed \(SIGSEGV\)"),
    Incident("death-abort", r"rank {rank} aborted \(SIGABRT\)"),
    Incident("death-leave", r"rank {rank} exited with code 0 before the end", place=False),
    Incident("death-exit", r"rank {rank} exited with code 3", place=False),
    Incident("mismatch-operation", r"rank {rank}( calls| in) broadcast.* all_reduce"),
    Incident("mismatch-size", r"rank {rank}( calls| in) all_reduce of \[\[2000\]\]"),
    Incident("mismatch-type", r"rank {rank}( calls| in) all_reduce of \[\[1000\]\] Double"),
    Incident("mismatch-left-out", r"rank {rank}( calls| in) all_reduce.* barrier"),
    Incident("mismatch-fewer", r"rank {rank}( calls| in) barrier.* all_reduce"),
    Incident("mismatch-order", r"deadlock: rank . waits in all_reduce of group .* where rank .", world=2),
    Incident("numbers-nan", r"loss of rank {rank} .*is NaN or infinite since step {step}", place=False),
    Incident("numbers-drift", r"replica of rank {rank} differs since step", place=False),
    Incident("slower-all", r"all ranks are slower since step {near}:", place=False),
    Incident("healthy-ends", ""),
)  # fmt: skip

GROUPS = {"hangs": "hang", "deaths": "death", "mismatches": "mismatch", "numbers": "numbers"} | {
    "slower": "slower",
    "ends": "healthy",
}
"""What `--rows` takes for all rows of a group."""


def named(names: list[str]) -> list[Incident]:
    """The rows of these names, or of these groups; of `all` all."""
    groups = {group for name, group in GROUPS.items() if name in names or "all" in names}
    return [one for one in INCIDENTS if one.name in names or one.group in groups]
