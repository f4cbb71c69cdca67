"""Processes in Linux namespaces of their own, and a network between them. Needs root.

Nothing of it outlives the process that made it, however that ended: the kernel kills a namespace's processes with its
first, and the first with the *thread* that made it; so start them from a thread that stays.
"""

import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

OWN_PROCESSES = ("setpriv", "--pdeathsig", "KILL", "unshare", "--kill-child", "--pid", "--mount-proc")
OWN_NETWORK = ("--net", "--uts")
# Waits until it is told that its namespaces are furnished, and then becomes the command.
WAIT = ("sh", "-c", 'echo; read -r _ || exit 1; exec "$@" </dev/null >&2', "sh")


class Contained:
    """A command as process 1 of its own process and mount namespaces; with `network`, of its own network and name."""

    def __init__(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str], *, network: bool = False
    ) -> None:
        with log.open("w") as stream:
            self._outer = subprocess.Popen(
                [*OWN_PROCESSES, *(OWN_NETWORK if network else ()), *WAIT, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                env=environment,
                start_new_session=True,  # Ctrl-C in a terminal ends the tests, and they end this
            )
        assert self._outer.stdout
        with self._outer.stdout as ready:
            if not ready.readline():
                self._outer.wait()
                raise RuntimeError(f"no namespaces: {log.read_text().strip()}")
        #: Process 1, as it is numbered outside.
        outer = self._outer.pid
        self.first = int(Path(f"/proc/{outer}/task/{outer}/children").read_text())

    def go(self) -> None:
        """Let the command start: its namespaces are furnished."""
        assert self._outer.stdin
        self._outer.stdin.write(b"\n")
        self._outer.stdin.close()

    def ended(self) -> bool:
        return self._outer.poll() is not None

    def end(self) -> None:
        """Kill all that is in the namespaces, and wait until it is gone."""
        assert self._outer.stdin
        if not self.ended():
            with suppress(ProcessLookupError):
                # Its parent ends only when the kernel has killed and reaped all that was in there.
                os.kill(self.first, signal.SIGKILL)
        self._outer.wait(30)
        self._outer.stdin.close()


@dataclass(frozen=True)
class Network:
    """A bridge of this machine's, on a subnet that leads nowhere else."""

    number: int

    @property
    def bridge(self) -> str:
        return f"relay{self.number}"

    @property
    def gateway(self) -> str:
        """This machine's own address."""
        return f"10.213.{self.number}.254"

    def address(self, index: int) -> str:
        return f"10.213.{self.number}.{index + 1}"

    def plug_in(self, index: int, contained: Contained, undo: ExitStack) -> None:
        """Give a network namespace its `eth0`, at address number `index`."""
        cable = f"{self.bridge}n{index}"
        _ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", str(contained.first))
        # It would go with the namespace, but some time later.
        undo.callback(_ip, "link", "delete", cable, check=False)
        _ip("link", "set", cable, "master", self.bridge, "up")

    def settle(self, index: int) -> str:
        """The shell commands with which process 1 takes its place in the network."""
        return f"ip link set lo up; ip address add {self.address(index)}/24 dev eth0; ip link set eth0 up"


@contextmanager
def network() -> Iterator[Network]:
    """A network with a number that nobody else on this machine uses.

    The claim on the number is an abstract socket, which is gone when its last holder is. One holder is a guard that
    removes the bridge when this process has ended, whatever ended it: so none is removed under a later claimant.
    """
    with socket.socket(socket.AF_UNIX) as claim:
        subnet = Network(_claim_number(claim))
        with _at_the_end(claim, "ip", "link", "delete", subnet.bridge):
            _ip("link", "delete", subnet.bridge, check=False)  # of a process that was killed with its guard
            _ip("link", "add", subnet.bridge, "type", "bridge")
            _ip("address", "add", f"{subnet.gateway}/24", "dev", subnet.bridge)
            _ip("link", "set", subnet.bridge, "up")
            yield subnet


def _claim_number(claim: socket.socket) -> int:
    for number in range(200):
        with suppress(OSError):
            claim.bind(f"\0torch-relay-network-{number}")
            return number
    raise RuntimeError("200 virtual clusters are up on this machine already")


@contextmanager
def _at_the_end(claim: socket.socket, *command: str) -> Iterator[None]:
    """Run `command` at the end of the block, or of this process, by a guard that holds `claim` until it is done."""
    guard = subprocess.Popen(
        ["sh", "-c", 'read -r _; exec "$@" 2>/dev/null', "sh", *command],
        stdin=subprocess.PIPE,
        pass_fds=[claim.fileno()],
        start_new_session=True,
    )
    try:
        yield
    finally:
        assert guard.stdin
        guard.stdin.close()
        guard.wait(30)


def _ip(*words: str, check: bool = True) -> None:
    done = subprocess.run(["ip", *words], check=False, capture_output=True, text=True)
    if check and done.returncode:
        raise RuntimeError(f"ip {' '.join(words)}: {done.stderr.strip()}")
