"""All that a chain's run has computed, and how two of them differ."""

from typing import Any

import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.utils._pytree import keystr, tree_flatten_with_path

from chain_runs import Chain
from relay.base.files import read_json
from relay.training.summary import summarise


def result(chain: Chain) -> dict[str, Any]:
    """All that a run computed: parameters and optimizer, the generators of each rank, losses, evaluations."""
    place = chain.work / f"step-{chain.run.length.total_steps}"
    whole = chain.results / "whole.pt"
    dcp_to_torch_save(place / "strategy", whole)
    summary = summarise(chain.run, chain.work)
    adopted = read_json(chain.work / "chain.json")["adopted_from"] or {"step": 0}
    assert summary.losses.steps == list(range(adopted["step"] + 1, chain.run.length.total_steps + 1))
    return {
        "state": torch.load(whole, weights_only=False),
        "generators": [torch.load(p, weights_only=True) for p in sorted(place.glob("rank-*.pt"))],
        "losses": summary.as_dict()["losses"],
        "evaluations": summary.evaluations,
    }


def assert_same(found: Any, wanted: Any) -> None:
    """Bit for bit."""
    ours, theirs = (dict(tree_flatten_with_path(each)[0]) for each in (found, wanted))
    assert list(ours) == list(theirs)
    for place, value in theirs.items():
        same = torch.equal(ours[place], value) if isinstance(value, torch.Tensor) else str(ours[place]) == str(value)
        assert same, keystr(place)


def difference(found: dict[str, Any], wanted: dict[str, Any]) -> float:
    """The largest difference in any parameter, any tensor of the optimizer, and any loss that both have."""
    pairs = [(found["state"]["model"][name], tensor) for name, tensor in wanted["state"]["model"].items()]
    pairs += [(found["state"]["optimizer"][name], tensor) for name, tensor in wanted["state"]["optimizer"].items()]
    losses, curve = (dict(zip(ran["losses"]["steps"], ran["losses"]["values"], strict=True)) for ran in (found, wanted))
    pairs += [(torch.tensor(loss), torch.tensor(curve[step])) for step, loss in losses.items()]
    differences = [(one.double() - other.double()).abs().max() for one, other in pairs]
    return float(torch.stack(differences).max())  # keeps a NaN
