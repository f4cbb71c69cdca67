"""Warnings about a plan as a whole: more than a user may have at once, too short jobs, another Python."""

from __future__ import annotations

import sys
from collections import Counter as Sum
from collections.abc import Iterator

from relay.planning import shapes
from relay.planning.plan import Plan
from relay.spec.site import Site
from relay.spec.user_limits import all_counters


def warnings(plan: Plan) -> list[str]:
    """A line for each limit of a user that all runs at once would exceed, for a short time limit, for the Python."""
    if not (site := plan.site):
        return []
    return [*_more_than_at_once(plan, site), *_short_time_limit(plan, site), *_another_python(site)]


def _more_than_at_once(plan: Plan, site: Site) -> Iterator[str]:
    """A run has one job at a time in the queue, so that all jobs at once are as many as the runs."""
    counters = all_counters(site)
    if not counters:
        return
    total: Sum[str] = Sum()
    for planned in plan.settings:
        adds = shapes.counted(planned.setting.shape, site, plan.config)
        total.update({name: planned.repeats * each for name, each in adds.items()})
    for name, counter in counters.items():
        if total[name] > counter.most:
            yield (
                f"{len(plan.runs)} runs at once would take {total[name]} {counter.shown}, of which a user may have "
                f"{counter.most} at once ({site.file}): some wait for others, and are not even in the queue"
            )


def _short_time_limit(plan: Plan, site: Site) -> Iterator[str]:
    if plan.runs and site.min_minutes and plan.config.runtime_minutes < site.min_minutes:
        yield (
            f"runtime_minutes: {plan.config.runtime_minutes} is under the {site.min_minutes} that {site.file} names as "
            "the shortest useful job (min_minutes); raise it"
        )


def _another_python(site: Site) -> Iterator[str]:
    """Nodes make their environments with the driver's Python, unless the site names one."""
    found, given = "{}.{}".format(*sys.version_info), site.environment
    if given.driver_python not in (None, found) and not given.python:
        first = f"{given.install_after}; " if given.install_after else ""
        remedy = f"give `{first}make install PYTHON=python{given.driver_python}`"
        yield f"the driver runs Python {found}, {site.file} takes {given.driver_python} for granted; {remedy}"
