"""What all tables of settings share: strict about names and values, and the kinds of numbers.

In: nothing. Out: `Table`, the types of fields.
"""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Probability = Annotated[float, Field(ge=0.0, lt=1.0)]
Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Width = Annotated[int, Field(ge=1, le=1_000_000)]
Layers = Annotated[int, Field(ge=1, le=1000)]


class Table(BaseModel):
    """A table of settings: unknown keys are refused, values cannot change after the check."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)
