# Torch Relay: trains one task under every parallel strategy and compares them.
#   snakemake --profile profiles/local            the whole comparison of config/config.yaml
#   snakemake --profile profiles/local -n         what would run
#   snakemake --profile profiles/local plan       jobs and hours at most to be spent, before anything runs
#   snakemake --profile profiles/local card       the task in words: what was seen of it, and what that means
#   snakemake --profile profiles/local data           the task's data only
#   snakemake --profile profiles/local ddp        one strategy only
#   snakemake --profile profiles/local first_repeats   each setting twice
#   snakemake --profile profiles/local chain      one training alone, as jobs until it has ended
#   snakemake --profile profiles/local status     what is done, running, queued and still to do
#   snakemake --profile profiles/local probe      the largest batches that fit, as a config
#   snakemake --profile profiles/local largest_model   the largest model that fits, for each setting
#   snakemake --profile profiles/local export     the trained models, as safetensors
#   snakemake --profile profiles/local libtorch   the trained models in a C++ program, beside Python
#   snakemake --profile profiles/local libtorch_example   the smallest C++ program, without any training
#   snakemake --profile profiles/slurm preflight  is PyTorch all right on this cluster?
#   snakemake --profile profiles/slurm selftest   does all of this work on these devices?
import sys

from snakemake.utils import min_version

min_version("9.23")
sys.path.insert(0, f"{workflow.current_basedir}/scripts")
from relay.selftest.parts import PARTS
from relay.spec.script import NOT_PROVEN
from relay.workflow.beside_driver import BesideDriver
from relay.workflow.drive import drive
from relay.workflow.files import COMPARED, GATE, PROBED, REPORTED, Files
from relay.workflow.jobs import Jobs
from relay.workflow.new_call import check_defaults, new_call
from relay.workflow.selftest import SelfTest
from relay.workflow.shown import Shown

check_defaults(workflow)


configfile: f"{workflow.basedir}/config/config.yaml"


report: "workflow/report/workflow.rst"


# What the rules below refer to: the plan, the files that they make, their jobs' and their own commands.
call = new_call(workflow)
plan = call.plan
files = Files(call)
jobs = Jobs(call)
driver = BesideDriver(call, files)
selftest = SelfTest(call, files)
shown = Shown(call, files, driver, selftest)
drive(call, jobs, shown)


include: "workflow/rules/common.smk"
include: "workflow/rules/card.smk"
include: "workflow/rules/datasets.smk"
include: "workflow/rules/environments.smk"
include: "workflow/rules/preflight.smk"
include: "workflow/rules/equivalence.smk"
include: "workflow/rules/training.smk"
include: "workflow/rules/spot_check.smk"
include: "workflow/rules/comparison.smk"
include: "workflow/rules/planning.smk"
include: "workflow/rules/probe.smk"
include: "workflow/rules/export.smk"
include: "workflow/rules/libtorch.smk"
include: "workflow/rules/selftest.smk"
include: "workflow/rules/strategies.smk"


rule all:
    default_target: True
    input:
        "results/plan.json",
        COMPARED,
        files.of_runs,
        files.forced,
