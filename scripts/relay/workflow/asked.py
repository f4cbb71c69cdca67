"""The functions that Snakemake asks of each job's wildcards.

It looks up the signature of such a function three to five times for each job. To make one anew takes `inspect` 15 to
35 µs, which was an eighth of a dry run of thousands of jobs. So here each function has its signature with it.
"""

import inspect
from collections.abc import Callable
from functools import cached_property
from types import MethodType
from typing import Any

OfJob = Callable[..., Any]  # of a job's wildcards, and of what else Snakemake has that the function names


def with_signature(function: OfJob) -> OfJob:
    """The same function, with the signature that `inspect` would make."""

    def of_job(*given: Any, **named: Any) -> Any:
        return function(*given, **named)

    of_job.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    return of_job


class asked(cached_property[OfJob]):
    """A method that rules name."""

    def __init__(self, method: OfJob) -> None:
        super().__init__(lambda owner: with_signature(MethodType(method, owner)))
