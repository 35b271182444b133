"""Loaded by every Python that `ddptop-run` starts: this folder is on its PYTHONPATH.

Leaves no trace but one import hook: takes its folder off `sys.path` again (the environment variable
stays, for children), and loads the sitecustomize that it has shadowed, if there is one.
"""

import os
import sys


def _step_aside() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != here]
    ours = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401 - the user's own
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        if ours is not None:
            sys.modules["sitecustomize"] = ours


def _watch_for_ddp() -> None:
    try:
        from ddptop.runtime import attach, import_hook
    except ImportError:  # another Python than ddptop's own: the launcher says that no rank reported
        return
    if attach.enabled():
        import_hook.when_imported("torch.nn.parallel.distributed", attach.patch)


try:
    _step_aside()
finally:
    _watch_for_ddp()
