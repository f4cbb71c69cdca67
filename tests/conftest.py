"""What all tests share."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Quickest first: a mistake shows before the tests that start processes."""
    items.sort(key=lambda item: bool(item.get_closest_marker("slow")) + 2 * bool(item.get_closest_marker("long")))
