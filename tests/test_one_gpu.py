"""Several ranks on one GPU: the self-test alone lets them share it, by an NCCL that can, and says so."""

from __future__ import annotations

from planned_preflights import recorded
from preflight_runs import says
from relay.planning.config import load
from relay.planning.one_gpu import Sharing
from relay.planning.planner import plan
from relay.preflight.checks import check_all
from relay.process import one_gpu


def test_ranks_of_nccl_share_and_the_rest_is_skipped_with_its_reason() -> None:
    asked = load(
        {
            "task": "lenet-digits",
            "comparisons": [
                {"strategy": "ddp", "devices_per_node": [2, 4, 8]},
                {"strategy": "ddp", "devices_per_node": 2, "backend": "gloo"},
                {"strategy": "data_parallel", "devices_per_node": 2},
            ],
        }
    )
    made = plan(asked, gpus=1, sharing=Sharing(4))
    assert {run.shape.devices_per_node for run in made.runs} == {2, 4}
    reasons = [" ".join(each.reasons) for each in made.skipped]
    assert len(reasons) == 3
    assert "the same GPU twice" in reasons[2]
    why = plan(asked, gpus=1, sharing=Sharing(why_not="fetch a wheel"))
    assert not why.runs
    assert why.skipped[0].reasons == ("devices_per_node is 2, 1 GPU can be used here; fetch a wheel",)
    assert why.skipped[-1].reasons == ("devices_per_node is 2, 1 GPU can be used here",)


def test_a_preflight_stops_at_a_shared_gpu_unless_nccl_is_told_of_it() -> None:
    facts = recorded()
    for rank in facts["ranks"]:
        rank |= {"node": "g1", "device_index": 0, "cuda": {**rank["cuda"], "devices": rank["cuda"]["devices"][:1]}}
    alone = {found.check: found for found in check_all(facts)}
    assert says(alone["one GPU for each rank"], "stop", "NCCL refuses that", "backend gloo")
    assert not alone["visible GPUs"].ok
    for rank in facts["ranks"]:
        rank["environment"][one_gpu.SHARED] = "1"
    shared = {found.check: found for found in check_all(facts)}
    assert says(shared["one GPU for each rank"], "note", f"which {one_gpu.SHARED} allows", "no speed")
    assert "visible GPUs" not in shared
