"""What a cluster charges for its devices, as its file says: for the plan's jobs and in the answer alike."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pydantic import Field

from relay.spec.yaml_file import Block, Positive, Text

CORES_PER_GPU = 12  # where a site does not say: four GPUs beside 48 cores are usual


class Price(Block):
    """What an hour of a device costs. The plan shows the sum in the given currency. null: nothing is shown."""

    gpu_hour: Positive | None = Field(default=None, description="an hour of a GPU, with the CPUs that go with it")
    cpu_hour: Positive | None = Field(default=None, description="an hour of a CPU core, of jobs without GPUs")
    currency: Text = Field(default="EUR", description="the currency, or another unit such as credits, as text")

    def of(self, taken: Mapping[str, float]) -> float | None:
        """What an hour of a job's `gpus` and `cpus` costs; None where the site does not say. CPUs go with the GPUs."""
        each, count = (self.gpu_hour, taken["gpus"]) if taken["gpus"] else (self.cpu_hour, taken["cpus"])
        return None if each is None else each * count


@dataclass(frozen=True, kw_only=True)
class Charging:
    """What CPUs and GPUs count as. Cost is counted in CPU cores, because hours of different devices have no sum.

    A GPU counts as the cores that cost as much, or else as those that the site shares out with it.
    """

    cores_per_gpu: float = CORES_PER_GPU
    price: Price = field(default_factory=Price)

    @property
    def currency(self) -> str:
        """In what costs are told."""
        return self.price.currency if self.core_price else "core-hours"

    @property
    def core_price(self) -> float | None:
        """What a CPU core costs an hour or, where only GPUs have a price, its part of a GPU's; None without prices."""
        return self.price.cpu_hour or (self.price.gpu_hour / self.cores_per_gpu if self.price.gpu_hour else None)

    def cores(self, taken: Mapping[str, float]) -> float:
        """The CPU cores that these `gpus` and `cpus` are charged as: by the price, or else by the larger of the two."""
        price = self.price.of(taken)
        if price is not None and self.core_price:
            return price / self.core_price
        return float(max(taken["cpus"], taken["gpus"] * self.cores_per_gpu))


def charging(price: Price, cores_per_gpu: float | None, compared: Iterable[Mapping[str, float]]) -> Charging:
    """By a site's price where it tells the cost of all that is `compared`, since no sum is of money and hours."""
    if any(price.of(each) is None for each in compared):
        price = Price()
    by_price = price.gpu_hour / price.cpu_hour if price.gpu_hour and price.cpu_hour else None
    return Charging(cores_per_gpu=by_price or cores_per_gpu or CORES_PER_GPU, price=price)
