"""Which stack of software each strategy's jobs use: the project's own, or one whose lock the login node records.

A stack becomes another one, with a lock of its own, by packages of the user's (`packages` of the config), and where a
cluster's own wheels are installed: what the cluster offers today is recorded, and holds for the whole comparison.
"""

import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from relay.base.errors import UserError
from relay.base.grouped import gathered
from relay.config.config import Config
from relay.environments import conda, login_node, recorded, wheelhouse
from relay.environments.locks import Pin, lock_of, pinned, read
from relay.environments.overlay import DRIVERS
from relay.environments.recipes import RECIPES
from relay.environments.recorded import LockRequest
from relay.spec import cuda
from relay.spec.messages import show
from relay.spec.site import Site
from relay.spec.site_blocks import Source


@dataclass(frozen=True)
class Stacks:
    """The stacks of a plan. `names` has those that are not the project's own, by the project's.

    `unrecorded` are lines about stacks of a cluster's own wheels whose versions cannot be told, or are gone.
    """

    source: Source
    names: dict[str, str] = field(default_factory=dict)
    unrecorded: list[str] = field(default_factory=list)

    def name(self, stack: str) -> str:
        """The stack that a strategy's jobs use; `stack` is the one that its requirements name."""
        return self.names.get(stack, stack)

    @property
    def plain(self) -> str:
        """The stack of what loads no strategy: references, and the login node's looks at the task."""
        return self.name(DRIVERS)

    def shown(self, root: Path) -> Iterator[str]:
        """A line for each recorded stack, with its version of torch."""
        for stack, name in self.names.items():
            lock = lock_of(root, name)
            torch = pinned(read(lock), "torch") if self.source != "current" else None
            yield f"stack {stack}: {f'torch {torch}, ' if torch else ''}as recorded in {lock}"


def source_of(site: Site | None) -> Source:
    """Where a job's packages come from."""
    return site.environment.source if site else "current"


def find(config: Config, site: Site | None, root: Path, needed: Collection[str], *, record: bool) -> Stacks:
    """The stacks of a plan whose strategies need the project's stacks `needed`.

    `record` asks pip for the locks that are not there. The driver does; its jobs read what it has recorded.
    Raises UserError for packages that are not allowed, and for a lock that is missing or cannot be had.
    """
    if wrong := [f"config: packages{line}" for line in _mistakes(config, site, root)]:
        raise UserError("\n".join(wrong))
    chosen = Stacks(source_of(site))
    for stack in sorted({DRIVERS, *needed}, key=lambda each: (each != DRIVERS, each)):
        if not lock_of(root, stack).is_file():
            continue
        request = None
        try:
            request = _lock_request(config, site, root, stack, chosen)
            if request is not None and record:
                recorded.record(request)
        except UserError as error:
            if chosen.source != "site":
                raise
            chosen.unrecorded.append(str(error))
        if request is None:
            continue
        if not request.lock.is_file():
            if not request.site:
                raise UserError(f"{request.lock} is missing: start the driver again, which records it")
            continue
        chosen.names[stack] = request.name
        if site and record and chosen.source == "conda":
            recorded.write_conda(request, Path(login_node.conda_of(site, stack, root)))
    return chosen


def _lock_request(config: Config, site: Site | None, root: Path, stack: str, chosen: Stacks) -> LockRequest | None:
    """What a stack's lock is to hold; None where the project's own lock has it all. `chosen` are the stacks before."""
    own = tuple(config.packages.get(stack, ()))
    lock = read(lock_of(root, stack))
    if site is not None and chosen.source == "site":
        return _of_the_site(site, stack, own, chosen)
    if site is not None and chosen.source == "wheels" and cuda.of_an_index(site.torch_build):
        return _of_an_index(site, stack, own, lock)
    if not own or (site is not None and chosen.source == "conda" and stack not in site.environment.conda):
        return None
    return LockRequest(
        stack=stack,
        requirements=own,
        python=login_node.python_of(site) if site is not None and chosen.source == "wheels" else sys.executable,
        refused=f"config: packages.{stack}: pip has no wheels for {', '.join(own)}: {{error}}",
        held=lock,
        beside=read(lock_of(root, "driver")),
    )


def _of_an_index(site: Site, stack: str, own: tuple[str, ...], lock: list[Pin]) -> LockRequest:
    """What is asked of PyTorch's own index for a build of torch: its pinned torch, and the lock's other packages.

    What torch itself needs, such as CUDA's libraries, follows. Packages that are built here keep their lock's entries.
    """
    name, build, python = site.torch_build, cuda.BUILDS[site.torch_build], login_node.python_of(site)
    pins = {"torch": f"{build.torch}+{name}", "torchvision": f"{build.torchvision}+{name}"}
    locked = recorded.versions(lock, wheelhouse.version_of(Path(python)))
    pins |= {package: pin for package, pin in locked if package not in (*pins, *RECIPES)}
    index = cuda.index(name)
    where = f"{site.file}: environment.torch: {name}"
    return LockRequest(
        stack=stack,
        requirements=(*(f"{package}==={pin}" for package, pin in pins.items()), *own),
        python=python,
        refused=f"{where}: its wheels cannot be had here ({{error}}); {index} must answer",
        held=[entry for entry in lock if entry.name in RECIPES],
        index=index,
    )


def _of_the_site(site: Site, stack: str, own: tuple[str, ...], chosen: Stacks) -> LockRequest | None:
    """What is asked of a cluster's own wheels; None where its file names none for the stack.

    Further stacks have the torch of the stack `torch`, because their strategies are compared with its.
    """
    offered = site.environment.packages.get(stack)
    if not offered:
        return None
    torch = chosen.names.get(DRIVERS) if stack != DRIVERS else None
    pins_of_torch = read(lock_of(Path(), torch)) if torch else []
    where = f"{site.file}: environment.packages.{stack}: this machine's pip cannot tell the versions"
    return LockRequest(
        stack=stack,
        requirements=(*offered, *own),
        python=login_node.python_of(site),
        refused=f"{where} ({{error}}); start Snakemake on the cluster, with its modules",
        modules=tuple(site.modules),
        site=site.name,
        beside=[entry for entry in pins_of_torch if entry.name in ("torch", "torchvision")],
    )


def _mistakes(config: Config, site: Site | None, root: Path) -> Iterator[str]:
    """A line for each mistake in the config's packages, as it goes on after `packages`."""
    source = source_of(site)
    if any(config.packages.values()) and site is not None and source in ("modules", "apptainer"):
        where = f"{site.file} takes its packages from the cluster (environment.mode: {source})"
        yield f": not allowed: {where}; allowed with wheels, conda and current"
        return
    for stack, packages in config.packages.items():
        if packages and site is not None and source == "conda":
            declared = login_node.conda_of(site, stack, root) if stack in site.environment.conda else None
            if declared and not conda.creates(declared):
                place = f"{declared!r} (environment.conda of {site.file})"
                yield f".{stack}: nothing can be added to {place}; allowed with a file that creates the environment"
        is_locked = source in ("current", "wheels")
        held = gathered(recorded.versions(read(lock_of(root, stack)))) if is_locked else {}
        for i, text in enumerate(packages):
            if problem := _mistake(text, held):
                yield f".{stack}[{i}]: {show(text)} is not allowed{problem}"


def _mistake(text: str, held: dict[str, list[str]]) -> str:
    """What is wrong with a package, as it goes on after `is not allowed`; '' where nothing is.

    `held` are the packages of the stack's lock, each with its versions for the versions of Python.
    """
    try:
        package = Requirement(text)
    except InvalidRequirement:
        package = None
    if package is None or package.url or package.marker:
        return "; allowed: a package, with versions if you like, such as transformers==4.57.1"
    pins = held.get(canonicalize_name(package.name), [])
    if pins and not any(package.specifier.contains(pin, prereleases=True) for pin in pins):
        return f": the stack's lock has {package.name} {' or '.join(pins)}; allowed: other packages"
    if pins and package.extras:
        return f": the stack's lock has {package.name} without extras; name the packages that they bring"
    return ""
