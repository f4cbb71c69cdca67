"""The loops of the page, each killed on its way: they end bit for bit as those that nobody killed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from pages import blocks
from relay.chain import resume
from relay.chain.state import State

pytest_plugins = ["chain_here"]
pytestmark = pytest.mark.usefixtures("in_a_script")

SETUP, *LOOPS = [each.text for each in blocks("docs/chain-loops.md") if each.language == "python"]
KILLED = 23  # saved every 5 steps, and complete with the save after that


class Killed(BaseException):
    """In place of SIGKILL: the process would do nothing more."""


def trained(loop: str, killed: int | None) -> dict[str, torch.Tensor]:
    """The weights after a job of the loop, which is killed after that step."""
    space: dict[str, Any] = {}
    exec(SETUP, space)
    runs = []

    def begun(**things: Any) -> Any:
        run = resume(save_steps=5, **things)
        after = run.after

        def until_killed(step: int) -> None:
            after(step)
            if saving := run._checkpoints._saving:
                saving.part.result()
            if step == killed:
                raise Killed

        vars(run)["after"] = until_killed
        runs.append(run)
        return run

    space["resume"] = begun
    try:
        exec(loop, space)
    except Killed:
        pass
    finally:
        for run in runs:
            run._lock.close()
    state: dict[str, torch.Tensor] = space["model"].state_dict()
    return state


@pytest.mark.slow
@pytest.mark.parametrize(
    "loop",
    LOOPS,
    ids=["fetched ahead", "no epochs", "two networks", "accumulated", "accumulated by batches", "stream, ema, scaler"],
)
def test_a_loop_of_the_page_ends_as_if_nobody_had_killed_it(
    loop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ends = []
    for name, kills in (("uncut", (None,)), ("cut", (KILLED, None))):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        ends.append([trained(loop, killed) for killed in kills][-1])
    assert all(torch.equal(one, ends[1][key]) for key, one in ends[0].items())
    told = capsys.readouterr()
    assert (told.out + told.err).count("goes on from step") == 1


def test_each_rank_keeps_its_own_dict_however_large_it_is() -> None:
    kept = {"batch": (torch.ones(2**19), 3), "none": None}
    ranks = SimpleNamespace(world_size=2, rank=1)
    state = State({"model": nn.Linear(1, 1), "kept": kept}, ranks)  # type: ignore[arg-type]
    assert "kept" not in state.replicated()
    saved = state.own()["further"]["kept"]
    kept |= {"batch": (torch.zeros(2**19), 4), "more": 1}
    state.further["kept"].load_state_dict(saved)
    assert (kept["batch"][0].sum(), kept["batch"][1], kept["more"]) == (2**19, 3, 1)
