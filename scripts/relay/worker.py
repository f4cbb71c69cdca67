"""One process of a job: `python -m relay.worker trainer WORK --help` (or `gate`, or `reference`).

The module is imported under guard, so that a stack that cannot even be imported is a recorded fault as well.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

from relay import faults

if __name__ == "__main__":
    role, work, *arguments = sys.argv[1:]
    faults.guarded(Path(work), lambda: import_module(f"relay.{role}").main(arguments))
