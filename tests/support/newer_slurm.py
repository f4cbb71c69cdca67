"""The same tests on a newer Slurm: Debian 13's (24.11), in a root folder of its own beside this machine's. Needs root.

    python tests/support/newer_slurm.py COMMAND …       e.g. .venv/bin/pytest -m slurm tests

runs a command there. The folder is made once, in a minute or two, from Debian's packages; the checkout, its Python, the
home and the temporary folder lie at their own paths in it. All that the command leaves running ends with it.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(CHECKOUT / "scripts")]

from relay.virtual_cluster.cluster import PACKAGES  # noqa: E402
from relay.virtual_cluster.namespaces import OWN_PROCESSES  # noqa: E402
from slurm_packages import obstacle  # noqa: E402

RELEASE, VERSION = "trixie", "24.11"
#: Tells a test inside which version it must meet.
VERSION_VARIABLE = "TORCH_RELAY_TEST_SLURM"
NEEDED = {**PACKAGES, "debootstrap": "debootstrap"}
INCLUDED = sorted({*PACKAGES.values(), "ca-certificates", "hostname", "procps"})
# What a Python that was built elsewhere may look for.
INCLUDED += ["libbz2-1.0", "libexpat1", "libffi8", "liblzma5", "libncursesw6", "libreadline8t64", "libsqlite3-0"]
INCLUDED += ["libssl3t64", "libuuid1", "zlib1g"]
ENTER = f'cd {shlex.quote(str(CHECKOUT))} && exec "$@"'
COPIED = ("hosts", "hostname", "resolv.conf", "pip.conf")


def root_folder() -> Path:
    """The root folder, made anew where it is missing or was made from another list. Raises `RuntimeError`."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torch-relay"
    cache.mkdir(parents=True, exist_ok=True)
    root = cache / f"debian-{RELEASE}-{zlib.crc32(' '.join(INCLUDED).encode()):08x}"
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not root.exists():
            _make(root)
    return root


def _make(root: Path) -> None:
    for old in root.parent.glob(f"debian-{RELEASE}-*"):  # unfinished, or from another list
        shutil.rmtree(old)
    unfinished = root.with_name(f"{root.name}-unfinished")
    command = [
        "debootstrap",
        "--variant=minbase",
        f"--include={','.join(INCLUDED)}",
        RELEASE,
        str(unfinished),
        _mirror(),
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise RuntimeError(f"{shlex.join(command)}: status {done.returncode}\n{done.stdout[-2000:]}")
    unfinished.rename(root)


def _mirror() -> str:
    """Where this machine has its own packages from."""
    listed = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(SITE) $(ORIGIN)"], capture_output=True, text=True
    )
    sites = [
        site for site, _, origin in (line.partition(" ") for line in listed.stdout.splitlines()) if origin == "Debian"
    ]
    return sites[0] if sites else "http://deb.debian.org/debian"


def _python() -> list[Path]:
    """What makes this Python: its prefix, or where it is the system's, the program and its library."""
    if sys.base_prefix != "/usr":
        return [Path(sys.base_prefix)]
    return [Path(sys.executable).resolve(), Path(sysconfig.get_path("stdlib", vars={"base": "/usr"}))]


def inside(
    root: Path,
    command: Sequence[str | Path],
    *,
    folders: Sequence[Path] = (),
    environment: Mapping[str, str] = os.environ,
    **options: Any,
) -> subprocess.CompletedProcess[str]:
    """Run a command under `root`, in the checkout, with `folders` too at their own paths; output is text.

    One call holds the whole life of a cluster: processes and mounts are gone when the command has ended.
    """
    shared = [CHECKOUT, Path.home(), Path(tempfile.gettempdir()), *_python(), *folders]
    lines = ["set -e", f"root={shlex.quote(str(root))}", 'mount --bind "$root" "$root"']
    lines += ['mount -t proc proc "$root/proc"', 'mount -t tmpfs tmpfs "$root/run"']
    lines += [f'mount --rbind /{name} "$root/{name}"' for name in ("sys", "dev")]
    for path in shared:
        target = f'"$root"{shlex.quote(str(path))}'
        make = f"mkdir -p {target}" if path.is_dir() else f"touch {target}"
        lines.append(f"{make}; mount --bind {shlex.quote(str(path))} {target}")
    lines += [f'cp /etc/{name} "$root/etc/{name}"' for name in COPIED if Path("/etc", name).exists()]
    lines += ['chroot "$root" ldconfig', "set +e"]
    # Not exec: process 1 is to be a shell, which reaps orphans.
    lines += [f'chroot "$root" sh -c {shlex.quote(ENTER)} sh "$@"; exit $?']
    told = {**environment, VERSION_VARIABLE: VERSION}
    wrapped = [*OWN_PROCESSES, "sh", "-c", "\n".join(lines), "sh", *map(str, command)]
    return subprocess.run(wrapped, text=True, env=told, **options)


def main(command: Sequence[str]) -> int:
    if what := obstacle(NEEDED):
        print(f"error: {what}", file=sys.stderr)
        return 1
    return inside(root_folder(), command or ["sh"]).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
