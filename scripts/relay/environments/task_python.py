"""The Python in which the login node runs a task's own file: to look at it, and to prepare its data.

Jobs run it in the environment of a stack, which may have packages of the user's. Does not import torch.
"""

import os
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from relay.environments import conda, overlay, wheelhouse
from relay.environments.locks import is_recorded, pinned, read


def interpreter(environment: Mapping[str, Any], lock: Path, *, create: bool = True) -> str:
    """The path of a Python on this machine that has a stack's packages; the driver's own where there is none.

    `environment` is that of `login_node.environment_of`, `lock` the stack's. Packages of the user's that can be had
    here are fetched into an environment above the driver's own. With `create`, conda makes what a file declares.
    The driver's own Python has torch, but not what only the nodes have: what modules, a container or a named conda
    environment give, a cluster's own wheels, and packages beside another build of torch.
    Raises UserError where an environment cannot be made.
    """
    with redirect_stdout(sys.stderr):  # what Snakemake prints on stdout may be read by a program
        if _fits_drivers(environment, lock):
            return overlay.interpreter(overlay.make(lock))
        if environment["mode"] == "conda" and (folder := environment["conda_folder"]):
            if create and conda.creates(environment["conda"]):
                conda.create(Path(environment["conda"]), Path(folder))
            python = Path(folder) / "bin" / "python"
            if os.access(python, os.X_OK):
                return str(python)
    return sys.executable


def has_all(environment: Mapping[str, Any], python: str) -> bool:
    """Whether that Python of `interpreter` has all that the stack's jobs have. If not, only a node can tell."""
    if python != sys.executable or environment["mode"] == "current":
        return True
    return environment["mode"] == "wheels" and not environment["site_wheels"] and not is_recorded(environment["stack"])


def _fits_drivers(environment: Mapping[str, Any], lock: Path) -> bool:
    """Whether the user's packages go above the driver's environment: they are for its Python and its version of torch.

    False also where there are none.
    """
    if not is_recorded(lock.stem) or environment["mode"] not in ("current", "wheels") or environment["site_wheels"]:
        return False
    own_build = "+" not in (pinned(read(lock), "torch") or "")  # an index's own build has a label
    return own_build and wheelhouse.version_of(Path(environment["python"] or sys.executable)) == "{}.{}".format(
        *sys.version_info
    )
