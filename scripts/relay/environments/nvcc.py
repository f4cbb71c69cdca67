"""CUDA's compiler: which version there is, and whether it is the one of torch's CUDA."""

import os
import re
import shutil
import subprocess
from pathlib import Path


def program() -> str | None:
    """The nvcc that torch's extensions are built with: that of CUDA_HOME, else the first on the PATH; or None."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    return shutil.which(str(Path(home) / "bin" / "nvcc") if home else "nvcc")


def version() -> str | None:
    """Its major and minor version, such as 13.0; None where there is none that runs."""
    try:
        said = subprocess.run([program() or "nvcc", "--version"], capture_output=True, text=True, check=False).stdout
    except OSError:
        return None
    match = re.search(r"release (\d+\.\d+)", said)
    return match[1] if match else None


def problem(torch_cuda: str | None) -> str | None:
    """Why nothing can be compiled for a torch of that CUDA (`torch.version.cuda`), with the remedy; None where it can.

    Libraries of another minor version are refused by the packages that are built, or are found at run time.
    """
    if torch_cuda is None:
        return "torch was built without CUDA there: environment.torch in the site's file names its build"
    wanted, present = ".".join(torch_cuda.split(".")[:2]), version()
    if present == wanted:
        return None
    remedy = f"load the module of CUDA {wanted} (`stack_modules` in the site's file), or point CUDA_HOME at it"
    if present is None:
        return f"there is no nvcc on PATH (Debian: nvidia-cuda-toolkit), for torch's CUDA {wanted}: {remedy}"
    return f"nvcc is of CUDA {present} ({program()}), torch of CUDA {wanted}: {remedy}"
