"""Does what the login node has to do for a stack's environment, and records it.

python scripts/environment.py --lock envs/torch.txt --output environment.json [--asked JSON]
"""

import argparse
import json
import signal
import sys
from pathlib import Path

from relay.base import ending, entry
from relay.base.files import write_json
from relay.environments.login_node import asked, prepare


def main() -> int:
    """Parse the command line, prepare the environment, and write its record last."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lock", type=Path, required=True, help="the stack's lock, envs/STACK.txt")
    parser.add_argument("--output", type=Path, required=True, help="where the record goes (.json)")
    parser.add_argument(
        "--asked",
        type=json.loads,
        metavar="JSON",
        help="what relay.environments.login_node.asked gave (the driver's own environment)",
    )
    given = parser.parse_args()
    # As an exception, so that compilers are ended and half-made folders are removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(ending.INTERRUPTED))
    environment = given.asked or asked(None, given.lock.stem, given.lock.resolve().parent.parent)
    write_json(given.output, prepare(environment, given.lock))
    return 0


if __name__ == "__main__":
    entry.run(main)
