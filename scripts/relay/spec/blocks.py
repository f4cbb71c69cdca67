"""What the typed files of the project, the config and the sites', have in common."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Natural = Annotated[int, Field(ge=1)]
Whole = Annotated[int, Field(ge=0)]
Text = Annotated[str, Field(min_length=1)]


class Block(BaseModel):
    """What all blocks share: unknown keys and YAML's accidents ('0.1' as text, yes as 1) are refused."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
