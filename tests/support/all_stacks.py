"""`python tests/support/all_stacks.py`: make the environments of all further stacks, before the tests use them.

The first time it fetches packages and builds Horovod and DeepSpeed, which takes minutes; after that nothing is left to
do. A test that had to wait for that would run out of its time.
"""

from __future__ import annotations

import sys
from pathlib import Path

SUPPORT = Path(__file__).resolve().parent
sys.path[:0] = [str(SUPPORT), str(SUPPORT.parents[1] / "scripts")]

import debian_packages  # noqa: E402
from lock import NO_FURTHER_STACK  # noqa: E402
from relay.base.errors import UserError  # noqa: E402
from relay.environments import overlay  # noqa: E402

ENVS = SUPPORT.parents[1] / "envs"


def main() -> int:
    """A stack that cannot be made is told; its tests say so again."""
    if why := debian_packages.obstacle(debian_packages.BUILDING):
        print(f"Horovod, DeepSpeed and the C++ program may not be built: {why}", file=sys.stderr)
    for stack in sorted(path.stem for path in ENVS.glob("*.in") if path.stem not in NO_FURTHER_STACK):
        try:
            overlay.make(ENVS / f"{stack}.txt")
        except UserError as error:
            print(f"stack {stack}: {error}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
