"""Loaded by every Python that `ddptop-run` starts: this folder is on its PYTHONPATH.

Leaves no trace but one entry in `sys.meta_path`, until torch is imported: it takes its folder off `sys.path`
again (the environment variable stays, for children), and loads the sitecustomize that it has shadowed, if
there is one. Where there is none, `sys.modules` has none afterwards either.
"""

import os
import sys


def _step_aside() -> bool:
    """Load the user's own sitecustomize; False where there is none."""
    own_folder = os.path.dirname(os.path.abspath(__file__))
    for entry in [entry for entry in sys.path if os.path.abspath(entry or os.curdir) == own_folder]:
        sys.path.remove(entry)
        sys.path_importer_cache.pop(entry, None)
    # Else the import below would find this module.
    sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        return False
    return True


def _watch_for_ddp() -> None:
    try:
        from ddptop.training import attach, early_exit
    except ImportError:  # another Python than ddptop's own: the launcher reports that no rank was seen
        return
    if attach.is_enabled():
        early_exit.watch_exit()  # first: it notes which process is the rank's own
        attach.attach_when_imported()


try:
    _users_own = _step_aside()
finally:
    _watch_for_ddp()
if not _users_own:
    # Python's `site` ignores this error: it is that of every Python without a sitecustomize. After it, the
    # import system takes this module out of `sys.modules`.
    raise ImportError("there is no sitecustomize but ddptop's", name="sitecustomize")
