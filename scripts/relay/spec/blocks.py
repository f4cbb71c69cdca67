"""The types that the models of the config and of the sites' files share."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Natural = Annotated[int, Field(ge=1)]
Whole = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Text = Annotated[str, Field(min_length=1)]


class Block(BaseModel):
    """The base of all blocks. Unknown keys are refused, and so are values of a wrong type, such as '0.1' or yes."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
