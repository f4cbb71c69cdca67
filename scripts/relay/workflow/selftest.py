"""What a self-test does in jobs of its own, what these wait for, and its page."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from relay.planning import table
from relay.selftest.parts import FAULTS, RESUME
from relay.selftest.rows import Row
from relay.spec.run import Preflight
from relay.status import finished
from relay.workflow import selftest_plan
from relay.workflow.asked import asked
from relay.workflow.call import RESULTS, Call
from relay.workflow.files import FACTS, Files

PAGE = RESULTS / "selftest.md"
OF_PART = "results/selftest/{part}/{place}.json"


@dataclass(frozen=True)
class SelfTest:
    """The self-test of a call; without any part in a call that is none."""

    call: Call
    files: Files

    @cached_property
    def all(self) -> list[str]:
        """All that it makes; nothing in other calls, which plan nothing of it."""
        if not self.call.selftest:
            return []
        files, runs = self.files, self.call.plan.runs
        of_runs = [*map(files.summary_of, runs), *files.spot_checks_of(runs)]
        parts = [OF_PART.format(part=part, place=place) for part, place in self.parts]
        return [
            *map(FACTS.format, self.looks),
            *files.verdicts,
            *of_runs,
            *parts,
            *files.answers("probe"),
            *files.in_cpp,
        ]

    @asked
    def part(self, job: Any) -> list[str]:
        """What a part waits for: the run that is killed, or the nodes on which a fault is planted."""
        output = OF_PART.format(part=job.part, place=job.place)
        if job.part == RESUME:
            run = self.call.runs[job.place]
            wanted = [self.files.summary_of(run), *self.files.waited_for(run)]
        else:
            wanted = [FACTS.format(job.place)]
        why = finished.record(Path(output)) or selftest_plan.not_right(Path(output))
        return self.files.needed(output, why, wanted, {"selftest_part"})

    @cached_property
    def pairs(self) -> dict[str, Preflight]:
        """Where faults are planted: where pairs of processes are planned."""
        return selftest_plan.pairs(self.call.plan) if self.call.selftest else {}

    @cached_property
    def looks(self) -> Mapping[str, Preflight]:
        """A self-test's looks at nodes. Jobs on a cluster wait for theirs; on this machine the pairs' are enough."""
        return self.call.plan.preflights if self.call.selftest and self.call.site else self.pairs

    @cached_property
    def parts(self) -> list[tuple[str, str]]:
        """What a self-test does in jobs of its own, each with the run or the preflight that it is done to."""
        runs = self.call.plan.runs if self.call.selftest else []
        met = [
            (name, pair) for pair in self.pairs.values() for name, fault in FAULTS.items() if fault.met_by(pair.shape)
        ]
        return [*((RESUME, run.id) for run in runs), *((name, pair.id) for name, pair in met)]

    def rows(self) -> list[Row]:
        """What the records say of each part, for the page."""
        from relay.selftest.rows import Records

        plan, records = self.call.plan, Records(RESULTS, table.words_by_id(self.call.plan))
        rows = [records.of_preflight(look) for look in self.looks.values()]
        for gate in plan.gates.values():
            before = (f"environment/{gate.stack}", f"preflight/{plan.preflight(gate)}")
            rows.append(records.of_gate(gate, *before, f"reference/{plan.reference_of[gate.id]}"))
        for run in plan.runs:
            rows += records.of_run(run)
        rows += [records.of_spot_check(setting) for setting in plan.spot_checks]
        rows += [records.of_own_part(part, place, self.pairs.get(place)) for part, place in self.parts]
        rows += [records.of_probe(probe) for probe in self.call.probes.values()]
        rows += [records.of_libtorch(setting) for setting in plan.libtorch]
        return rows + [records.of_skipped(line) for line in dict.fromkeys(table.skipped(plan))]  # of several tasks

    def write(self, running: str = "") -> list[Row]:
        """Write the page; its rows. `running`: how far the call is, as long as it goes on."""
        from relay.selftest import page

        rows, site = self.rows(), self.call.site
        where = f"the cluster {site.name}" if site else selftest_plan.described(self.call.plan, self.call.gpus)
        page.write(rows, RESULTS, where, PAGE, running)
        return rows
