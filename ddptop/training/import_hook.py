"""Run something when a module is first imported, without importing it now."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

from ddptop.training.guard import guard, hide_frames

Action = Callable[[ModuleType], None]


def when_imported(name: str, action: Action) -> None:
    """Call `action(module)` right after the module `name` has been executed, or now if it already was.

    The finder removes itself when the module is imported, and the module's own loader executes it, so that
    nothing of this remains visible. What `action` raises is counted and not raised further.
    """
    loaded = sys.modules.get(name)
    if loaded is not None:
        _call_action(action, loaded)
    else:
        sys.meta_path.insert(0, _OneShotFinder(name, action))


class _OneShotFinder:
    """A meta path finder for one module, once."""

    def __init__(self, name: str, action: Action) -> None:
        self._name = name
        self._action = action

    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find the real module and have the action follow its execution."""
        if name != self._name:
            return None
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        # This finder has left `sys.meta_path`: the module is found as without it.
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            _follow_execution(spec.loader, self._action)
        return spec


def _call_action(action: Action, module: ModuleType) -> None:
    try:
        action(module)
    except Exception as error:  # noqa: BLE001 - the training boundary: the caller is an `import` of the user's
        guard.caught(error)


def _follow_execution(loader: object, action: Action) -> None:
    execute = loader.exec_module  # type: ignore[attr-defined]  # every loader of a source module has it

    def exec_module(module: ModuleType) -> None:
        try:
            vars(loader).pop("exec_module", None)
            execute(module)
            _call_action(action, module)
        except BaseException as error:  # Ctrl-C, or the module cannot be imported
            hide_frames(error)
            raise

    vars(loader)["exec_module"] = exec_module
