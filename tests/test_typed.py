"""What is read from JSON is the dataclass that was written, or nothing."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from relay.base import typed


@dataclass(frozen=True)
class Inner:
    kind: Literal["a", "b"]
    counts: dict[int, list[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Outer:
    name: str
    inner: tuple[Inner, ...] = ()
    pair: tuple[int, bool] = (0, False)
    seconds: float | None = None
    more: Mapping[str, Any] = field(default_factory=dict)
    places: Sequence[str] = ()


WHOLE = Outer("x", (Inner("a", {3: [1, 2.5]}), Inner("b")), (2, True), 1, {"any": [1]})


def test_what_was_written_comes_back(tmp_path: Path) -> None:
    (tmp_path / "x").write_text(json.dumps(asdict(WHOLE)))
    assert typed.read(Outer, tmp_path / "x") == WHOLE
    assert typed.read(Outer, tmp_path / "y") is None


@pytest.mark.parametrize(
    ("name", "damages"),
    [
        ("name", [3]),
        ("inner", [[{"kind": "c"}], [{}], {}, [{"kind": "a", "counts": {"x": []}}]]),
        ("pair", [[1], [True, True]]),
        ("seconds", ["1"]),
        ("places", ["abc"]),
        ("more", [[]]),
    ],
)
def test_what_is_of_another_type_is_nothing(name: str, damages: list[Any]) -> None:
    for damage in damages:
        assert typed.typed_or_none(Outer, asdict(WHOLE) | {name: damage}) is None
        assert typed.typed_or_none(Outer, [{name: damage}]) is None


def test_what_another_version_has_more_is_passed_over_but_in_a_specification() -> None:
    newer = asdict(WHOLE) | {
        "unknown": 1,
        "inner": [{"kind": "a", "counts": {"3": [1, 2.5]}, "more": 2}, {"kind": "b"}],
    }
    assert typed.typed_or_none(Outer, newer) == WHOLE
    with pytest.raises(KeyError, match="unknown: unknown"):
        typed.built(Outer, newer)
    with pytest.raises(TypeError, match="seconds: 'x' is not of type float"):
        typed.built(Outer, asdict(WHOLE) | {"seconds": "x"})
    with pytest.raises(TypeError, match="inner: kind: 'c' is none of 'a', 'b'"):
        typed.built(Outer, asdict(WHOLE) | {"inner": [{"kind": "c"}]})
    with pytest.raises(TypeError, match=r"pair: \(1,\) has 1 parts; allowed: 2"):
        typed.built(Outer, asdict(WHOLE) | {"pair": (1,)})
