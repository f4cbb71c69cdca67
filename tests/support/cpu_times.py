"""`pytest --cpu-times=N`: the CPU and wall time of each file and of the N most expensive tests.

A plugin of pytest. CPU time is that of the tests' process and of all processes that it started, jobs of a Slurm cluster
included, so that a table made on a busy machine still says what a test costs. Wall time above it is waiting.
"""

from __future__ import annotations

import resource
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress

import psutil
import pytest

PROPERTY = "cost"
STARTED = pytest.StashKey[tuple[float, float]]()


def spent() -> float:
    """CPU seconds of this process, of its processes that have ended, and of those that are alive."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    total = sum(usage.ru_utime + usage.ru_stime for usage in usages)
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu-times", type=int, metavar="N", help="show CPU times: by file, and of the N dearest tests")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    if item.config.option.cpu_times is not None:
        item.stash[STARTED] = (spent(), time.monotonic())
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if call.when == "teardown" and STARTED in item.stash:
        cpu, wall = item.stash[STARTED]
        report.user_properties.append((PROPERTY, (spent() - cpu, time.monotonic() - wall)))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Reports come from xdist's workers too."""
    dearest = terminalreporter.config.option.cpu_times
    if dearest is None:
        return
    tests: list[tuple[float, float, str]] = []
    files: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for report in (r for reports in terminalreporter.stats.values() for r in reports if hasattr(r, "user_properties")):
        for name, value in report.user_properties:
            if name == PROPERTY and report.when == "teardown":
                tests.append((*value, report.nodeid))
                files[report.nodeid.partition("::")[0]].append(tuple(value))
    write = terminalreporter.write_line
    terminalreporter.write_sep("=", "CPU and wall seconds, processes included")
    sums = sorted(((sum(c), sum(w), len(c), name) for name, v in files.items() for c, w in [zip(*v, strict=True)]))
    for cpu, wall, count, name in reversed(sums):
        write(f"{cpu:8.1f} {wall:8.1f}  {name} ({count} tests)")
    write(f"{sum(c for c, _, _ in tests):8.1f} {sum(w for _, w, _ in tests):8.1f}  all ({len(tests)} tests)")
    terminalreporter.write_sep("-", f"the {dearest} dearest tests")
    for cpu, wall, name in sorted(tests, reverse=True)[:dearest]:
        write(f"{cpu:8.1f} {wall:8.1f}  {name}")
