"""What every entry point does around its work."""

from __future__ import annotations

import sys
from collections.abc import Callable

from relay.base.errors import UserError


def run(main: Callable[[], int]) -> None:
    """Exit with `main`'s status; a user's mistake is one line on stderr and status 1."""
    try:
        status = main()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        status = 1
    sys.exit(status)
