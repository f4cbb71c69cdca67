"""Regenerates the locks `envs/*.txt` from `envs/*.in`: exact versions, SHA-256 hashes, Python 3.11 and newer.

Reads the package registry's metadata alone, so nothing large is fetched. Versions already locked are kept
unless `--upgrade` is given. Run by `make lock`; needs uv, which the development environment has.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

ENVS = Path(__file__).resolve().parent.parent / "envs"
OLDEST_PYTHON = "3.11"

# These leave no machine's paths, mirrors or hosts in a lock.
PLAIN = ["--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links", "--quiet"]
OPTIONS = ["--universal", "--python-version", OLDEST_PYTHON, "--generate-hashes", *PLAIN]

# Needed only by the registry's CUDA build of torch: gigabytes that a CPU installation can spare. NVML's binding is
# small, and belongs to every build.
CUDA_ONLY = re.compile(r"(?:nvidia-(?!ml-py\b)|cuda-|triton\b)")

# The workflow runs on Linux and macOS.
WINDOWS_ONLY = re.compile(r".*; sys_platform == 'win32'")
# Each other .in file is that of a further stack: what the strategies of another framework need on a node.
NO_FURTHER_STACK = ("torch", "driver", "dev")

Entries = list[tuple[str, list[str]]]


def parse_entries(text: str) -> Entries:
    """Splits a lock into (requirement such as `numpy==2.4.6 ; marker`, its hashes such as `sha256:…`).

    Raises ValueError on a line that is neither a requirement, a hash, a comment nor blank.
    """
    entries: Entries = []
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.removesuffix("\\").strip()
        if not line or line.startswith("#"):
            continue
        if line.startswith("--hash=") and entries:
            entries[-1][1].append(line.removeprefix("--hash="))
        elif re.match(r"[A-Za-z0-9]", line):
            entries.append((line, []))
        else:
            raise ValueError(f"line {number} of a lock is neither a requirement nor a hash: {line!r}")
    return entries


def render(entries: Entries, source: str) -> str:
    """A lock's text: a header that names its source, then each requirement with its hashes, one a line."""
    lines = [f"# Made by `make lock` from {source}. Change that, not this."]
    for requirement, hashes in entries:
        lines.append(" \\\n    ".join([requirement, *(f"--hash={digest}" for digest in hashes)]))
    return "\n".join(lines) + "\n"


def name_and_version(requirement: str) -> tuple[str, str]:
    """`numpy==2.4.6 ; python_full_version < '3.12'` → (`numpy`, `2.4.6`)."""
    name, _, rest = requirement.partition("==")
    return name.strip(), rest.split(";")[0].strip()


def read_builds(path: Path) -> dict[tuple[str, str], list[str]]:
    """Reads `torch-builds.txt`: (name, version without the local label) → the hashes of its further builds.

    Raises ValueError on a line that is not `<64 hexadecimal digits>  <wheel file name>`.
    """
    builds: dict[tuple[str, str], list[str]] = defaultdict(list)
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        match = re.fullmatch(r"([0-9a-f]{64})  ([a-z0-9_]+)-([0-9.]+)\+cpu-\S+\.whl", line)
        if match is None:
            raise ValueError(f"{path.name}: {line!r} is not `<sha256>  <name>-<version>+cpu-<tags>.whl`")
        digest, name, version = match.groups()
        builds[name, version].append(f"sha256:{digest}")
    return dict(builds)


def add_builds(entries: Entries, builds: dict[tuple[str, str], list[str]]) -> Entries:
    """Adds the further builds' hashes to their packages. Raises ValueError for a version not locked."""
    locked = {name_and_version(requirement) for requirement, _ in entries}
    for name, version in builds:
        if (name, version) not in locked:
            raise ValueError(f"torch-builds.txt has hashes of {name} {version}, which is not the locked version")
    return [
        (requirement, sorted({*hashes, *builds.get(name_and_version(requirement), ())}))
        for requirement, hashes in entries
    ]


def resolve(source: str, constraints: list[str], upgrade: bool, scratch: Path) -> Entries:
    """Resolves one `.in` file, holding to `constraints` (locks made before, as text in `scratch`).

    Raises subprocess.CalledProcessError when uv finds no solution; it has then printed why.
    """
    output = scratch / f"{source}.txt"
    command = [str(Path(sys.executable).with_name("uv")), "pip", "compile", *OPTIONS, f"{source}.in"]
    command += ["--output-file", str(output)]
    for constraint in constraints:
        command += ["--constraint", str(scratch / f"{constraint}.txt")]
    if upgrade:
        command.append("--upgrade")
    else:
        # uv keeps the versions that it finds in its output. Hashes are left out, to be read afresh.
        previous = [path for path in (ENVS / f"{source}.txt", ENVS / f"{source}-cuda.txt") if path.exists()]
        versions = [entry for path in previous for entry, _ in parse_entries(path.read_text(encoding="utf-8"))]
        output.write_text("".join(f"{entry}\n" for entry in versions), encoding="utf-8")
    subprocess.run(command, cwd=ENVS, check=True, stdout=subprocess.DEVNULL)
    entries = parse_entries(output.read_text(encoding="utf-8"))
    return [(requirement, hashes) for requirement, hashes in entries if not WINDOWS_ONLY.fullmatch(requirement)]


def write_lock(name: str, entries: Entries, source: str) -> None:
    (ENVS / name).write_text(render(entries, source), encoding="utf-8")
    print(f"envs/{name}: {len(entries)} requirements")


def write_twin(entries: Entries) -> None:
    """The conda twin of torch's locks: what its file says above pip's part, and their versions below."""
    path = ENVS / "torch.yaml"
    head, mark, _ = path.read_text(encoding="utf-8").partition("  - pip:\n")
    path.write_text(head + mark + "".join(f'      - "{entry}"\n' for entry, _ in entries), encoding="utf-8")
    print(f"envs/{path.name}: {len(entries)} requirements")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions that the .in files allow")
    upgrade: bool = parser.parse_args().upgrade
    with tempfile.TemporaryDirectory() as folder:
        scratch, builds = Path(folder), read_builds(ENVS / "torch-builds.txt")
        torch = add_builds(resolve("torch", [], upgrade, scratch), builds)
        driver = resolve("driver", ["torch"], upgrade, scratch)
        # Held to the driver's versions too: on a machine without a scheduler they stand beside its own packages.
        stacks = sorted(path.stem for path in ENVS.glob("*.in") if path.stem not in NO_FURTHER_STACK)
        others = {name: add_builds(resolve(name, ["torch", "driver"], upgrade, scratch), builds) for name in stacks}
        dev = resolve("dev", ["torch", "driver"], upgrade, scratch)
    # Written only once all agree with one another.
    plain, cuda = ([e for e in torch if bool(CUDA_ONLY.match(e[0])) is only] for only in (False, True))
    write_lock("torch.txt", plain, "torch.in and torch-builds.txt")
    write_lock("torch-cuda.txt", cuda, "torch.in")
    write_twin([*plain, *cuda])
    for name, entries in others.items():
        write_lock(f"{name}.txt", [e for e in entries if not CUDA_ONLY.match(e[0])], f"{name}.in and torch-builds.txt")
    write_lock("driver.txt", driver, "driver.in")
    write_lock("dev.txt", dev, "dev.in")


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
    except FileNotFoundError:
        sys.exit("uv is not beside this Python: run `make install-dev`, then `make lock`")
    except ValueError as error:
        sys.exit(str(error))
