"""What `results/plan.json` says of a plan: from it, the comparison learns what was planned."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from relay.planning import shapes
from relay.planning.plan import Plan


def content(plan: Plan) -> dict[str, Any]:
    """The content of `plan.json`."""
    runs = [
        {
            "id": run.id,
            "setting": run.setting_id,
            "gate": plan.gate(run),
            "segments": plan.segments(run),
            "reference": plan.reference_of.get(plan.gate(run)),
            "preflight": plan.preflight(run) if plan.site else None,
            "taken": shapes.charged(run.shape, plan.site, plan.config),
        }
        for run in plan.runs
    ]
    skipped = [{"setting": asdict(each.setting), "reasons": each.reasons} for each in plan.skipped]
    told = {"margin": plan.config.margin, "spot_checks": bool(plan.spot_checks), "answer": _answer_rules(plan)}
    told |= {"dropped": plan.dropped, "config": plan.config.written()}
    return {"runs": runs, "skipped": skipped, **told}


def _answer_rules(plan: Plan) -> dict[str, Any]:
    """What the answer is made by, besides the margin."""
    site = plan.site
    return {
        "least_efficiency": plan.config.least_efficiency,
        "cores_per_gpu": site.cores_per_gpu if site else None,
        "price": site.price.model_dump() if site else None,
        **plan.config.answer.model_dump(),
        "least_minutes": site.min_minutes if site else None,
        "most_minutes": plan.config.runtime_minutes,
        "site_flags": shapes.site_flags(site) if site else [],
    }
