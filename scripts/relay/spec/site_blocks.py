"""Blocks of a cluster's file: how threads are placed, and where a job's Python packages come from."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from relay.spec.blocks import Block, Text

Mode = Literal["wheels", "conda", "modules", "apptainer", "current"]
Source = Literal["wheels", "site", "conda", "modules", "apptainer", "current"]


class OpenMP(Block):
    """OpenMP's placement of threads. Where a value is null, the cluster's own setting stays."""

    places: Literal["threads", "cores", "sockets"] | None = Field(default=None, description="OMP_PLACES")
    bind: Literal["close", "spread", "primary"] | None = Field(default=None, description="OMP_PROC_BIND")
    stack: Text | None = Field(default=None, description="OMP_STACKSIZE, such as 512m")


class Environment(Block):
    """Where a job's Python packages come from."""

    mode: Mode = Field(
        default="wheels",
        description="wheels: a virtual environment on the node's own disk; conda: a conda environment; "
        "modules: the `python` that the modules provide; apptainer: a container; "
        "current: the environment that Snakemake runs in",
    )
    wheels_from: Literal["download", "site"] = Field(
        default="download",
        description="download: the locked wheels, downloaded and hash-checked on the login node; "
        "site: the cluster's own wheels, installed with `pip install --no-index`",
    )
    packages: dict[str, list[Text]] = Field(
        default={}, description="the cluster's own wheels to install: {stack: [packages]}"
    )
    conda: dict[str, Text] = Field(
        default={}, description="conda environments: {stack: its name, its folder, or the file that creates it}"
    )
    image: Text | None = Field(default=None, description="the container's image file, on a disk that all nodes share")
    python: Text | None = Field(
        default=None,
        description="the Python that virtual environments are made with; null: the one that `make install` used",
    )
    install_after: Text | None = Field(
        default=None,
        description="what to give on the login node before `make install`, so that its `python3` suits the project; it "
        "is shown, and never run",
    )
    driver_python: Literal["3.11", "3.12", "3.13"] | None = Field(
        default=None,
        description="version of Python that `make install` has to use, because the cluster's packages are for it: the "
        "plan warns of another; null: any",
    )
    torch: Literal["cpu", "cuda", "cu118", "cu124", "cu126", "cu128", "cu130", "auto"] = Field(
        default="auto",
        description="build of torch: cuda is the package registry's, the others are of PyTorch's own indexes; auto: "
        "the first that the partitions' GPUs and nvidia_driver can run",
    )
    torch_version: Text | None = Field(
        default=None,
        description="version of torch that the modules, the conda environment, the image or the cluster's wheels give: "
        "strategies that need a newer one are skipped; null: only the jobs can tell",
    )
    torch_mpi: bool = Field(
        default=False,
        description="whether that torch was built with MPI (`torch.distributed.is_mpi_available()`), for backend mpi",
    )

    @property
    def source(self) -> Source:
        """Where a job's packages come from: the mode, or `site` for a cluster's own wheels."""
        return "site" if self.mode == "wheels" and self.wheels_from == "site" else self.mode


class LibTorch(Block):
    """How the C++ program of `snakemake libtorch` is built, beyond what torch's own CMake files say."""

    compile_flags: list[Text] = Field(
        default=[], description="flags for the compiler; the job replaces variables, such as -I$EBROOTCUDA/include"
    )
    link_flags: list[Text] = Field(
        default=[], description="flags for the linker, in the same way, such as -L$EBROOTCUDA/extras/CUPTI/lib64"
    )
