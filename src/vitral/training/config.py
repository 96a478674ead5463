"""The tables `[init]`, `[teacher]` and `[train]` of a recipe: where weights start, who teaches, how they change.

Validated, no torch.
"""

import re
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, StrictBool, StrictInt, Tag, model_validator

from vitral.data.config import Share
from vitral.model.config import Regularise
from vitral.plugin import is_plugin
from vitral.settings import Part, Settings, as_table


def _require_unit(budget: Any) -> Any:
    if isinstance(budget, int | float):
        raise ValueError(f"train.budget is {budget}: of what? Write such as {budget}s, {budget}m or {budget}steps.")
    return budget


Beta = Annotated[float, Field(ge=0, lt=1)]


DecayOn = Annotated[Literal["matrices", "all"], Field(description="all: also biases, norms, tokens and positions")]


class AdamW(Part):
    """One rate for all; the decay is decoupled from the gradient."""

    kind: Literal["adamw"] = "adamw"
    learning_rate: float = Field(default=1e-3, gt=0)
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    weight_decay: float = Field(default=0.0, ge=0)
    decay_on: DecayOn = "matrices"


class Adam(Part):
    """As it was before AdamW: the decay is added to the gradient."""

    kind: Literal["adam"] = "adam"
    learning_rate: float = Field(default=1e-3, gt=0)
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    weight_decay: float = Field(default=0.0, ge=0)
    decay_on: DecayOn = "matrices"


class SGD(Part):
    """Plain steps with momentum; the decay is added to the gradient."""

    kind: Literal["sgd"] = "sgd"
    learning_rate: float = Field(default=0.03, gt=0)
    momentum: float = Field(default=0.9, ge=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0)
    decay_on: DecayOn = "matrices"


class Muon(Part):
    """Orthogonalised steps for the matrices of the blocks and the convolutions of a stem, AdamW for all else."""

    kind: Literal["muon"] = "muon"
    learning_rate: float = Field(default=0.005, gt=0)
    momentum: float = Field(default=0.95, ge=0, lt=1)
    adamw_learning_rate: float = Field(default=1e-2, gt=0)
    adamw_betas: tuple[Beta, Beta] = (0.9, 0.99)
    weight_decay: float = Field(default=0.0, ge=0)
    adamw_weight_decay: float = Field(default=0.0, ge=0)


Optimizer = Annotated[AdamW | Adam | SGD | Muon, Field(discriminator="kind"), BeforeValidator(as_table)]


class Schedule(Part):
    """What the learning rate does after the warm-up."""

    kind: Literal["cosine", "linear", "constant"] = "cosine"


class Fixed(Part):
    """The same from the first step to the last."""

    kind: Literal["fixed"] = "fixed"


class Rising(Part):
    """From a share at the first step evenly up to all, which is reached after `until` of the steps."""

    kind: Literal["rising"] = "rising"
    start: float = Field(default=0.5, gt=0, lt=1)
    until: float = Field(default=0.6, gt=0, le=1)


Ramp = Annotated[Fixed | Rising, Field(discriminator="kind"), BeforeValidator(as_table)]


GENTLE = 0.75  # of the next block's rate


class Init(Settings):
    """The table `[init]` of a recipe: weights to start from, and how much of them may change."""

    weights: str = Field(
        default="none", description="a file or folder of weights, a run, hf:org/model, ask; none: a new model"
    )
    mode: Literal["full", "gentle", "probe"] = Field(
        default="full",
        description="all learns alike; or each block at 3/4 of the next one's rate; or the head alone",
    )
    freeze: StrictInt = Field(default=0, ge=0, description="the embedding and so many first blocks stay as they are")
    thaw: Share = Field(
        default=0.0, description="share of the steps in which they begin to learn after all, the last first; 0: never"
    )
    views: StrictInt = Field(
        default=0,
        ge=0,
        le=64,
        description="ways in which a picture is augmented, each seen by frozen blocks once; 0: any",
    )

    @property
    def layer_decay(self) -> float:
        """`gentle` is a word for `train.layer_decay`; where both are given, one is taken times the other."""
        return GENTLE if self.mode == "gentle" else 1.0

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.weights == "none" and (self.mode, self.freeze) != ("full", 0):
            raise ValueError("init.mode and init.freeze need init.weights: a new model has nothing to keep.")
        if self.thaw and not self.freeze:
            raise ValueError("init.thaw goes with init.freeze, as in init.mode=gentle init.freeze=6 init.thaw=0.5.")
        if self.views and not (self.freeze or self.mode == "probe"):
            raise ValueError("init.views is for frozen blocks, and none is: set init.freeze or init.mode=probe.")
        if self.mode == "probe" and self.freeze:
            raise ValueError("init.mode probe freezes all blocks: leave init.freeze out.")
        return self


class Teacher(Settings):
    """The table `[teacher]` of a recipe: a model that has learnt already, and how its word counts."""

    source: str = Field(
        default="none", description="none; weights, an .onnx file, mine.py:function, or an .npz of logits"
    )
    kind: Literal["hard", "soft", "map"] = Field(
        default="hard",
        description="its answer is a label; or its probabilities are; or what a CNN sees is what tokens are to hold",
    )
    sees: Literal["batch", "picture"] = Field(
        default="batch", description="what the model sees, at every step; or each picture as it is, once"
    )
    weight: Share = Field(default=0.5, description="of what it says, in the loss")
    temperature: float = Field(default=1.0, gt=0, le=100, description="soft: by which both logits are divided")


class ClassificationSettings(Part):
    """`classification`: the label is to be the most probable class; train.label_smoothing, train.class_weights and the
    table `[teacher]` say how. `double-softmax`: the same, with a softmax before it, as in Pulfer's tutorial."""

    kind: Literal["classification", "double-softmax"] = "classification"

    @model_validator(mode="before")
    @classmethod
    def _is_known(cls, values: Any) -> Any:
        kind = values.get("kind") if isinstance(values, dict) else values
        if isinstance(kind, str) and kind not in ("classification", "double-softmax"):
            raise ValueError(
                f"train.objective is {kind}, and should be classification, double-softmax, or a function or class in a "
                "Python file: mine.py:focal."
            )
        return values


class OwnObjective(Part):
    """An objective in a user's own file: a class, or a function of logits and targets, with settings of its own."""

    model_config = ConfigDict(extra="allow")

    kind: str

    @property
    def settings(self) -> dict[str, Any]:
        """All but `kind`: for the class or function."""
        return dict(self.model_extra or {})


def _objective_tag(value: Any) -> str:
    kind = value.get("kind", "") if isinstance(value, dict) else getattr(value, "kind", "")
    return "own" if is_plugin(str(kind)) else "ours"


ObjectiveSettings = Annotated[
    Annotated[ClassificationSettings, Tag("ours")] | Annotated[OwnObjective, Tag("own")],
    Discriminator(_objective_tag),
    BeforeValidator(as_table),
]


class Train(Settings):
    """The table `[train]` of a recipe."""

    seed: StrictInt = Field(default=0, ge=0, le=2**63 - 1, description="the one number behind all that is random")
    baseline: StrictBool = Field(default=False, description="first see how far simple methods come, to compare with")
    epochs: StrictInt = Field(default=10, ge=1, description="times through the training pictures")
    budget: Annotated[str, BeforeValidator(_require_unit)] = Field(
        default="none", description="instead: a time such as 90s, 10m or 2h, all included, or a number such as 500steps"
    )
    batch_size: StrictInt = Field(default=64, ge=1, description="pictures a step")
    accumulate: StrictInt = Field(
        default=1, ge=1, description="parts that a batch is worked through in, to save memory"
    )
    optimizer: Optimizer = Field(
        default=AdamW(), description="adamw, adam, sgd, or muon for the blocks' matrices and adamw for the rest"
    )
    layer_decay: float = Field(
        default=1.0, gt=0, le=1, description="each block learns at this share of the next one's rate"
    )
    clip: float = Field(default=0.0, ge=0, description="gradients are shortened to this norm; 0: they are not")
    warmup: float = Field(default=0.05, ge=0, le=1, description="share of the steps in which the learning rate rises")
    schedule: Schedule = Field(default=Schedule(), description="and then: cosine or linear towards 0, or constant")
    objective: ObjectiveSettings = Field(
        default=ClassificationSettings(),
        exclude_if=lambda objective: objective == ClassificationSettings(),  # it came after format 1
        description="what is learnt by: classification, or one's own: mine.py:focal",
    )
    restarts: tuple[Annotated[StrictInt, Field(ge=1)], ...] = Field(
        default=(),
        exclude_if=lambda restarts: restarts == (),  # it came after format 1
        description="steps after which warm-up and schedule begin anew, as where a finished run was trained longer",
    )
    label_smoothing: float = Field(default=0.0, ge=0, lt=1, description="share of the target spread over all classes")
    class_weights: Literal["none", "balanced"] = Field(
        default="none", description="balanced: a class weighs more in the loss the fewer pictures it has"
    )
    patches: Ramp = Field(default=Fixed(), description="rising: at first only a share of the patches is looked at")
    image_size: Ramp = Field(default=Fixed(), description="rising: at first pictures are smaller")
    ema: float = Field(
        default=0.0, ge=0, lt=1, description="decay of the average of weights that is the result; 0: the last"
    )
    choose: Literal["last", "accuracy", "loss"] = Field(
        default="last", description="the result: the last weights, or those of the epoch that was best in validation"
    )
    patience: StrictInt = Field(
        default=0, ge=0, description="stop after this many epochs without a better validation loss; 0: never"
    )
    test_curve: StrictBool = Field(
        default=False,
        exclude_if=lambda test_curve: not test_curve,  # it came after format 1
        description="measure the test pictures after every epoch, too: a curve to look at, which chooses nothing",
    )
    not_finite: Literal["stop", "skip"] = Field(
        default="stop", description="what to do when the loss is no number: stop, or leave that step out"
    )
    device: Literal["auto", "cpu", "cuda", "mps"] = Field(default="auto", description="auto: the best that is there")
    precision: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto",
        description="of products in training; auto: bfloat16 where that saves minutes, by measuring",
    )
    compile: Literal["auto", "yes", "no"] = Field(
        default="auto", description="torch.compile; auto: where a long training is faster with it, by measuring"
    )
    regularise: Regularise = Regularise()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if list(self.restarts) != sorted(set(self.restarts)):
            raise ValueError(f"train.restarts is {list(self.restarts)}: each should come after the one before.")
        return self


def parse_budget(text: str) -> tuple[float, int]:
    """A budget as (seconds, steps): one of them is 0, both where it is none.

    >>> parse_budget("10m"), parse_budget("500steps")
    ((600.0, 0), (0.0, 500))
    """
    parts = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|h|steps?)", text.strip())
    amount = float(parts[1]) if parts else 0.0
    if text == "none":
        return 0.0, 0
    if not parts or amount <= 0 or (parts[2].startswith("step") and amount != int(amount)):
        raise ValueError(f"train.budget is {text}, and should be none, or such as 90s, 10m, 2h or 500steps.")
    unit = {"s": 1, "m": 60, "h": 3600}.get(parts[2], 0)
    return amount * unit, 0 if unit else int(amount)
