"""What is told of a strategy that raised in its gate: it has computed nothing else, it cannot run the training."""

import re
from collections.abc import Sequence
from pathlib import Path

from relay.run_folder.faults import Fault
from relay.run_folder.snapshot import OWN_TASK

CANNOT_RUN = "it cannot run this training"
FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+), in .*\n(?: {4}(?P<code>\S.*)\n)?', re.MULTILINE)
# What helps, by torch's words: the first that fits.
HELPS = (
    (
        r"parameters that were not used in producing loss",
        "give ddp the option `find_unused_parameters: true`, because some parameters get no gradient in some steps",
    ),
    (
        r"setStorage: .* out of bounds for storage of size 0",
        "return a copy of a parameter that the model returns, by `.clone()`, or give fsdp `reshard_after_forward: "
        "false`, because a sharded parameter is freed after the forward pass",
    ),
    (
        r"meta tensor",
        "a stage reads a parameter that another process holds, as a loss does that reads parameters: take a strategy "
        "in which each process has the model, such as ddp or fsdp",
    ),
    (
        r"mixed torch\.Tensor and DTensor|unevenly sharded tensor",
        "a divided parameter, which is a DTensor, meets an ordinary tensor, or is reshaped: where a loss reads "
        "parameters, let it make a number of each one first, as `each.square().sum()` does, or take a strategy that "
        "keeps them whole, such as ddp",
    ),
    (
        r"DTensor|sharding strategy",
        "divided parameters are DTensors, which lack this operation: take an optimiser and layers of torch's, or a "
        "strategy that keeps parameters whole, such as ddp",
    ),
    (
        r"modified (by an )?in-?place|in-?place operation",
        "compute it without changing a tensor in place, such as nn.ReLU() for nn.ReLU(inplace=True)",
    ),
)
MOST_LETTERS = 400  # of torch's words: some go on with pages of shapes


def cannot_run(fault: Fault, task: str) -> str:
    """The problem of a strategy that left this fault: the line, torch's words, and what helps.

    The line is the last one of the user's that led to it, in the folder of the `task`'s file or a job's copy of it;
    that of torch's own where none did.
    """
    frames = list(FRAME.finditer(fault.traceback))
    paths = [(frame, Path(frame["file"])) for frame in frames]
    folder = Path(task).parent if task else None
    own = [frame for frame, path in paths if OWN_TASK in path.parts or path.parent == folder]
    place = ""
    if last := (own or frames)[-1:]:
        place = f" {last[0]['file'] if own else Path(last[0]['file']).name}:{last[0]['line']}"
        place += f" ({last[0]['code']})" if last[0]["code"] and not last[0]["code"].startswith("raise ") else ""
        place += ":"
    causes = fault.text or fault.error  # torch's pipelines raise an error of their own, with shapes
    helps = next((f"; what helps: {words}" for pattern, words in HELPS if re.search(pattern, causes)), "")
    said = fault.error if len(fault.error) <= MOST_LETTERS else f"{fault.error[:MOST_LETTERS].rstrip()} …"
    return f"{CANNOT_RUN}:{place} {said}{helps}"


def refusing(problems: Sequence[str]) -> str:
    """A verdict that refuses its setting, in words."""
    reasons = "; ".join(problems)
    return reasons if reasons.startswith(CANNOT_RUN) else f"NOT equivalent: {reasons}"
