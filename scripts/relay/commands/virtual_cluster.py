"""A real Slurm, on which `profiles/slurm` can be tried. Needs root.

relay virtual-cluster up        start it: it stays until it is taken down
relay virtual-cluster status    its nodes and its jobs
relay virtual-cluster down      end it, with all its jobs: nothing of it stays
"""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from argparse import ArgumentParser
from pathlib import Path

from relay.base import lock
from relay.base.entry import MAIN, ROOT
from relay.base.errors import UserError
from relay.virtual_cluster.cluster import VirtualCluster, obstacle

FOLDER = Path("/run/torch-relay-cluster")  # only root writes there
DOWN_SECONDS = 60.0


def up(folder: Path) -> int:
    """Start a process that keeps the cluster, and wait until its nodes are idle. Raises UserError."""
    state = "already up, perhaps for somebody else" if lock.held(folder) else "up"
    if state == "up":
        if reason := obstacle():
            raise UserError(reason)
        keeper = subprocess.Popen(
            [sys.executable, ROOT / MAIN, "virtual-cluster", "keep", "--folder", folder],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd="/",
            start_new_session=True,  # neither Ctrl-C nor a logout ends it
        )
        assert keeper.stdout
        if (first := keeper.stdout.readline()) != "up\n":
            raise UserError((first + keeper.stdout.read()).removeprefix("error: ").strip())
    print(f"The virtual cluster is {state}. In this shell, let Slurm's commands and Snakemake find it:")
    print(f"  export SLURM_CONF={shlex.quote(f'{folder}/slurm.conf')}")
    return 0


def keep(folder: Path) -> int:
    """Have the cluster up until SIGTERM comes. Raises UserError where it cannot start."""
    signal.signal(signal.SIGTERM, _end)
    try:
        with VirtualCluster(folder):
            print("up", flush=True)
            while True:
                signal.pause()
    except (RuntimeError, TimeoutError, ValueError) as error:
        raise UserError(str(error)) from None
    except SystemExit:  # it was up, so that nothing in there is anybody else's
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _end(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(0)


def status(folder: Path) -> int:
    """Print the nodes and the jobs. Raises UserError where no cluster is up."""
    _keeper(folder)
    environment = os.environ | {"SLURM_CONF": f"{folder}/slurm.conf"}
    for command in (["sinfo", "--format=%9P %.11l %.5D %.6t %N"], ["squeue"]):
        subprocess.run(command, check=False, env=environment)
    return 0


def down(folder: Path) -> int:
    """End the cluster, and wait until nothing of it is left. Raises UserError."""
    keeper = _keeper(folder)
    try:
        os.kill(keeper, signal.SIGTERM)
        until = time.monotonic() + DOWN_SECONDS
        while folder.exists() and time.monotonic() < until:  # the last thing that it removes
            time.sleep(0.1)
        if lock.held(folder):
            os.kill(keeper, signal.SIGKILL)
            shutil.rmtree(folder, ignore_errors=True)
    except PermissionError:
        raise UserError("the virtual cluster is root's; use sudo") from None
    print("The virtual cluster is down. In this shell: unset SLURM_CONF")
    return 0


def _keeper(folder: Path) -> int:
    """The process that keeps the cluster. Raises UserError where there is none."""
    if not lock.held(folder):
        raise UserError("no virtual cluster is up; start it: relay virtual-cluster up")
    return int((folder / "lock").read_text())


def virtual_cluster(parser: ArgumentParser, words: list[str]) -> int:
    """Exit status 0. Raises UserError."""
    parser.epilog = __doc__
    acts = {"up": up, "status": status, "down": down, "keep": keep}
    parser.add_argument("what", choices=acts, metavar="{up,status,down}")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="its configuration and logs (%(default)s)")
    given = parser.parse_args(words)
    return acts[given.what](given.folder.absolute())
