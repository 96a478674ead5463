"""What stands behind the ? of /predict."""

from collections.abc import Mapping
from typing import Self

from pydantic import Field

from vitral.deploy.serve.questions import Refusal
from vitral.errors import RecipeError
from vitral.settings import Settings


class Options(Settings):
    """How a picture is to be answered.

    >>> Options.read({"top": "5", "model": "digits"}).top
    5
    """

    model: str | None = None  # its name; None: the first
    top: int = Field(default=3, ge=1, le=100_000)  # classes to name
    unsure: float = Field(default=0.5, ge=0, le=1)  # what is less probable is called so
    map: str = ""  # answer with a picture of where the model looked, by this method
    deadline: float | None = Field(default=None, gt=0)  # seconds; the server may have a shorter one

    @classmethod
    def read(cls, values: Mapping[str, str], prefix: str = "?") -> Self:
        """From the query of a request; what cannot be is refused with a sentence."""
        try:
            return super().read(values, prefix)
        except RecipeError as error:
            raise Refusal(400, str(error)) from None
