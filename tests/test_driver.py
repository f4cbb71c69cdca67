"""The driver on a real cluster: one at a time, killed without loss, ended without leftovers."""

import errno
import fcntl
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import Mock

import pytest

from driver_runs import HELD, JOBS, ROOT, Workplace
from living import LONGEST_SECONDS, read_until, until
from refusals import refusal
from relay.base.errors import NoNode, Unavailable, UserError
from relay.commands import drive as drive_command
from relay.driver.claim import claim
from relay.slurm import allocation, commands

pytest_plugins = ["driver_runs"]

# Slurm's commands


@pytest.mark.slow
def test_the_queue_as_slurm_tells_it(place: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQUEUE_FORMAT", "%i")  # a user's own defaults must not matter
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    (place.folder / "other").mkdir()
    submit = ["sbatch", "--parsable", "--time=7", "--comment=rule_x | y"]
    mine = place.cluster.run(*submit, "--job-name=relay_a b", "--wrap=sleep 60", cwd=place.folder).stdout.strip()
    for name, folder in (("relay_x", place.folder / "other"), ("relays", place.folder), ("driver", place.folder)):
        place.cluster.run(*submit, f"--job-name={name}", "--wrap=sleep 60", cwd=folder)
    until(lambda: place.cluster.job(mine)["JobState"] == "RUNNING", "the job runs")

    (job,) = commands.jobs_named("relay", place.folder)
    assert job == commands.QueuedJob(mine, "relay_a b", "RUNNING", str(place.folder), "rule_x | y", "None", job.start)
    shown = commands.show_job(mine)
    waited = allocation.waited(shown)
    assert abs(waited["ends"] - time.time() - 7 * 60) < 60
    assert time.time() - 60 < waited["submitted"] <= waited["started"] <= time.time()
    assert allocation.shares_nodes(shown) is True
    commands.cancel([mine, "999999"])  # one that Slurm does not know is no error
    until(lambda: not commands.jobs_named("relay", place.folder), "the job is gone")
    assert commands.state("999999") is None


@pytest.mark.slow
def test_a_job_of_an_array_is_found_by_either_name(place: Workplace) -> None:
    submit = ["sbatch", "--parsable", "--hold", "--array=2-3", "--wrap=true"]
    array = place.cluster.run(*submit, cwd=place.folder).stdout.strip()
    place.cluster.run("scontrol", "update", f"JobId={array}_3", "TimeLimit=7")  # Slurm gives it an id of its own
    own = place.cluster.job(f"{array}_3")["JobId"]
    assert own != array
    assert commands.state(f"{array}_3") == commands.state(own) == "PENDING"
    place.cluster.run("scancel", array)
    until(lambda: commands.state(own) != "PENDING", "the array is gone")


@pytest.mark.slow
def test_a_job_whose_nodes_are_away_is_queued_and_one_that_no_node_can_take_is_refused(place: Workplace) -> None:
    for node in ("g1", "g2"):
        place.cluster.set_node(node, "drain")
    queued, impossible = ["--partition=gpu", "--gpus-per-node=1"], ["--partition=cpu", "--gpus-per-node=1"]
    with pytest.raises(NoNode, match=r"is not available; away are 2 of 2 nodes of partition gpu \(drained\)$"):
        commands.expected_start(queued, "gpu")
    with pytest.raises(NoNode, match=r"; away are 2 of 4 nodes"):
        commands.expected_start(queued)
    place.cluster.run("sbatch", *queued, "--wrap=true", cwd=place.folder)  # as Slurm itself does
    with pytest.raises(UserError, match=r"is not available$") as caught:
        commands.expected_start(impossible, "cpu")
    assert not isinstance(caught.value, NoNode)
    with pytest.raises(RuntimeError, match="is not available"):
        place.cluster.run("sbatch", *impossible, "--wrap=true", cwd=place.folder)
    for state in ("INACTIVE", "DRAIN", "UP"):
        place.cluster.run("scontrol", "update", "PartitionName=short", f"State={state}")
        with pytest.raises(NoNode, match="inactive or drain") if state != "UP" else nullcontext():
            commands.expected_start(["--partition=short"])


def out_of_reach(place: Workplace, port: int, *commands: str) -> Path:
    """The real commands, asking a controller at this port, where none is; their calls are noted in calls.txt."""
    folder, munge = place.folder, f"{place.cluster.folder}/run/munge.sock"
    (folder / "dead.conf").write_text(
        f"ClusterName=dead\nSlurmctldHost=localhost(127.0.0.1)\nSlurmctldPort={port}\nAuthType=auth/munge\n"
        f"AuthInfo=socket={munge}\nMessageTimeout=2\nNodeName=n1\nPartitionName=p Nodes=n1\n"
    )
    (folder / "bin").mkdir()
    for name in commands:
        program = shutil.which(name, path="/usr/local/bin:/usr/bin:/bin")
        script = folder / "bin" / name
        script.write_text(
            f"#!/bin/sh\necho {name} >> {shlex.quote(str(folder))}/calls.txt\n"
            f'SLURM_CONF={shlex.quote(str(folder))}/dead.conf exec {program} "$@"\n'
        )
        script.chmod(0o755)
    return folder / "bin"


@pytest.mark.slow
def test_a_silent_controller_is_asked_again_unlike_a_refusal(place: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "PAUSE_SECONDS", 0.1)
    real, calls = os.environ["PATH"], place.folder / "calls.txt"
    with socket.create_server(("127.0.0.1", 0)) as server:  # takes what is said, and says nothing
        path = out_of_reach(place, server.getsockname()[1], "squeue", "sbatch")
        monkeypatch.setenv("PATH", f"{path}:{real}")
        with pytest.raises(Unavailable, match=r"^squeue failed: .*timed out"):
            commands.mine(tries=2)
        assert calls.read_text().split() == ["squeue"] * 2
        calls.unlink()
        with pytest.raises(Unavailable, match=r"^sbatch failed: .*; look with `squeue --me` whether"):
            commands.submit("#!/bin/sh\n", [])
        assert calls.read_text().split() == ["sbatch"]  # the first could have got through
    monkeypatch.setenv("PATH", real)
    with pytest.raises(UserError, match="Invalid partition name") as caught:
        commands.submit("#!/bin/sh\n", ["--partition=none"])
    assert not isinstance(caught.value, Unavailable)
    with pytest.raises(UserError, match=r"nvalid partition .*; allowed: cpu, gpu, short$"):
        commands.expected_start(["--partition=none"])


# One at a time


def test_the_lock_ends_with_its_process_whatever_that_started(tmp_path: Path) -> None:
    """A daemon that the driver started keeps on after kill -9, the lock does not; and the next one is told."""
    code = (
        "import subprocess, sys, time; from pathlib import Path; from relay.driver.claim import claim\n"
        "claim(Path('.')); child = subprocess.Popen(['sleep', '60'], start_new_session=True, stdout=-3)\n"
        "print(child.pid, flush=True); time.sleep(60)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "scripts")}
    words = [sys.executable, "-c", code]
    first = subprocess.Popen(words, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)
    daemon = int(first.stdout.readline())
    try:
        with pytest.raises(UserError, match=rf"another driver \(pid {first.pid} on \S+ since .*\) works on these"):
            claim(tmp_path)
        first.kill()
        first.wait()
        os.kill(daemon, 0)
        held = claim(tmp_path)
        assert held.left_by.startswith(f"pid {first.pid} on ")
        held.release()
        again = claim(tmp_path)
        assert again.left_by == ""
        again.release()
    finally:
        first.kill()
        first.communicate()
        os.kill(daemon, signal.SIGKILL)


def test_without_locks_there_is_a_warning(tmp_path: Path, monkeypatch, capsys) -> None:
    """Simulated: none is here that refuses locks."""
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(errno.ENOLCK, "No locks available")))
    claim(tmp_path).release()
    warning = capsys.readouterr().err
    assert re.fullmatch(r"warning: \S+: this file system has no locks \(No locks available\): .*\n", warning)
    claim(tmp_path)
    lock = tmp_path / ".snakemake/relay-driver.lock"
    own, other = f"pid {os.getpid()} on ", f"pid {os.getppid()} on "
    begun_anew = claim(tmp_path)  # by `exec`, which keeps its number
    assert begun_anew.left_by.startswith(own)
    lock.write_text(lock.read_text().replace(own, other))
    with pytest.raises(UserError, match=rf"another driver \({other}"):
        claim(tmp_path)
    os.utime(lock, (0, 0))  # of a process that had this number before
    assert claim(tmp_path).left_by.startswith(other)
    begun_anew.release()


# Killed


WAITS = "To cancel them instead: scancel "


@pytest.mark.slow
def test_a_second_driver_is_refused_and_one_after_kill_9_waits_and_submits_no_job_twice(place: Workplace) -> None:
    """A restart that is broken off while it waits harms no job, and the next one waits as well."""
    killed = place.drive(seconds=HELD)
    until(lambda: len(place.lines("started.txt")) == 3, "three jobs run")
    second = place.drive()
    printed, _ = second.communicate(timeout=LONGEST_SECONDS)
    assert second.returncode == 1
    (told,) = re.findall(r"(?m)^error: .*", printed)
    assert re.search(rf"another driver \(pid {killed.pid} on .*works on these results", told)
    assert "Traceback" not in printed
    killed.kill()
    waiting = place.drive(seconds=1)
    told = read_until(waiting, WAITS)
    assert re.search(rf"(?m)^Waiting for the end of 3 jobs of a driver that was killed \(pid {killed.pid} on ", told)
    waiting.send_signal(signal.SIGINT)
    printed, _ = waiting.communicate(timeout=LONGEST_SECONDS)
    stopped = "Stopped. What is finished or saved is kept. Give the same command again to continue.\n"
    assert (waiting.returncode, printed) == (1, stopped)
    assert len(place.left()) == 3
    last = place.drive("last.txt", seconds=1)
    printed = read_until(last, WAITS)
    place.release()
    printed += last.communicate(timeout=LONGEST_SECONDS)[0]
    assert last.returncode == 0, printed
    assert "Waiting for the end of 3 jobs of an earlier driver; nothing is submitted twice" in printed
    assert len(re.findall(r"(?m)^  \d+ \w+ rule_first_wildcards_\d$", printed)) == 3
    assert printed.index("All is over") < printed.index("Building DAG")
    assert place.lines("started.txt") == place.lines("ended.txt") == JOBS
    assert len(place.submitted()) == 4
    assert (place.folder / "last.txt").read_text() == "done\n"


@pytest.mark.slow
def test_jobs_find_slurm_where_only_the_environment_tells_it(place: Workplace) -> None:
    """Without a configuration in /etc, and without the cluster's own commands, which know where it is."""
    own, conf = f"{place.cluster.folder}/bin", f"{place.cluster.folder}/slurm.conf"
    path = ":".join(folder for folder in place.cluster.environment["PATH"].split(":") if folder != own)
    process = place.drive("state.txt", environment={**place.cluster.environment, "PATH": path, "SLURM_CONF": conf})
    printed, _ = process.communicate(timeout=LONGEST_SECONDS)
    assert process.returncode == 0, printed
    assert (place.folder / "state.txt").read_text() == "RUNNING\n"


IMPATIENT = """import sys
from relay.slurm import allocation, commands
from snakemake.cli import main
commands.PAUSE_SECONDS = 0.1
main(sys.argv[1:])
"""


@pytest.mark.slow
def test_a_controller_that_is_down_is_one_line_and_nothing_is_submitted(place: Workplace) -> None:
    """With the plain plugin, too, of which a line says what is missing."""
    bin_folder = out_of_reach(place, 1, "squeue")
    os.environ["PATH"] = f"{bin_folder}:{os.environ['PATH']}"  # the fixture puts it back
    words, environment = [sys.executable, "-c", IMPATIENT], os.environ | {"PYTHONPATH": f"{ROOT}/scripts"}
    words += [word.replace("torch-relay", "slurm") for word in place.arguments() if word[:8] != "--logger"]
    done = subprocess.run(words, cwd=place.folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.count("Executor torch-relay does better") == 1
    (line,) = re.findall(r"(?m)^error: .*", done.stderr)
    assert line.startswith("error: squeue failed: ")
    assert "Unable to contact slurm controller" in line
    assert ("Traceback" in done.stderr, place.submitted()) == (False, [])


GARBLED = """#!/bin/bash
echo "Welcome: 3 nodes are free"
number=$({real}/sbatch "$@") || exit
(( number % 2 )) && {{ echo "sbatch: error: Batch job submission failed: Socket timed out" >&2; exit 1; }}
echo "$number"
echo "2 jobs wait"
"""


@pytest.mark.slow
def test_a_job_that_slurm_has_is_found_whatever_sbatch_says(place: Workplace) -> None:
    """Every second answer is lost, and the others stand between words of the site's."""
    (folder := place.folder / "bin").mkdir()
    (folder / "sbatch").write_text(GARBLED.format(real=f"{place.cluster.folder}/bin"))
    (folder / "sbatch").chmod(0o755)
    path = f"{folder}:{place.cluster.environment['PATH']}"
    process = place.drive(environment={**place.cluster.environment, "PATH": path})
    printed, _ = process.communicate(timeout=LONGEST_SECONDS)
    assert process.returncode == 0, printed
    assert len(place.submitted()) == len(place.lines("started.txt")) == 4
    assert "Traceback" not in printed
    assert "attempt" not in printed


# Ended by a signal


@pytest.mark.slow
def test_a_signal_cancels_what_was_submitted_and_what_is_just_being(place: Workplace) -> None:
    process = place.drive(seconds=60, first=30)
    until(lambda: len(place.left()) >= 2, "the first jobs are in the queue")
    process.send_signal(signal.SIGINT)
    printed, _ = process.communicate(timeout=LONGEST_SECONDS)
    assert process.returncode == 1, printed
    assert "SIGINT: cancelling the jobs of this driver" in printed
    assert "Traceback" not in printed
    until(lambda: not place.left(), "no job is left")
    # One that is cancelled late may have failed by itself: Snakemake removes a folder that it looks for.
    states = {job["JobState"] for job in place.submitted()}
    assert "CANCELLED" in states
    assert states <= {"CANCELLED", "FAILED"}
    assert place.lines("ended.txt") == []


# Places to run it in


def drive(
    place: Workplace, where: str, *arguments: str, seconds: int = 1, config: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, f"{ROOT}/scripts/main.py", "drive", *where.split()]
    command = [*program, "--", *place.arguments(*arguments, seconds=seconds), *config]
    return subprocess.run(command, cwd=place.folder, capture_output=True, text=True, timeout=LONGEST_SECONDS)


HOSTILE = "note='; touch one; $(touch two);"


@pytest.mark.long
def test_as_a_job_it_makes_way_for_its_successor_in_time(place: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only this has a driver that is queued again; Slurm does not take it back into the queue at once."""
    site = place.folder / "mine.yaml"
    site.write_text(
        "name: mine\ndescription: the tests' cluster\nverified: here\n"
        "partitions: [{name: cpu, device: cpu, cpus_per_node: 8, max_minutes: 60, asks_memory: false}]\n"
    )
    scontrol = place.folder / "bin" / "scontrol"
    scontrol.parent.mkdir()
    scontrol.write_text(
        f"#!/bin/sh\n[ $1 = requeue ] && ! [ -e refused ] && touch refused && echo Busy >&2 && exit 1\n"
        f'exec {shutil.which("scontrol")} "$@"\n'
    )
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{scontrol.parent}:{os.environ['PATH']}")

    done = drive(place, f"job --site {site} --minutes 10", "--config", HOSTILE)
    found = re.match(r"The driver is job (\d+); ", done.stdout)
    assert found, done.stderr
    job = found.group(1)
    shape = place.cluster.job(job)
    assert (shape["Partition"], shape["NumCPUs"], shape["TimeLimit"]) == ("cpu", "1", "00:10:00")
    assert "MinMemoryNode" not in shape
    until(lambda: len(place.lines("started.txt")) == 3, "three jobs run")
    place.cluster.run("scancel", "--full", "--signal=USR1", job)  # to Snakemake, too
    until(lambda: place.cluster.job(job)["Restarts"] == "1", "the driver is queued again")
    until(lambda: place.cluster.job(job)["JobState"] == "COMPLETED", "the second driver has ended")
    assert (place.folder / "driver_job.txt").read_text() == job  # it counts towards a user's limits
    said = (place.folder / f"relay-driver-{job}.log").read_text()
    assert "The driver's time is up; it is queued again" in said
    assert "warning: scontrol failed: Busy; tries left: 9" in said
    assert place.lines("started.txt") == place.lines("ended.txt") == JOBS
    assert len(place.submitted()) == 4
    assert not [name for name in ("one", "two") if (place.folder / name).exists()]


@pytest.mark.slow
def test_scancel_of_the_driver_cancels_its_jobs(place: Workplace) -> None:
    done = drive(place, f"job --site {ROOT}/config/sites/generic.yaml --minutes 10", seconds=60)
    assert done.returncode == 0, done.stderr
    until(lambda: len(place.lines("started.txt")) == 3, "three jobs run")
    place.cluster.run("scancel", done.stdout.split()[4].rstrip(";"))
    until(lambda: not place.left(), "no job is left")
    assert place.lines("ended.txt") == []


@pytest.mark.slow
def test_what_the_site_misses_is_told_before_the_driver_is_submitted(place: Workplace) -> None:
    done = drive(place, "job", "--profile", f"{ROOT}/profiles/slurm", config=["site=narval"])
    assert (done.returncode, done.stdout) == (1, "")
    assert "error: config/sites/narval.yaml: account: missing; " in done.stderr
    assert not [job for job in place.cluster.jobs() if job["WorkDir"] == str(place.folder)]


def test_the_drivers_site_is_the_workflows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SNAKEMAKE_PROFILE", raising=False)
    for name, text in {"a": "site: della\nepochs: 1\n", "b": "site: cedar\n", "none": "epochs: 2\n"}.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    files = ["--configfile", f"{tmp_path}/a.yaml", f"{tmp_path}/b.yaml"]
    profile = ["--profile", f"{ROOT}/profiles/narval"]
    for arguments, site in (
        ([], "generic"),
        (profile, "narval"),
        ([*profile, "--default-resources", "site='arc'"], "arc"),
        ([*profile, "--configfiles", f"{tmp_path}/none.yaml", "--replace-workflow-config"], "narval"),
        ([*profile, *files], "cedar"),
        ([*profile, *files, "-C", "epochs=3", "site=graham"], "graham"),
        ([*files, "--config", "site=", *profile], "narval"),
    ):
        assert drive_command.site_of(arguments) == site, arguments
    for arguments in (["--configfile", f"{tmp_path}/absent.yaml"], ["--config", "site"]):
        refusal(drive_command.site_of, arguments)
