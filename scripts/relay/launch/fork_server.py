"""On one machine, a process that has imported torch already: jobs' processes are forks of it.

Importing torch costs each process seconds, which is most of a short job. The first job of a driver starts a server,
which imports torch and what belongs to it, but none of this project's code: that is the job's own, frozen one. From
then on a worker (`relay.launch.worker`) hands its command line, environment, working directory and open files to the
server, and stands for the fork: it passes signals on and ends as the fork ends. Seen from outside, the processes are
the same as without a server. Each worker has a process of its own at the server, the fork's parent, which waits for
both. The server ends with its driver, and lets forks come to their end.

A fork is like a process of its own as long as its parent has neither computed nor touched a device. So there is a
server for each way in which the environment changes what an import does. Where anything is in the way, the worker does
its work itself. Linux only: sockets have names that are no files, and tell whose they are.
"""

from __future__ import annotations

import gc
import json
import os
import random
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from contextlib import suppress
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relay.base import lifeline
from relay.chain.signals import SIGNALS
from relay.chain.supervisor import send
from relay.process import cpus

if TYPE_CHECKING:
    from relay.spec.setting import Shape

OWNER = "TORCH_RELAY_FORKED"  # the process with which the server ends; `0`, by a user who wants no forks
ROLES = ("training.trainer", "equivalence.gate", "equivalence.reference", "spot_check.process", "card.process")
LAUNCHERS = ("none", "direct", "torchrun")  # `spawn` has torch imported already, and Horovod's runner has its own ways
WORKER = "relay.launch.worker"
PRELOADED = (
    "torch",
    "torch._dynamo",
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "torch.nn.parallel",
    "torch.utils.data",
    "numpy",
    "psutil",
)
# What Python, libc and libraries read of the environment while they start, or at their first computation, which may be
# part of an import. This project's own variables are read later.
AT_IMPORT = (
    *("PYTHON", "LANG", "LC_", "TZ", "LD_", "GLIBC_", "MALLOC_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "NPY_"),
    *("DNNL_", "ONEDNN_", "ATEN_", "TORCH", "PYTORCH", "TRITON_", "CUBLAS", "NVIDIA_", "CUDA_"),
)
LATER = ("TORCH_RELAY_", "TORCH_FR_", "TORCH_NCCL_", "TORCHELASTIC_", "PYTHONPATH")
BINDING = (*cpus.BINDING, "GOMP_CPU_AFFINITY", "KMP_AFFINITY")  # threads bound to the server's CPUs
START_SECONDS = 60.0  # within which a server has imported torch, on a busy machine
PAUSE_SECONDS = 0.02
MOST_BYTES = 1 << 20  # of a command line and an environment
STANDARD_FILES = (0, 1, 2)
NUMBER = struct.Struct("i")  # a process, or the status with which it ended
PROTOCOL = 3  # a server of other code may be older


def owner(role: str, shape: Shape) -> dict[str, str]:
    """What tells a role's processes that they may be forks, which belong to a driver that runs its jobs here."""
    driver = os.environ.get(lifeline.DRIVER, "").partition(" ")[0]
    bound = any(name in os.environ for name in (*BINDING, *(cpus.VEILED + name for name in cpus.BINDING)))
    may = sys.platform == "linux" and not bound and role in ROLES
    return {OWNER: driver} if driver and may and shape.launcher in LAUNCHERS and OWNER not in os.environ else {}


def hand_over(program: list[str]) -> None:
    """Have a server's fork do this worker's work, and end this process as the fork ends.

    Returns where no server is to be had.
    """
    received: list[int] = []
    before = {each: signal.signal(each, lambda number, _: received.append(number)) for each in SIGNALS}
    connection = _connected()
    pid = connection and _started(connection, program)
    if pid:
        assert connection is not None
        _stand_for(pid, connection, received)
    for each, handler in before.items():
        signal.signal(each, handler)
    for number in received:
        signal.raise_signal(number)


def _connected() -> socket.socket | None:
    """A connection to the server of this driver and environment, which is started unless it is there."""
    name, deadline, server = _name(), time.monotonic() + START_SECONDS, None
    while time.monotonic() < deadline:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with suppress(OSError):
            connection.settimeout(max(0.1, deadline - time.monotonic()))
            connection.connect(name)
            return connection if _is_own(connection) else None
        connection.close()
        if server is None:
            words = [sys.executable, "-u", "-m", "relay.launch.fork_server"]
            quiet: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
            # Whoever looks for what a driver has left finds the workers.
            unmarked = {name: value for name, value in os.environ.items() if name != lifeline.DRIVER}
            server = subprocess.Popen(words, env=unmarked, start_new_session=True, **quiet)
        elif server.poll():
            return None
        time.sleep(PAUSE_SECONDS)
    return None


def _name() -> str:
    """The address: a name that is no file. It tells the driver, the interpreter, and what an import may read."""
    read = {name: value for name, value in os.environ.items() if name.startswith(AT_IMPORT)}
    read = {name: value for name, value in read.items() if not name.startswith(LATER)}
    key = json.dumps([PROTOCOL, os.environ[OWNER], sys.executable, read], sort_keys=True)
    return f"\0torch-relay-{os.getuid()}-{sha256(key.encode()).hexdigest()[:32]}"


def _is_own(connection: socket.socket) -> bool:
    """Whether the other end is this user's: anybody may take a name, and nobody's code but the user's is to be run."""
    _, user, _ = struct.unpack(
        "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    )
    return bool(user == os.getuid())


def _started(connection: socket.socket, program: list[str]) -> int:
    """The process that does the work; 0 where the server ended before it had started one."""
    worker = {
        "program": program,
        "path": sys.path,
        "environment": {**os.environ},
        "folder": str(Path.cwd()),
        "cpus": sorted(os.sched_getaffinity(0)),
    }
    with suppress(OSError):
        socket.send_fds(connection, [b"\n"], STANDARD_FILES)
        connection.sendall(json.dumps(worker).encode() + b"\n")
    return _number(connection) or 0


def _stand_for(pid: int, connection: socket.socket, received: list[int]) -> None:
    """Pass signals on to the fork until it ends, and end in the same way. Should this be killed, its parent ends it."""
    for each in SIGNALS:
        signal.signal(each, lambda number, _: send(pid, number))
    for number in received:
        send(pid, number)
    connection.settimeout(None)
    status = _number(connection)
    if status is None:  # its parent was killed, which tells it to end
        os._exit(1)
    if status < 0:
        with suppress(OSError):  # that of SIGKILL cannot be set
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def _number(connection: socket.socket) -> int | None:
    """What the server tells: a process, or the status with which it ended; None where it tells nothing more."""
    with suppress(OSError, struct.error):
        return int(NUMBER.unpack(connection.recv(NUMBER.size, socket.MSG_WAITALL))[0])
    return None


def _ready(*files: int | socket.socket) -> list[int | socket.socket]:
    """Those of the files that have something to tell, once any has."""
    return select.select(files, [], [])[0]


def _be(worker: dict[str, Any]) -> None:
    """Be the worker that has told this, as if this process had imported torch itself."""
    os.environ.clear()
    os.environ.update(worker["environment"] | {lifeline.LAUNCHER: str(os.getppid())})
    os.environ.pop(OWNER)
    os.chdir(worker["folder"])
    os.sched_setaffinity(0, worker["cpus"])
    for name in [name for name in sys.modules if name.partition(".")[0] == "relay"]:
        del sys.modules[name]  # the worker's code may be another one
    sys.path[:], sys.argv[1:] = worker["path"], worker["program"]
    random.seed()
    sys.modules["numpy"].random.seed()
    runpy.run_module(WORKER, run_name="__main__", alter_sys=True)


def _received(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """A worker's words, and its standard files. Raises OSError and ValueError for anything else."""
    _, files, _, _ = socket.recv_fds(connection, 1, len(STANDARD_FILES))
    if len(files) != len(STANDARD_FILES):
        raise ValueError("not a worker")
    with connection.makefile("rb") as stream:
        return json.loads(stream.readline(MOST_BYTES)), files


def _served(connection: socket.socket) -> dict[str, Any]:
    """In a process for one worker: fork another one for its work, and tell the worker how it ends.

    Returns in that one alone, with what the worker has told. Whoever keeps this waiting keeps nobody else.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    connection.settimeout(START_SECONDS)
    try:
        if not _is_own(connection):
            os._exit(1)
        worker, files = _received(connection)
    except (OSError, ValueError):  # not a worker, or one that was killed
        os._exit(1)
    pid = os.fork()
    if pid == 0:
        connection.close()
        lifeline.end_with_parent()
        for standard, file in zip(STANDARD_FILES, files, strict=True):
            os.dup2(file, standard)
            os.close(file)
        return worker
    for file in files:
        os.close(file)
    fork = os.pidfd_open(pid)
    with suppress(OSError):
        connection.sendall(NUMBER.pack(pid))
    if fork not in _ready(fork, connection):  # the worker was killed
        send(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    with suppress(OSError):
        connection.sendall(NUMBER.pack(os.waitstatus_to_exitcode(status)))
    os._exit(0)


def main() -> int:
    """Be the server of the process that the environment names. Returns 0 where there is one, 1 where none can be."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        driver = os.pidfd_open(int(os.environ[OWNER]))
    except (OSError, ValueError):  # the driver is gone, or this kernel is old
        return 1
    try:
        listener.bind(_name())
    except OSError:
        return 0
    listener.listen(socket.SOMAXCONN)
    gc.disable()  # as in `relay.launch.worker`
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # an import that asks for GPUs must not start CUDA: no fork could
    for name in PRELOADED:
        import_module(name)
    gc.enable()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel keeps nothing of those that have ended
    while driver not in _ready(driver, listener):
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            os.close(driver)
            _be(_served(connection))
            return 0
        connection.close()
    os._exit(0)  # at once: nothing is left to be saved


if __name__ == "__main__":
    sys.exit(main())
