"""NVIDIA's Multi-Process Service (MPS): a daemon with which several processes compute on a GPU at the same time.

It lives in a folder of its own, which must be short: it holds sockets.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from relay.base.errors import UserError

CONTROL = "nvidia-cuda-mps-control"
FOLDERS = {"CUDA_MPS_PIPE_DIRECTORY": "pipe", "CUDA_MPS_LOG_DIRECTORY": "log"}
LONGEST_WAIT_SECONDS = 30.0
# A shell script that keeps the daemon: $0 is the control program, $1 the daemon's folder. It ends the daemon when its
# standard input is closed, which happens however the process that started it ends. It ignores signals to the whole job,
# because the replicas may still have to save.
KEEPER = """
trap '' TERM INT HUP USR2
exec 3<&0
"$0" -f > "$1/out" 2>&1 < /dev/null 3<&- &
daemon=$!
(
  cat <&3 > /dev/null
  echo quit | "$0" > /dev/null 2>&1
  for second in 1 2 3 4 5; do kill -0 $daemon 2> /dev/null || exit; sleep 1; done
  kill -KILL $daemon
) &
wait $daemon
echo "the daemon has ended: $(tail -n 1 "$1/out")" > "$1/off"
wait
rm -rf "$1"
"""


def variables(folder: Path) -> dict[str, str]:
    """What leads a process to the daemon of a folder."""
    return {variable: str(folder / name) for variable, name in FOLDERS.items()}


def renumbered() -> dict[str, str]:
    """CUDA_VISIBLE_DEVICES for the daemon's clients: the daemon numbers its visible devices from 0 on.

    https://docs.nvidia.com/deploy/mps/, section "Environment Variables".
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, range(len(visible.split(",")))))} if visible else {}


def keep(folder: Path) -> subprocess.Popen[bytes] | None:
    """Start the shell that keeps the daemon. If there is no daemon to start, leave the reason in the file `off`."""
    shutil.rmtree(folder, ignore_errors=True)  # an interrupted start may have left it
    for name in FOLDERS.values():
        (folder / name).mkdir(parents=True, exist_ok=True)
    program = shutil.which(CONTROL)
    if program is None:
        (folder / "off").write_text(f"{CONTROL} is not on the PATH")
        return None
    words = ["sh", "-c", KEEPER, program, str(folder)]
    return subprocess.Popen(words, stdin=subprocess.PIPE, env=os.environ | variables(folder))


def wait_for(folder: Path) -> None:
    """Wait until the daemon answers. Raises UserError with the reason in `off`, and TimeoutError, an OSError."""
    deadline = time.monotonic() + LONGEST_WAIT_SECONDS
    while time.monotonic() < deadline:
        if (folder / "off").exists() and (reason := (folder / "off").read_text().strip()):
            raise UserError(reason)
        if (folder / "pipe").is_dir() and answers(os.environ | variables(folder)):
            return
        time.sleep(0.1)
    raise TimeoutError(f"the daemon has not answered in {LONGEST_WAIT_SECONDS:g} seconds")


def answers(environment: Mapping[str, str]) -> bool:
    """Whether a daemon answers in this environment."""
    command = [CONTROL]
    request = b"get_server_list\n"
    try:
        answer = subprocess.run(command, input=request, env=environment, capture_output=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return answer.returncode == 0
