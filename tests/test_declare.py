"""How a field declares itself."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from relay.spec.declare import bearing, declare, reset


@dataclass(frozen=True, kw_only=True)
class Group:
    plain: int = declare(1, means="a number", label="{} thing|{} things")
    asked: bool = declare(False, means="a switch", label="on|off", bears_on="identity job")
    noted: int = declare(3, means="a note", bears_on="")


def test_a_field_bears_on_what_it_says() -> None:
    group = Group(plain=2, asked=True, noted=4)
    assert bearing(group, "identity") == {"plain": 2, "asked": True}
    assert bearing(group, "job") == {"asked": True}
    assert reset(group, "gate") == Group(plain=2)


def test_a_misspelt_bearing_is_refused() -> None:
    with pytest.raises(ValueError, match="bears_on: identiy: unknown; allowed: identity, gate, job"):
        declare(1, means="a number", bears_on="identiy gate")
