"""Why others may have slowed down the runs: a virtual machine, a shared node, a quota, other programs.

Repeats cannot show it: a neighbour that computes during all of one setting's repeats is no spread between them. So no
answer from such runs is certain.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from relay.comparison.measured import SettingResult
from relay.comparison.wording import listing, number

OTHERS = 0.1  # of the CPUs that a run has: so much of other programs is not overlooked


def neighbours(settings: Sequence[SettingResult]) -> list[str]:
    """Each reason as a clause, as the records of these settings' runs tell it; none where they tell of none."""
    summaries = [summary for each in settings for summary in each.summaries]
    return [*_machines(summaries), *_programs(settings)]


def _machines(summaries: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if any(each.get("virtual") for each in summaries):
        yield "the machine is virtual, and others may compute on its processors"
    if any(each.get("shares_nodes") for each in summaries):
        yield "other jobs may compute on the same nodes"
    if quotas := [float(each["cpu_quota"]) for each in summaries if each.get("cpu_quota")]:
        yield f"a quota limits the CPU time to that of {number(min(quotas), 2)} CPUs, as in a shared container"


def _programs(settings: Sequence[SettingResult]) -> Iterator[str]:
    used = [
        (summary["other_cpus"], summary["hosts"])
        for each in settings
        for summary in each.summaries
        if (summary.get("other_cpus") or 0) > OTHERS * each.run.shape.cpus_per_node
    ]
    if used:
        cpus, hosts = max(used)
        several = len({host for each in settings for summary in each.summaries for host in summary["hosts"]}) > 1
        yield f"other programs used up to {number(cpus, 2)} CPUs{f' of {listing(hosts)}' if several else ''} meanwhile"
