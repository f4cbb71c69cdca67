"""The environment variables of this process."""

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def variable(name: str, value: str) -> Iterator[None]:
    """While this lasts, a variable has another value. No other one is touched: threads may read and set them."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
