"""What is said where something is refused: one line."""

from collections.abc import Callable
from typing import Any

import pytest

from relay.base.errors import UserError


def refusal(call: Callable[..., Any], *given: Any, **named: Any) -> str:
    """The line with which the call is refused."""
    with pytest.raises(UserError) as caught:
        call(*given, **named)
    told = str(caught.value)
    assert "\n" not in told
    return told
