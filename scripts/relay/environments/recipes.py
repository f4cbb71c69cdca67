"""How packages without wheels are built. One recipe for each; nothing about such a package stands anywhere else."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from relay.environments.kept import COMPILERS


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a package is built from its source.

    `programs` are what the machine must have, each with the Debian package that brings it. `variables` are the build's
    environment. For a CUDA build of torch `cuda_variables` are added, and nvcc is needed too. In these,
    {arch_list} is TORCH_CUDA_ARCH_LIST, {capabilities} are the same numbers in Horovod's way (80,90), and {nccl} is the
    folder of the NCCL that came with torch. A variable without a value is left out.
    `optional_headers` add a part to the wheel where the machine has them.
    `tried` is a line of Python that runs only if the compiled parts fit.
    `replaced` are changes of the source: {file: ((pattern, text), …)}. Each pattern has to be found.
    """

    package: str
    tried: str
    programs: Mapping[str, str]
    optional_headers: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    cuda_variables: Mapping[str, str] = field(default_factory=dict)
    replaced: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)

    def environment(self, build: str, values: Mapping[str, str]) -> dict[str, str]:
        """The variables for a build of torch, which is cpu or a CUDA build. `values` are the values in braces."""
        if build == "cpu":
            return dict(self.variables)
        cuda = {name: text.format(**values) for name, text in self.cuda_variables.items()}
        return {**self.variables, **{name: value for name, value in cuda.items() if value}}

    def patch(self, source: Path) -> None:
        """Change the unpacked source. Raises ValueError for a pattern that is not found: another version."""
        for name, changes in self.replaced.items():
            text = (source / name).read_text(encoding="utf-8")
            for pattern, new in changes:
                text, count = re.subn(pattern, new, text)
                if not count:
                    raise ValueError(f"{self.package}: {name} has no {pattern!r}: the recipe is for another version")
            (source / name).write_text(text, encoding="utf-8")


NVCC = {"nvcc": "nvidia-cuda-toolkit, or the site's CUDA module"}
# The headers of torch 2.13 are C++17; Horovod 0.28.1, the last release, asks for C++14.
AS_CPP17 = ((r"set\(CMAKE_CXX_STANDARD 14\)", "set(CMAKE_CXX_STANDARD 17)"),)
# The wheel of NCCL has this file alone, without the link `libnccl.so` that a linker looks for.
VERSIONED_NCCL = ((r'set\(NCCL_LIBNAME "nccl"\)', "set(NCCL_LIBNAME libnccl.so.2 nccl)"),)

# A wheel is built on the login node and runs on others: for every x86 CPU with AVX2 (2013), not for the builder's own.
NATIVE, FOR_X86 = "return '-march=native'", "'-march=x86-64-v3' if cpu_info['arch'] == 'X86_64'"
FOR_MANY_CPUS = (
    (rf"(?m)^        {NATIVE}$", f"        return {FOR_X86} else '-march=native'"),
    (r"return '-D__AVX512__'", "return '-D__AVX256__'"),
)
# By Python's `import`: DeepSpeed's own loading compiles what is missing. `async_io` needs the symbols of `pin_memory`.
OPERATIONS_LOAD = """
import os, sys
from importlib import import_module
from deepspeed.git_version_info import installed_ops
sys.setdlopenflags(os.RTLD_NOW | os.RTLD_GLOBAL)
assert installed_ops["cpu_adam"]
for name in ("adam.cpu_adam", "adam.fused_adam", "comm.deepspeed_shm_comm", "pin_memory.pin_memory", "aio.async_io"):
    if installed_ops.get(name.partition(".")[2]):
        import_module(f"deepspeed.ops.{name}_op")
"""
# DeepSpeed names libaio only where it compiles at run time.
LINKED = (
    (
        r"(?m)^    def sources\(self\):$",
        "    def libraries_args(self):\n        return ['aio']\n\n    def sources(self):",
    ),
)

RECIPES = {
    recipe.package: recipe
    for recipe in (
        Recipe(
            package="horovod",
            tried="import horovod.torch; assert horovod.torch.gloo_built()",
            programs={**COMPILERS, "cmake": "cmake"},
            variables={
                "HOROVOD_WITH_PYTORCH": "1",
                "HOROVOD_WITHOUT_TENSORFLOW": "1",
                "HOROVOD_WITHOUT_MXNET": "1",
                "HOROVOD_WITH_GLOO": "1",
                "HOROVOD_WITHOUT_MPI": "1",
                # Parts of the bundled libraries ask for a CMake that newer ones no longer imitate.
                "CMAKE_POLICY_VERSION_MINIMUM": "3.5",
            },
            cuda_variables={
                "HOROVOD_GPU_OPERATIONS": "NCCL",
                # The NCCL that torch loads; its wheel has no static library.
                "HOROVOD_NCCL_LINK": "SHARED",
                "HOROVOD_NCCL_HOME": "{nccl}",
                "HOROVOD_BUILD_CUDA_CC_LIST": "{capabilities}",
            },
            replaced={
                "CMakeLists.txt": AS_CPP17,
                "horovod/torch/CMakeLists.txt": AS_CPP17,
                "cmake/Modules/FindNCCL.cmake": VERSIONED_NCCL,
            },
        ),
        Recipe(
            package="deepspeed",
            tried=OPERATIONS_LOAD,
            programs=COMPILERS,
            optional_headers={"libaio.h": "libaio-dev"},  # for offloading to a disk
            variables={
                "DS_ACCELERATOR": "cpu",
                "DS_BUILD_CPU_ADAM": "1",
                "DS_BUILD_SHM_COMM": "1",
                "DS_BUILD_AIO": "1",  # left out by DeepSpeed where libaio's header is not there
                "DS_ENABLE_NINJA": "1",  # compiles several files at once
            },
            cuda_variables={
                "DS_ACCELERATOR": "cuda",
                "DS_BUILD_FUSED_ADAM": "1",
                # By default DeepSpeed names capabilities that nvcc 13 has dropped.
                "TORCH_CUDA_ARCH_LIST": "{arch_list}",
            },
            replaced={"op_builder/builder.py": FOR_MANY_CPUS, "op_builder/cpu/async_io.py": LINKED},
        ),
    )
}
