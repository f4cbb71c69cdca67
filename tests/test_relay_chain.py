"""The command `relay-chain`: how it tells and ends what it runs, and what it makes of Slurm's answers and limits."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from living import LONGEST_SECONDS, until
from relay.base.files import read_json
from relay.chain import ChainError, sbatch, supervisor
from relay.chain import command as chain_command
from relay.chain.files import exclusive
from relay.chain.slurm import END_TIME, end_time, in_environment, seconds_of

ROOT = Path(__file__).resolve().parents[1]
CHAIN = ROOT / "scripts" / "relay" / "chain"


pytestmark = pytest.mark.usefixtures("in_a_script")


# Time


def test_a_limit_is_read_as_slurm_reads_it() -> None:
    assert [seconds_of(limit) for limit in ("2:30", "1-2:3", 5.5)] == [150, 93780, 5.5]
    assert {seconds_of(limit) for limit in ("0", "0-0:00", "UNLIMITED", "infinite")} == {None}
    for limit in (0, "0.0", "none"):  # a number may be what is left of the time
        with pytest.raises(ChainError, match=f"'?{limit}'? is not allowed; allowed: .* 0 or UNLIMITED for no limit"):
            seconds_of(limit)


def test_the_earliest_end_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert end_time() is None
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(time.time() + 1000))
    monkeypatch.setenv(END_TIME, str(time.time() + 500))
    assert end_time("1-0") == end_time("0") == pytest.approx(time.time() + 500, abs=5)
    assert end_time(1) < time.time()  # type: ignore[operator]  # counted from the process's start
    monkeypatch.setenv("SLURM_JOB_END_TIME", "nan")
    assert in_environment() is None


# What Slurm's commands answer


def answers(name: str, text: str) -> None:
    """A command in this folder: of Slurm's, as a site or a busy controller has it, or a launcher."""
    Path(name).write_text(f"#!/bin/sh\n{text}\n")
    Path(name).chmod(0o755)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A chain's script, whose last job was 7."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    answers("sbatch", "echo 'Welcome! 3 jobs of yours run.'; echo '17;cluster'")
    answers("squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    Path("job.sh").write_text("#!/bin/sh\n#SBATCH --time=1\nrelay-chain python train.py\n")
    record = Path(f".job.sh.{os.getuid()}.chain")
    record.write_text('{"job": "7", "after": null}')
    return record


Begin = Callable[..., Path]


@pytest.fixture
def job(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> Begin:
    """Makes this process a job of that script's chain: number 9, which runs, or another one. Gives the chain's file."""
    answers("squeue", "")

    def begin(number: str = "9", record: Path = slurm.absolute()) -> Path:  # noqa: B008  # the fixture's own
        chain = sbatch.Chain(["job.sh", "a  b"], str(Path.cwd()), str(record), 5)
        monkeypatch.setenv(sbatch.CHAIN, json.dumps(vars(chain)))
        monkeypatch.setenv("SLURM_JOB_ID", number)
        return record

    return begin


def test_a_greeting_is_no_part_of_a_jobs_number_nor_the_scripts_words_of_sbatchs(slurm: Path) -> None:
    assert sbatch.main(["job.sh"]) == 0
    assert read_json(slurm)["job"] == "17;cluster"
    answers("squeue", "echo Welcome; case $* in *--clusters=cluster*) echo 17 17 $(id -u);; esac")
    with pytest.raises(ChainError, match="job 17;cluster is queued or runs; cancel it first: scancel 17 --clusters=c"):
        sbatch.main(["job.sh"])
    answers("squeue", "echo Welcome")
    assert sbatch.main(["./job.sh", "--export=NONE", "--array=0-3"]) == 0  # the script's own words
    with pytest.raises(ChainError, match=r"--array=0-3: each job of an array"):
        sbatch.main(["--array=0-3", "./job.sh"])
    answers("sbatch", "echo 'Socket timed out' >&2; exit 1")
    with pytest.raises(ChainError, match="timed out; look with squeue whether Slurm has it all the same, before you"):
        sbatch.main(["job.sh"])
    answers("sbatch", "echo 'Welcome!'")
    with pytest.raises(ChainError, match="no job's number in what it printed: 'Welcome!'; look with squeue"):
        sbatch.main(["job.sh"])


def test_the_log_that_an_option_names_is_no_script_once_it_is_there(slurm: Path) -> None:
    Path("train.log").write_text("relay.chain: goes on from step 4\n")
    answers("sbatch", "echo $* > asked; echo 17")
    words = ["-o", "train.log", "job.sh"]
    assert sbatch.main(words) == 0
    assert read_json(slurm)["job"] == "17"
    sbatch.Chain(words, ".", str(slurm), 5).submit("--dependency=afterany:9")
    assert Path("asked").read_text() == "--parsable -o train.log --dependency=afterany:9 job.sh\n"
    answers("squeue", "echo 17 17 $(id -u)")
    with pytest.raises(ChainError, match=r"job\.sh is a chain already: job 17 is queued"):
        sbatch.main(words)
    with pytest.raises(
        ChainError, match=r"'train\.log' names no file that begins with '#!'; write: relay-chain sbatch"
    ):
        sbatch.main(words[1:2])


def test_another_users_job_is_no_chain_of_this_one_and_an_earlier_versions_record_is_read(slurm: Path) -> None:
    """No second chain begins where the user's own job is queued, or while nobody knows of it."""
    slurm = slurm.rename(".job.sh.chain")
    for answer, told in (
        ("echo 7 7 $(id -u)", "job 7 is queued"),
        ("echo 'slurm_load_jobs error: Socket timed out' >&2; exit 1", "squeue: slurm_load_jobs error: Socket timed"),
    ):
        answers("squeue", answer)
        with pytest.raises(ChainError, match=told):
            sbatch.main(["job.sh"])
    answers("squeue", "echo 7 7 1$(id -u)")
    assert sbatch.main(["job.sh"]) == 0
    assert read_json(slurm)["job"] == "7"  # it may be the other user's


def test_a_lock_that_a_dead_node_has_left_delays_a_job_and_stops_none(
    job: Begin, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    record = job()
    lock = record.with_name(f"{record.name}.held")
    monkeypatch.setattr(sbatch, "LOCK_SECONDS", 0.5)
    with exclusive(lock)[0]:
        for delayed in (True, False):  # the next one finds it gone
            job()
            following = sbatch.follow()
            assert following
            assert following.job == "17;cluster"
            assert (
                f"warning: {lock}: Slurm job 9 on {socket.gethostname()} holds it for" in capfd.readouterr().err
            ) == delayed


def test_the_users_defaults_and_options_change_neither_what_is_waited_for_nor_what_is_asked(
    slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SBATCH_WAIT", "SBATCH_ARRAY_INX", "SLURM_CLUSTERS", "SLURM_JOB_ID", "SBATCH_PARTITION"):
        monkeypatch.setenv(name, "1")
    answers("sbatch", "echo $*, $(env | grep -E '^SBATCH|^SLURM') >> asked; echo 17")
    chain = sbatch.Chain(["--dependency=afterok:3", "job.sh", "--lr=1"], ".", str(slurm.absolute()), 5)
    assert chain.submit("--dependency=afterany:9") == "17"  # the last one counts
    words, environment = Path("asked").read_text().strip().split(", ")
    assert words == "--parsable --dependency=afterok:3 --dependency=afterany:9 job.sh --lr=1"
    assert set(environment.split()) == {"SBATCH_PARTITION=1", "SBATCH_OPEN_MODE=append"}


def test_the_jobs_end_is_found_beside_its_other_parts_or_a_line_says_that_it_is_not(
    job: Begin, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job()
    monkeypatch.setenv("SLURM_TIME_FORMAT", "relative")
    answers("squeue", 'echo Welcome; date -d @2000000000 +"9 9+0 $SLURM_TIME_FORMAT"; echo 10 9+1 2000000060')
    assert (end_time(), capsys.readouterr().err) == (2e9, "")
    answers("squeue", "echo 9 9_[1-3] N/A")  # no limit
    assert end_time() is None
    assert "Slurm tells no end of job 9 (N/A)" in capsys.readouterr().err
    answers("squeue", "echo 'Resource temporarily unavailable' >&2; exit 1")
    assert end_time() is None
    assert "(squeue: Resource temporarily unavailable)" in capsys.readouterr().err


def test_what_slurm_refuses_at_the_end_is_told_and_the_trainings_status_stands(
    job: Begin, capfd: pytest.CaptureFixture[str]
) -> None:
    """The script lies where nodes cannot write, too: a second chain of it would not be noticed."""
    answers("scancel", "echo 'Unable to contact slurm controller' >&2; exit 1")
    for sbatch_says, status, told in (
        ("echo 17", 0, "warning: job 17 is still to come: scancel: Unable to contact slurm controller"),
        ("echo QOSMaxSubmitJobPerUserLimit >&2; exit 1", 75, "sbatch: QOSMaxSubmitJobPerUserLimit; submit it again"),
    ):
        job(record=Path("/proc/none/.job.sh.chain"))
        answers("sbatch", sbatch_says)
        assert chain_command.main(["sh", "-c", f"exit {status}"]) == status
        said = capfd.readouterr().err
        assert told in said
        assert ("another chain of this script would not be noticed" in said) == (status == 0)


@pytest.mark.parametrize(
    ("temporary", "told"), [(None, "torchrunn: No such file"), ("/proc/none", "no folder for temporary files: No such")]
)
def test_a_command_that_cannot_be_started_ends_the_chain(
    job: Begin, monkeypatch: pytest.MonkeyPatch, temporary: str | None, told: str
) -> None:
    """The next job could not start it either."""
    monkeypatch.setattr(tempfile, "tempdir", temporary)
    job()
    answers("scancel", "echo $* > cancelled")
    with pytest.raises(ChainError, match=told):
        chain_command.main(["torchrunn", "train.py"])
    assert Path("cancelled").read_text() == "17 --clusters=cluster\n"


@pytest.mark.slow
def test_a_shell_is_not_told_to_end_in_place_of_its_script_which_is_waited_for() -> None:
    """A shell would die at once of SIGTERM; a job that is ended signals both of them, the shell sometimes first."""
    saves, ended = "trap 'sleep 0.5; touch saved; exit 75' TERM;", "kill -TERM $RELAY; while :; do sleep 0.1; done"
    Path("both.sh").write_text(f"{saves} kill -TERM $PPID; sleep 0.3; {ended}")
    Path("inner.sh").write_text(f"{saves} {ended}")
    for script, after in (("inner.sh", True), ("both.sh", False)):
        words = f"RELAY={os.getpid()} sh {script}; touch after; exit 3"
        assert chain_command.main(["sh", "-c", words]) == 75
        assert (Path("saved").exists(), Path("after").exists()) == (True, after)
        for left in ("saved", "after"):
            Path(left).unlink(missing_ok=True)


def test_a_helper_that_the_script_has_forked_is_not_told_to_end_before_the_training_has_saved() -> None:
    Path("train.py").write_text(
        "import os, signal, time; from relay.chain.signals import Interruption\n"
        "training = Interruption(); training.watch()\n"
        "helper = os.fork()\n"
        "while helper == 0: time.sleep(0.1)\n"
        f"os.kill({os.getpid()}, signal.SIGTERM)\n"
        "while not training.reason: time.sleep(0.1)\n"
        "time.sleep(0.5)\n"
        "lives = os.waitpid(helper, os.WNOHANG) == (0, 0)\n"
        "os.kill(helper, signal.SIGKILL)\n"
        "open('lived', 'w').write(str(lives))\n"
    )
    assert chain_command.main(["sh", "-c", f"{sys.executable} train.py; exit 3"]) == 75
    assert Path("lived").read_text() == "True"


def test_what_does_not_end_is_killed_at_the_jobs_end(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MOST_SECONDS", "MEANWHILE_SECONDS"):
        monkeypatch.setattr(chain_command, name, 0.2)
    deaf = f"trap : TERM; kill -TERM {os.getpid()}; while :; do sleep 0.1; done"
    for least in (0.4, 1.4):  # where no end is known, and then in a job that ends soon
        began = time.time()
        assert chain_command.main(["sh", "-c", deaf]) == 75
        assert least < time.time() - began < LONGEST_SECONDS
        monkeypatch.setenv("SLURM_JOB_ID", "9")
        monkeypatch.setenv("SLURM_JOB_END_TIME", str(time.time() + 1.5))


def test_a_signal_to_the_jobs_shell_alone_ends_its_script_in_time(job: Begin) -> None:
    """`#SBATCH --signal=B:USR1@60` ends the shell at once; what it has started would train on beside the next job."""
    job()
    Path("inner.sh").write_text("trap 'touch saved; exit 75' TERM; touch begun; while :; do sleep 0.1; done")
    shell = subprocess.Popen(["sh", "-c", f"{sys.executable} -m relay.chain sh inner.sh; true"])
    until(Path("begun").exists, "the script runs")
    shell.send_signal(signal.SIGUSR1)
    shell.wait()
    until(Path("saved").exists, "it has saved")


def test_a_launcher_outlives_the_signal_that_its_ranks_save_at() -> None:
    """Slurm's SIGUSR1 or 2 comes to all processes of a job; torchrun knows none but SIGTERM."""
    assert chain_command.main(["sh", "-c", "kill -USR1 $$; kill -USR2 $$; exit 3"]) == 3


def test_the_ranks_of_a_killed_torchrun_end_with_it() -> None:
    """Those that have not met yet know of no launcher, and would wait for it beside the next job."""
    answers("torchrun", "echo $$ > launcher\nsetsid sh -c 'echo $$ > rank; exec sleep 300' & wait")
    job = subprocess.Popen([sys.executable, "-m", "relay.chain", "./torchrun"])
    until(lambda: Path("rank").exists() and Path("rank").read_text().endswith("\n"), "the rank has begun")
    os.kill(int(Path("launcher").read_text()), signal.SIGKILL)
    assert job.wait(LONGEST_SECONDS) == 128 + signal.SIGKILL
    assert supervisor.stat_fields(int(Path("rank").read_text())) is None


FULL = "import resource as r; from relay.chain.telling import stopped as s; r.setrlimit(r.RLIMIT_FSIZE, (0, 0))"
SOON = "import relay.chain.signals as s; s.LAST_SECONDS = 0; training.margin_seconds = 0"


@pytest.mark.parametrize(
    ("ends", "status"),
    [
        ("os.kill(os.getpid(), 9)", 137),
        ("raise ValueError", 1),
        ("training.end(); os.kill(os.getpid(), 15)", 1),
        ("os.kill(os.getpid(), 15); time.sleep(1); os.kill(os.getpid(), 9)", 1),
        (f"{SOON}; os.kill(os.getpid(), 15); time.sleep(60)", 1),
        (f"{SOON}; training.end_time = time.time() + 3; time.sleep(60)", 75),
        (f'{FULL}; raise s(3, "", rank=0)', 75),
    ],
    ids=[
        "killed",
        "failed",
        "ended by torchrun after its training",
        "killed by torchrun, which told it to end",
        "waits for one that has failed",
        "waits at the job's end",
        "has saved and stops, where no room is left to tell of it",
    ],
)
def test_a_rank_that_was_killed_is_told_from_one_that_has_failed(ends: str, status: int) -> None:
    """torchrun's status is 1 for each. The chain goes on after a kill or a stop alone."""
    watching = "from relay.chain.signals import Interruption as I; training = I(); training.watch()"
    rank = f"import os, time; {watching}; {ends}"
    answers("torchrun", f"TORCHELASTIC_RUN_ID=x {sys.executable} -c '{rank}'\nexit 1")
    done = subprocess.run([sys.executable, "-m", "relay.chain", "./torchrun"], capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    assert ("a rank was killed" in done.stderr) == (status == 137)
    assert ("could not tell more: /tmp has no room" in done.stderr) == (FULL in ends)


def test_a_rank_that_waits_before_it_resumes_ends_with_its_torchrun() -> None:
    """Also where nobody is left to end it."""
    Path("rank.py").write_text("from relay.chain import resume\nopen('waits', 'w')\nimport time\ntime.sleep(300)\n")
    ranks = f"TORCHELASTIC_RUN_ID=x {sys.executable} rank.py & echo $! > rank; wait"
    launcher = subprocess.Popen(["sh", "-c", ranks])
    until(Path("waits").exists, "it waits")
    launcher.kill()
    launcher.wait()
    until(lambda: supervisor.stat_fields(int(Path("rank").read_text())) is None, "it has ended")


@pytest.mark.slow
@pytest.mark.parametrize(("takes", "new"), [(False, "17"), (True, "18")], ids=["does not take it", "takes it"])
def test_while_sbatch_gives_no_answer_the_job_trains_and_asks_again(
    job: Begin, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], takes: bool, new: str
) -> None:
    """Of a job that was submitted and whose number was lost, no second one is made; the user's own ones are none."""
    record = job()
    lost = "echo 'sbatch: error: Batch job submission failed: Socket timed out' >&2; exit 1"
    answers("sbatch", f"{'touch taken; ' if takes else ''}{lost}")
    answers("squeue", "test $2 = $(id -un) && cat queue; test -e taken && cat next; true")
    script = f"afterany:9(unfulfilled) {Path.cwd()}/./job.sh a  b"
    own, evaluates = "9 1000 900 (null) job.sh a  b", f"16 N/A 1001 afterany:9(unfulfilled) {Path.cwd()}/eval.sh"
    Path("queue").write_text(f"Welcome!\n{own}\n{evaluates}\n15 N/A 950 {script}\n")
    Path("next").write_text(f"18 N/A 1000 {script}\n")
    monkeypatch.setattr(chain_command, "MEANWHILE_SECONDS", 0.5)
    mended = "printf '#!/bin/sh\\ntouch submitted; echo 17\\n' > sbatch"
    followed = f'for each in $(seq 600); do grep -q \'"after": "9"\' {record} && break; sleep 0.1; done'
    assert chain_command.main(["sh", "-c", f"{mended}; {followed}; exit 75"]) == 75
    told = capfd.readouterr().err
    warned = "warning: the next job is not submitted yet: sbatch: sbatch: error: Batch job submission failed"
    assert (warned in told) is not takes
    assert f"job {new} goes on" in told
    assert read_json(record) == {"job": new, "after": "9"}
    assert Path("submitted").exists() is not takes


def test_a_script_that_calls_it_twice_submits_one_job_also_where_the_record_cannot_be_written(job: Begin) -> None:
    Path("file").touch()
    script = f"afterany:9(unfulfilled) {Path.cwd()}/job.sh a  b"
    Path("queue").write_text(f"9 1000 900 (null) job.sh a  b\n15 N/A 950 {script}\n")
    answers("sbatch", f"echo '17 N/A 1000 {script}' >> queue; echo 17")
    followed = []
    for queue in ("echo no answer >&2; exit 1", "cat queue", "cat queue"):  # nothing is known at first
        answers("squeue", queue)
        job("9", Path("file") / "chain")
        following = sbatch.follow()
        assert following
        followed.append(following.job)
    assert followed == ["17"] * 3
    assert Path("queue").read_text().count("17 N/A") == 1


def test_two_jobs_in_a_row_that_have_saved_no_step_are_the_last(
    job: Begin, slurm: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """As where there is too little memory, or where no step ends within the limit."""
    answers("scancel", "echo $* >> cancelled")

    def ended(number: str, code: str) -> str:
        job(number)
        code = f"import os; from relay.chain.telling import tell; {code}; os.kill(os.getpid(), 9)"
        assert chain_command.main([sys.executable, "-c", code]) == 128 + 9
        return capfd.readouterr().err

    goes_on = "job 17;cluster goes on"
    assert goes_on in ended("9", "tell('resumed', 4)")
    assert goes_on in ended("10", "tell('resumed', 4); tell('saved', 5)")
    assert goes_on in ended("11", "tell('resumed', 5)")
    assert goes_on in ended("12", "pass")  # nobody tells, as in a container
    assert goes_on in ended("13", "tell('resumed', 5)")
    assert goes_on in ended("13", "tell('resumed', 5)")  # Slurm has started it again
    assert not Path("cancelled").exists()
    said = ended("14", "tell('resumed', 5)")
    assert "2 jobs in a row have saved no step; give a job more memory, or a longer limit" in said
    assert goes_on not in said
    assert Path("cancelled").read_text() == "17 --clusters=cluster\n"
    assert sbatch.main(["job.sh"]) == 0
    assert read_json(slurm) == {"job": "17;cluster", "after": None}


def test_what_would_keep_the_chain_from_the_next_job_and_what_cannot_be_read_is_refused(slurm: Path) -> None:
    for told, words, why in (
        ("--time=5 --export=NONE", [], "--export=NONE: it hands"),
        ("", ["--export", "NONE"], "--export NONE: it hands"),
        ("-a 1,2%1", [], "-a 1,2%1: each job of an array would submit an array"),
        ("--nodes=1 --wait", [], "--wait: each job would wait for the end of the next one"),
    ):
        Path("job.sh").write_text(f"#!/bin/sh\n#SBATCH {told}\nrelay-chain python train.py -a 3\n")
        with pytest.raises(ChainError, match=why):
            sbatch.main([*words, "job.sh"])
    with pytest.raises(ChainError, match=r"^/proc/self/mem: Input/output error$"):
        sbatch.main(["/proc/self/mem"])
    assert read_json(slurm)["job"] == "7"


# The command


def test_what_a_script_has_told_is_status_75_whatever_its_launcher_makes(capfd: pytest.CaptureFixture[str]) -> None:
    note = """echo '{"step": 3, "reason": "SIGTERM"}' > $RELAY_CHAIN_NOTE"""
    assert chain_command.main(["sh", "-c", f"{note}; exit 1"]) == 75
    assert capfd.readouterr().err == ""
    early = "trap '' TERM; kill -USR1 $PPID; sleep 0.3; test -e ${RELAY_CHAIN_NOTE%/*}/early"
    assert chain_command.main(["sh", "-c", early]) == 0
    assert chain_command.main(["sh", "-c", "test -z $RELAY_CHAIN_HEARS", "torchrun"]) == 0
    capfd.readouterr()
    assert chain_command.main(["sh", "-c", note]) == 75
    assert "ended with status 0, and had stopped after step 3: let SystemExit pass" in capfd.readouterr().err


@pytest.mark.slow
def test_the_wheel_holds_the_folder_and_the_command(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(CHAIN)]
    done = subprocess.run(build, capture_output=True, text=True)
    if "No matching distribution found for hatchling" in done.stderr:
        pytest.skip("no package index here")
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("torch_relay_chain-*.whl")
    shutil.unpack_archive(wheel, tmp_path / "in", "zip")
    assert {path.name for path in (tmp_path / "in/relay/chain").iterdir()} == {
        path.name for path in CHAIN.iterdir() if path.suffix == ".py" or path.name == "py.typed"
    }
    assert "relay-chain = relay.chain.command:main" in next((tmp_path / "in").glob("*/entry_points.txt")).read_text()
    assert not (tmp_path / "in/relay/__init__.py").exists()  # Torch Relay's own would be hidden
