"""What a call shows at its end: the plan, how far it is, what was measured, the comparison, the self-test's page."""

import shutil
import sys
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from subprocess import CalledProcessError

from snakemake.shell import shell

from relay.base import entry
from relay.base.files import read_json
from relay.card.looks import Looks
from relay.card.words import all_in_words
from relay.config.comparisons import task_options
from relay.driver import claim, end_jobs, guard, refused
from relay.driver.view import View
from relay.libtorch import record
from relay.planning import chains, handed, requests, table
from relay.slurm import commands
from relay.spec.arithmetic import Arithmetic
from relay.spec.run import OwnBatch
from relay.status import page as status_page
from relay.workflow import searches, selftest_plan
from relay.workflow.beside_driver import BesideDriver
from relay.workflow.call import RESULTS, Call
from relay.workflow.files import PROBED, Files
from relay.workflow.selftest import PAGE, SelfTest

COMPARE = " --plan results/plan.json --results results"
FOUND_OUT = {"largest_model", "libtorch", "libtorch_example", "preflight", "probe"}  # beside the comparison


class Shown(guard.Shows):
    """Prints, or writes, what the user asked for."""

    dry = ("card",)

    def __init__(self, call: Call, files: Files, driver: BesideDriver, selftest: SelfTest) -> None:
        self.call, self.plan, self.files, self.driver, self.of_selftest = call, call.plan, files, driver, selftest

    def afterwards(self) -> Mapping[str, Callable[[], None]]:
        return {
            "all": self.finished,
            "card": self.cards,
            "chain": self.trained,
            "equivalence": self.skipped,
            "largest_model": self.models,
            "libtorch": self.in_cpp,
            "libtorch_example": self.example_in_cpp,
            "plan": self.planned,
            "preflight": self.preflights,
            "probe": self.batches,
            "status": self.status,
            "selftest": self.end_of_selftest,
            **dict.fromkeys(self.plan.strategies, self.measured),
        }

    # The plan, and how far it is

    def view(self) -> View:
        return View(self.call.watch, proofs=self.call.proofs)

    def planned(self) -> None:
        """Print the plan; exit status 1 where Slurm would refuse a job."""
        plan = self.plan
        if self.call.unmeasured and self.call.again:  # what was just measured tells how many jobs there are
            plan = self.call.again()
        _say(table.render(plan, width=_width()))
        if problems := requests.refused(plan):
            sys.exit("\n".join(f"error: {problem}" for problem in problems))

    def skipped(self) -> None:
        """Print which settings are skipped, and why."""
        _say(*table.skipped(self.plan))

    def status(self) -> None:
        """Print how far the plan is: its runs, with Slurm's queue where they are jobs, and its proofs."""
        watch = self.call.watch
        watch.tries = commands.TRIES
        page = status_page.render(watch.look(), self.call.proofs, RESULTS, news=watch.news, width=_width())
        _say(page.removesuffix("\n"), *status_page.driver(claim.working(Path.cwd()), self.plan.runs, RESULTS))

    def cards(self) -> None:
        """Print the card of each combination of the task's options."""
        config, plain = self.call.config, self.plan.stacks.plain
        looks = Looks(config=config, root=self.plan.root, results=RESULTS, arithmetic=Arithmetic.here(), stack=plain)
        _say("\n\n".join(all_in_words([looks.looked(options) for options in task_options(config)])))

    # Results

    def measured(self) -> None:
        """Print what was measured of the strategies that this call names as targets."""
        from relay.comparison import terminal

        named = {name for name in self.call.workflow.dag_settings.targets if name in self.plan.strategies}
        _say(*terminal.alone(handed.plan_json(self.plan), RESULTS, named))

    def trained(self) -> None:
        """Print where the one training of `snakemake chain` lies."""
        _say(*chains.trained(self.plan, RESULTS))

    def finished(self) -> None:
        """Show the comparison again where all of it was there: `succeeded` has shown one that was made."""
        if not self.call.had_jobs_of("comparison") and not self.files.unfinished_comparison():
            self.comparison()

    def comparison(self) -> None:
        shell(self.driver.program("show-comparison") + " --results results")

    def renew_report(self, target: str) -> None:
        """The report that is there, if any, with what a target beside the comparison has found since."""
        log = RESULTS / "logs" / f"{target}.log"
        if (RESULTS / "comparison.csv").exists():
            log.parent.mkdir(parents=True, exist_ok=True)
            try:
                shell(self.driver.program("compare") + COMPARE + f" --partial > {log} 2>&1")
            except CalledProcessError:
                print(f"error: the report could not be made anew; {log} says why", file=sys.stderr)
                raise

    def batches(self) -> None:
        """Print the largest batches that fit."""
        if _there(PROBED, *self.files.answers("probe")):
            _say(searches.shown_batches(self.plan, self.files.read("probe"), PROBED))

    def models(self) -> None:
        """Print the largest models that fit. A report that is there gets its section on them."""
        if _there(*self.files.answers("largest_model")):
            _say(searches.shown_depths(self.plan, self.files.read("largest_model")))
            self.renew_report("largest_model")

    def in_cpp(self) -> None:
        """Print what trained models do in C++. A report that is there gets its section on it."""
        if _there(*self.files.in_cpp):
            _say(record.in_cpp_lines(RESULTS))
            self.renew_report("libtorch")

    def example_in_cpp(self) -> None:
        """Print what the smallest C++ program has said. The next call tries it again."""
        for answer in filter(Path.exists, map(Path, self.files.one_in_cpp)):
            answered = read_json(answer)
            _say(answered.get("said") or f"skipped: {answered['reason']}")
            answer.unlink()

    # When a call has ended

    def conclusion(self, targets: Collection[str]) -> tuple[str, bool]:
        every = {*targets} <= {"all", "comparison"}
        runs = [run for run in self.plan.runs if every or run.strategy.name in targets]
        own = {run.id: OwnBatch.of(run) for run in runs}
        return refused.conclusion([(run.id, self.plan.gate(run), run.setting_id) for run in runs], own=own)

    def succeeded(self) -> None:
        """All is made."""
        if self.call.had_jobs_of("comparison"):
            self.comparison()

    def failed(self) -> None:
        """Something is missing, for good or because the call was interrupted: the comparison is made of the others."""
        targets = self.call.workflow.dag_settings.targets
        if selftest_plan.TARGET in targets:  # of an interrupted call, too
            self.selftest()
        if end_jobs.interrupted():  # the next call goes on, and makes it
            return
        for target in sorted(FOUND_OUT.intersection(targets)):  # perhaps it was another target whose job has failed
            with suppress(CalledProcessError):
                self.afterwards()[target]()
        if self.call.had_jobs_of("comparison"):
            self.driver.write_plan("results/plan.json")
            shell(self.driver.program("compare") + COMPARE + " --partial")
            self.comparison()
        elif self.call.had_jobs_of("preflight_job") and "preflight" not in targets:
            with suppress(CalledProcessError):
                self.preflights()

    def preflights(self) -> None:
        """Show what the preflights found, of the shapes that are planned."""
        if any(Path(facts).exists() for facts in self.files.preflights):
            shell(self.driver.program("preflight", "--page", "results/preflight", "--only", *self.plan.preflights))

    # The self-test

    def meanwhile(self, done: int, total: int) -> None:
        if self.call.selftest:
            self.of_selftest.write(f"{done} of {total} jobs done")

    def selftest(self) -> bool:
        """Write the page, and show how it begins; whether all parts have worked."""
        from relay.selftest import page

        rows = self.of_selftest.write()
        wrong = [f"{row.outcome}: {row.what}: {row.text}" for row in page.wrong(rows)]
        _say(*wrong, f"Self-test: {page.counted(rows)}. The page: {PAGE}")
        return not wrong

    def end_of_selftest(self) -> None:
        """Exit status 1 where a part has not worked, as where a job has failed."""
        sys.exit(0 if self.selftest() else 1)


def _there(*files: str) -> bool:
    """Whether all are made: the call may have ended before, by --until."""
    return all(Path(file).exists() for file in files)


def _say(*lines: str) -> None:
    entry.print_anywhere()
    for line in lines:
        print(line, flush=True)


def _width() -> int:
    """At least 80 columns, which a table needs."""
    return max(80, shutil.get_terminal_size().columns)
