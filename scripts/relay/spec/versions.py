"""Versions of torch, of Python and of other packages, as far as strategies depend on them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of

# The oldest on which any of this was tried. A strategy that needs a newer one says so in its requirements.
LEAST = {"torch": "2.5", "python": "3.11"}
VERSION = r"[0-9]+(\.[0-9]+){1,2}"
NAMES = {"torch": "torch", "python": "Python"}
# A package that a strategy needs, perhaps in one version or a range, or one of several: "deepspeed==0.19.8",
# "deepspeed>=0.16,<0.20", "lightning|fabric".
ONE_PACKAGE = r"[a-z0-9][a-z0-9-]*((==|>=|<)[0-9][0-9.]*(,<[0-9][0-9.]*)?)?"
PACKAGE = rf"{ONE_PACKAGE}(\|{ONE_PACKAGE})*"
EVERY_JOB = ("numpy",)  # beside torch
NVML = "nvidia-ml-py|pynvml"  # either gives the module that reads what GPUs do
PACKAGE_NEED = "package "  # begins what preflight reads of one


def installed(name: str) -> str | None:
    """The version of a package that this Python has, without importing it; None without one."""
    try:
        return version_of(name)
    except PackageNotFoundError:
        return None


def release(version: str) -> tuple[int, ...]:
    """The numbers of a version, without what a build adds: (2, 5, 1) of "2.5.1+cu124"."""
    match = re.match(r"[0-9]+(\.[0-9]+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def too_old(name: str, version: str, least: str) -> str | None:
    """What is missing where `name` ("torch", "python") is older than the least version; None where it is not."""
    if release(version) >= release(least):
        return None
    return f"needs {NAMES[name]} {least} or newer, has {version}"


def needed(least_torch: str, least_python: str, packages: Sequence[str] = ()) -> tuple[str, ...]:
    """What a strategy needs above LEAST, and its packages, as preflight reads it: ("torch>=2.9", "package horovod")."""
    wanted = {"torch": least_torch, "python": least_python}
    newer = (f"{name}>={least}" for name, least in wanted.items() if release(least) > release(LEAST[name]))
    return (*newer, *(f"{PACKAGE_NEED}{package}" for package in packages))


def packages_of(needs: Sequence[str]) -> list[str]:
    """The packages among what preflight reads."""
    return [need.removeprefix(PACKAGE_NEED) for need in needs if need.startswith(PACKAGE_NEED)]


def names_in(packages: Sequence[str]) -> list[str]:
    """The names of all these packages, alternatives too."""
    return [_parted(choice)[0] for package in packages for choice in package.split("|")]


def _parted(choice: str) -> tuple[str, str]:
    """A package's name, and its versions as they are written: ("deepspeed", ">=0.16,<0.20")."""
    name = re.split(r"[=<>]", choice, maxsplit=1)[0]
    return name, choice.removeprefix(name)


def _allows(wanted: str, version: str) -> bool:
    """Whether a version is among those wanted, such as "==0.19.8" or ">=0.16,<0.20"; all are where none is named."""
    own = release(version)
    holds = {"==": lambda least: own == least, ">=": lambda least: own >= least, "<": lambda most: own < most}
    return all(holds[sign](release(named)) for sign, named in re.findall(r"(==|>=|<)([0-9.]+)", wanted))


def lacking(packages: Sequence[str], installed: Mapping[str, str | None]) -> Iterator[str]:
    """What is missing of these packages, a text for each. `installed` has the versions that are there, by name."""
    for package in packages:
        choices = [_parted(choice) for choice in package.split("|")]
        there = {name: version.partition("+")[0] for name, _ in choices if (version := installed.get(name))}
        if any(name in there and _allows(wanted, there[name]) for name, wanted in choices):
            continue
        has = ", ".join(f"{name} {version}" for name, version in there.items())
        wishes = (f"{name} {wanted.removeprefix('==')}".strip() for name, wanted in choices)
        yield f"needs {' or '.join(wishes)}, has {has or 'none'}"


def least_of(needs: Sequence[str], name: str) -> str:
    """The least version of `name` that these needs ask for, LEAST where none does."""
    versions = [need.partition(">=")[2] for need in needs if need.startswith(f"{name}>=")]
    return max([LEAST[name], *versions], key=release)
