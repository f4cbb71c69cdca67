"""Regenerates the locks `envs/*.txt` from `envs/*.in`: exact versions, SHA-256 hashes, Python 3.11 and newer.

Reads the package registry's metadata alone, so nothing large is fetched. Versions already locked are kept
unless `--upgrade` is given. Run by `make lock`; needs uv, which the development environment has.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

from relay.environments.locks import Pin, pins, read, text_of
from relay.spec.site_blocks import STACKS

ENVS = Path(__file__).resolve().parent.parent / "envs"
OLDEST_PYTHON = "3.11"

# These leave no machine's paths, mirrors or hosts in a lock.
PLAIN = ["--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links", "--quiet"]
OPTIONS = ["--universal", "--python-version", OLDEST_PYTHON, "--generate-hashes", *PLAIN]

# Needed only by the registry's CUDA build of torch: gigabytes that a CPU installation can spare. NVML's binding is
# small, and belongs to every build.
CUDA_ONLY = re.compile(r"(?:nvidia-(?!ml-py\b)|cuda-|triton\b)")

# The workflow runs on Linux and macOS.
WINDOWS_ONLY = "sys_platform == 'win32'"
# What the strategies of another framework need on a node.
FURTHER = sorted({*STACKS} - {"torch"})


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


def add_builds(entries: list[Pin], builds: dict[tuple[str, str], list[str]]) -> list[Pin]:
    """Adds the further builds' hashes to their packages. Raises ValueError for a version not locked."""
    locked = {(entry.name, entry.version) for entry in entries}
    for name, version in builds:
        if (name, version) not in locked:
            raise ValueError(f"torch-builds.txt has hashes of {name} {version}, which is not the locked version")
    hashes = ({*entry.hashes, *builds.get((entry.name, entry.version), ())} for entry in entries)
    return [replace(entry, hashes=tuple(sorted(digests))) for entry, digests in zip(entries, hashes, strict=True)]


def resolve(source: str, constraints: list[str], upgrade: bool, scratch: Path) -> list[Pin]:
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
        versions = [f"{entry.requirement()}\n" for path in previous for entry in read(path)]
        output.write_text("".join(versions), encoding="utf-8")
    subprocess.run(command, cwd=ENVS, check=True, stdout=subprocess.DEVNULL)
    return [entry for entry in pins(output.read_text(encoding="utf-8")) if entry.marker != WINDOWS_ONLY]


def write_lock(name: str, entries: list[Pin], source: str) -> None:
    """A lock: a header that names its source, then each package with its hashes, one a line."""
    text = f"# Made by `make lock` from {source}. Change that, not this.\n{text_of(entries)}"
    (ENVS / name).write_text(text, encoding="utf-8")
    print(f"envs/{name}: {len(entries)} requirements")


def write_twin(entries: list[Pin]) -> None:
    """The conda twin of torch's locks: what its file says above pip's part, and their versions below."""
    path = ENVS / "torch.yaml"
    head, mark, _ = path.read_text(encoding="utf-8").partition("  - pip:\n")
    pinned = "".join(f'      - "{entry.requirement()}"\n' for entry in entries)
    path.write_text(head + mark + pinned, encoding="utf-8")
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
        others = {name: add_builds(resolve(name, ["torch", "driver"], upgrade, scratch), builds) for name in FURTHER}
        dev = resolve("dev", ["torch", "driver"], upgrade, scratch)
    # Written only once all agree with one another.
    plain, cuda = ([e for e in torch if bool(CUDA_ONLY.match(e.name)) is only] for only in (False, True))
    write_lock("torch.txt", plain, "torch.in and torch-builds.txt")
    write_lock("torch-cuda.txt", cuda, "torch.in")
    write_twin([*plain, *cuda])
    for name, entries in others.items():
        own = [entry for entry in entries if not CUDA_ONLY.match(entry.name)]
        write_lock(f"{name}.txt", own, f"{name}.in and torch-builds.txt")
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
