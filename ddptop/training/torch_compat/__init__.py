"""All uses of private names of torch; no other folder uses one (tests/architecture/test_torch_names.py).

Checked on torch 2.6, 2.13 and 2.15. Where a later torch lacks one, ddptop reports it once and training runs
as under torchrun.
"""

from __future__ import annotations

import re
from importlib import metadata, util

from ddptop.host.installation import install_command

OLDEST = (2, 6)


def installed_version() -> str | None:
    """Version of torch, which is not imported; empty where it is not known, None where torch is missing."""
    if util.find_spec("torch") is None:
        return None
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:  # on the path, but not installed
        return ""


def why_unusable(what: str, version: str | None) -> str | None:
    """Why `what` cannot work with this version of torch, in one line; None where it can.

    Versions are compared by their release: `2.6.0a0+git`, a container's build, is 2.6. `version` None: torch
    is not installed.
    """
    if version is None:
        return f"{what} needs torch, which is not installed: {install_command('torch')}"
    release = re.match(r"(\d+)\.(\d+)", version)
    if release is None or (int(release[1]), int(release[2])) >= OLDEST:
        return None
    oldest = f"{OLDEST[0]}.{OLDEST[1]}"
    return f"{what} needs torch {oldest} or newer, not {version}: {install_command('torch')}"
