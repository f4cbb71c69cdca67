"""Records a stack's environment: python scripts/environment.py --lock envs/torch.txt --output environment.json."""

import argparse
from pathlib import Path

from relay import entry
from relay.environment import describe
from relay.errors import UserError
from relay.files import write_json


def main() -> int:
    """Parse the command line and write what is installed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lock", type=Path, required=True, help="the stack's lock, envs/STACK.txt")
    parser.add_argument("--output", type=Path, required=True, help="where the record goes (.json)")
    given = parser.parse_args()
    found = describe(given.lock)
    missing = [name for name in found["differs"] if found["installed"][name] is None]
    if missing:
        raise UserError(f"{given.lock}: not installed: {', '.join(missing)}; install them with `make install`")
    for name in found["differs"]:
        print(f"note: {name} is {found['installed'][name]}, the lock pins {' or '.join(found['pinned'][name])}")
    write_json(given.output, found)
    return 0


if __name__ == "__main__":
    entry.run(main)
