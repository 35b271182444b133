"""The end of training in a process that may live on, or be killed at once: its process groups are destroyed.

Ray Train has its workers destroy their group, and then kills them: nothing that waits for the interpreter's
end is run there. So the last step goes out, and a BYE with it, before the group is taken apart.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import Any

from ddptop.training.guard import guard, hide_frame

NAME = "destroy_process_group"


def watch(dist: Any, leave: Callable[[], None]) -> None:
    """Have `leave()` called before `torch.distributed` destroys the default group, and all others with it."""
    original = getattr(dist, NAME, None)
    if original is None:
        return

    @functools.wraps(original)
    def destroy_process_group(*args: Any, **kwargs: Any) -> None:
        try:
            group = args[0] if args else kwargs.get("group")
            if dist.is_initialized() and group in (None, dist.group.WORLD):
                leave()
        except Exception as error:  # noqa: BLE001 - the training boundary
            guard.caught(error)
        try:
            original(*args, **kwargs)
        except BaseException as error:
            hide_frame(error)
            raise

    for module in (dist, dist.distributed_c10d):
        if getattr(module, NAME, None) is original:
            setattr(module, NAME, destroy_process_group)


def watch_children() -> None:
    """Have the exception that ends a child of multiprocessing kept, where the child is recorded.

    From Python 3.13 on the child's finalizers run when the exception is gone. `_bootstrap` calls the `run()`
    of any subclass and catches what it raises.
    """
    original = getattr(BaseProcess, "_bootstrap", None)
    if sys.version_info < (3, 13) or original is None or hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def bootstrap(self: Any, *args: Any, **kwargs: Any) -> Any:
        run = self.run

        def watched_run() -> None:
            vars(self).pop("run", None)
            try:
                run()
            except BaseException as error:
                with contextlib.suppress(Exception):
                    if "ddptop.training.session" in sys.modules:
                        from ddptop.training.exit import keep_for_child

                        keep_for_child(error)
                hide_frame(error)
                raise

        vars(self)["run"] = watched_run
        return original(self, *args, **kwargs)

    BaseProcess._bootstrap = bootstrap
