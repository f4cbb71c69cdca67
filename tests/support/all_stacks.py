"""`python tests/support/all_stacks.py [STACK …]`: make the environments of further stacks, while other tests run.

Without names, or with `all`, those of all. The first time it fetches packages and builds Horovod and DeepSpeed, which
takes minutes; after that nothing is left to do. Tests of a stack come last and wait for it, outside of their own time.
"""

import sys
import time
from pathlib import Path

SUPPORT = Path(__file__).resolve().parent
sys.path[:0] = [str(SUPPORT), str(SUPPORT.parents[1] / "scripts")]

import debian_packages  # noqa: E402
import stacks  # noqa: E402
from relay.base import lock  # noqa: E402
from relay.base.clock import duration  # noqa: E402
from relay.base.errors import UserError  # noqa: E402
from relay.environments import overlay, versioned  # noqa: E402

FIRST_TIME = (
    "These are packages of other frameworks, which the tests of their strategies use. They are fetched, and DeepSpeed "
    "and Horovod are compiled: about 7 minutes on 2 idle cores, once. `make test STACKS=torch` leaves these tests out."
)


def main(names: list[str]) -> int:
    """A stack that cannot be made is told; its tests say so again."""
    try:
        stacks.ask_for(names or [stacks.ALL])
    except UserError as error:
        sys.exit(f"error: {error}")
    wanted = stacks.asked()
    if not wanted:
        print("The tests of further stacks are left out")
        return 0
    if why := debian_packages.obstacle(debian_packages.BUILDING):
        print(f"Horovod, DeepSpeed and the C++ program may not be built: {why}", file=sys.stderr)
    if not all(map(_is_there, wanted)):
        print(FIRST_TIME, flush=True)
    started, building = time.monotonic(), lock.exclusive(stacks.building(), seconds=3600)
    for number, stack in enumerate(wanted, start=1):
        print(f"[{number}/{len(wanted)}] stack {stack}, for {', '.join(sorted(stacks.of_stack(stack)))}", flush=True)
        try:
            overlay.make(stacks.ENVS / f"{stack}.txt")
        except UserError as error:
            print(f"stack {stack}: {error}", file=sys.stderr)
    building.close()
    print(f"{len(wanted)} stacks after {duration(time.monotonic() - started)}", flush=True)
    return 0


def _is_there(stack: str) -> bool:
    place = overlay.place(stacks.ENVS / f"{stack}.txt")
    return place is not None and (place / versioned.MARKER).exists()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
