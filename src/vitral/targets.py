"""What is to be learnt about a picture: one class, several labels, a number, or several of these at once. No torch.

A model has one output per class, per label, and one for a number; where there are several targets, their outputs stand
side by side, in this order.
"""

from collections.abc import Sequence
from typing import Literal, Self

import numpy as np
from pydantic import Field, model_validator

from vitral.errors import DataError
from vitral.settings import Settings

TargetKind = Literal["class", "labels", "number"]


class Target(Settings):
    """One thing that is to be learnt, stored with the weights.

    >>> Target(name="fruit", kind="labels", names=("apple", "pear")).outputs
    2
    """

    name: str = "label"  # of the column that it is from
    kind: TargetKind = "class"
    names: tuple[str, ...]  # of its outputs: the classes; the labels; of a number its own name
    mean: float = 0.0  # of a number: output · std + mean is in the unit of the data
    std: float = Field(default=1.0, gt=0)

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.kind == "number" and len(self.names) != 1:
            raise ValueError(f"The target {self.name} is a number, and has {len(self.names)} names.")
        return self

    @property
    def outputs(self) -> int:
        """How many outputs of a model it takes."""
        return len(self.names)


def one_class(class_names: Sequence[str]) -> tuple[Target, ...]:
    """The targets of pictures of which each has one class."""
    return (Target(names=tuple(class_names)),)


def is_one_class(targets: Sequence[Target]) -> bool:
    """Whether each picture has one class and nothing else is to be learnt: labels are then numbers of classes, (n,).
    Else they are what each output should be, (n, outputs): 0 or 1, or a number in the unit of the data."""
    return len(targets) == 1 and targets[0].kind == "class"


def require_one_class(targets: Sequence[Target], whose: str, what: str) -> None:
    """Refuse what is made for pictures that have one class each, for others.

    >>> require_one_class([Target(kind="number", name="weight", names=("weight",))], "runs/pets", "A card")
    Traceback (most recent call last):
    vitral.errors.DataError: A card is for one class a picture, and runs/pets has weight (number).
    """
    if not is_one_class(targets):
        words = ", ".join(f"{target.name} ({target.kind})" for target in targets)
        raise DataError(f"{what} is for one class a picture, and {whose} has {words}.")


def same(some: Sequence[Target], others: Sequence[Target]) -> bool:
    """Whether these are the same targets, whatever mean and standard deviation their numbers have."""
    return len(some) == len(others) and all(
        (one.kind, one.names) == (other.kind, other.names) and (one.kind == "class" or one.name == other.name)
        for one, other in zip(some, others, strict=True)
    )


def columns(targets: Sequence[Target]) -> list[slice]:
    """Which of the outputs belong to each target.

    >>> columns([Target(names=("0", "1")), Target(kind="number", names=("weight",))])
    [slice(0, 2, None), slice(2, 3, None)]
    """
    ends = np.cumsum([target.outputs for target in targets]).tolist()
    return [slice(end - target.outputs, end) for target, end in zip(targets, ends, strict=True)]
