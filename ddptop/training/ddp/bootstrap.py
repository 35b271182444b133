"""Scripts that begin anew in every process they start: without a main guard, importing them runs them."""

from __future__ import annotations

import multiprocessing


def refuse(call: str) -> None:
    """Raise RuntimeError where a child of multiprocessing reaches `call` while it imports its script."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise RuntimeError(
            f"{call} was reached while a process that this script has started imports it: "
            "put what the script does below `if __name__ == '__main__':`"
        )
