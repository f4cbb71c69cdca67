"""How a batch can be divided, and the small batch on which a gate proves a strategy."""

from __future__ import annotations

import math

from relay.planning.settings import StrategyFile
from relay.spec.requirements import Requirements
from relay.spec.run import Setting, changed

# The gate's long trainings use a batch of about this size. Runs of any batch size that is divided in the same way then
# share a gate, and most strategies share a reference, because 1, 2, 4, 8 and 16 divide it. A sample of many units, as a
# text of tokens, has a target for each: fewer samples are enough for a gradient, and each costs more.
PROOF_BATCH, PROOF_BATCH_OF_MANY_UNITS = 16, 8


def slices(setting: Setting, needs: Requirements) -> int:
    """Into how many parts the samples of a batch are divided; 1 where the strategy does not divide them.

    One process with several devices gives each device a part. Otherwise each replica gets one.
    """
    if "samples" not in needs.divides:
        return 1
    shape = setting.shape
    if needs.processes == "one":
        return shape.devices
    return max(1, shape.world_size // needs.group_size(shape.world_size, setting.strategy.options))


def unit(setting: Setting, needs: Requirements) -> int:
    """The samples of which every global batch of the setting must be a multiple, so that it divides evenly.

    It divides into slices, and each slice into the parts that the strategy's options ask for.
    """
    options = setting.strategy.options
    return slices(setting, needs) * math.lcm(*(options.get(name, 1) for name in needs.whole_batches))


def proof_batch(setting: Setting, strategy: StrategyFile) -> int:
    """The global batch size of the gate's long trainings. It is divided as the setting's own, and is not larger."""
    needs, own = strategy.requirements, setting.batch.global_batch_size
    multiple = unit(setting, needs)
    least = PROOF_BATCH_OF_MANY_UNITS if setting.task.units_per_sample > 1 else PROOF_BATCH
    first = math.ceil(least / multiple) * multiple
    suitable = (
        batch for batch in range(first, own, multiple) if _fits(changed(setting, global_batch_size=batch), strategy)
    )
    return next(suitable, own)


def _fits(setting: Setting, strategy: StrategyFile) -> bool:
    """Whether the strategy's own needs, which may speak of the batch, are met."""
    needs = strategy.requirements
    group = needs.group_size(setting.shape.world_size, setting.strategy.options)
    stages = group * needs.stages_per_process(setting.strategy.options)
    return not any(need(setting, group, stages) for need in strategy.needs)
