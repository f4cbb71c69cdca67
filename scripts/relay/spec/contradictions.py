"""Keys of a cluster's file that contradict each other: each yields a line, in the words of the file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from relay.spec import cuda
from relay.spec.messages import show

if TYPE_CHECKING:
    from relay.spec.site import Site

# Keys of `environment`, and with what they have an effect.
USED_WITH = {
    "wheels_from": ("mode: wheels",),
    "packages": ("wheels_from: site",),
    "conda": ("mode: conda",),
    "image": ("mode: apptainer",),
    "python": ("mode: wheels",),
    # Of the others it is known: the lock's, or that of the driver's environment.
    "torch_version": ("wheels_from: site", "mode: conda", "mode: modules", "mode: apptainer"),
}
GRES_TYPE = r"[A-Za-z0-9_.]+"  # what Snakemake's Slurm plugin takes as the type of a GPU


def contradictions(site: Site) -> Iterator[str]:
    """A line for each pair of keys that cannot both hold."""
    yield from _of_partitions(site)
    if (site.openmp.places or site.openmp.bind) and not site.confines_cpus:
        # Without confinement, all processes of a node would be bound to the same cores.
        yield "openmp: places and bind are not allowed with confines_cpus: false; leave them out, or set it to true"
    if site.mail_user and not site.mail_type:
        yield f"mail_user: {show(site.mail_user)} gets no mail without mail_type; give both, such as [END, FAIL]"
    yield from _of_torch(site)
    yield from _of_packages(site)


def _of_partitions(site: Site) -> Iterator[str]:
    for i, p in enumerate(site.partitions):
        place = f"partitions[{i}]"
        if p.device == "cuda" and not p.gpus_per_node:
            yield f"{place}.gpus_per_node: 0 is not allowed with device: cuda; allowed: at least 1"
        if p.device == "cpu" and (p.gpus_per_node or p.gpu_name):
            yield f"{place}.device: cpu is not allowed with gpus_per_node or gpu_name; allowed: cuda"
        named = cuda.generation_of(p.gpu_name)
        if p.gpu_generation and named and p.gpu_generation != named:
            yield (
                f"{place}.gpu_generation: {show(p.gpu_generation)} is not allowed with gpu_name: {p.gpu_name}, which "
                f"is of the generation {named}; leave it out"
            )
        if site.min_minutes and p.max_minutes and site.min_minutes > p.max_minutes:
            yield (
                f"{place}.max_minutes: {p.max_minutes} is not allowed with min_minutes: {site.min_minutes}, the "
                "shortest job; allowed: at least as much"
            )
        if site.gpu_request == "gres" and p.gpu_name and not re.fullmatch(GRES_TYPE, p.gpu_name):
            allowed = "letters, digits, . and _ with gpu_request: gres"
            yield f"{place}.gpu_name: {show(p.gpu_name)} is not allowed; allowed: {allowed}"
        first = [each.slurms for each in site.partitions].index(p.slurms)
        if p.limits != site.partitions[first].limits:
            yield f"{place}.limits: differ from partitions[{first}].limits, and both are {p.shown}"


def _of_torch(site: Site) -> Iterator[str]:
    e = site.environment
    gpus = [p.generation for p in site.partitions if p.device == "cuda"]
    if e.source == "wheels" and e.torch == "auto" and gpus and cuda.chosen(gpus, site.nvidia_driver) is None:
        present = f"{', '.join(sorted({str(each) for each in gpus}))}; driver {site.nvidia_driver}"
        yield f"environment.torch: auto is not allowed: no build of torch is for all GPUs ({present}); name one"


def _of_packages(site: Site) -> Iterator[str]:
    e = site.environment
    if e.mode == "conda" and not e.conda:
        yield "environment.conda: missing with mode: conda; allowed: {stack: name, folder or file}"
    if e.mode == "apptainer" and not e.image:
        yield "environment.image: missing with mode: apptainer; allowed: the path of an image"
    if e.mode == "modules" and not site.modules:
        yield "modules: missing with environment.mode: modules; allowed: the modules that give `python` with torch"
    if e.source == "site" and not e.packages:
        yield "environment.packages: missing with wheels_from: site; allowed: {stack: [packages]}"
    given = [f"mode: {e.mode}", *([f"wheels_from: {e.wheels_from}"] if e.mode == "wheels" else [])]
    for key, used_with in USED_WITH.items():
        value = getattr(e, key)
        if value != type(e).model_fields[key].default and not set(given) & set(used_with):
            allowed = f"{', '.join(used_with)}; leave it out"
            yield f"environment.{key}: {show(value)} has no effect with {', '.join(given)}; allowed with {allowed}"
