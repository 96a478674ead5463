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

# What comes after the weights takes at most this share of the training, or so many seconds; the rest is for `evaluate`.
AFTER, LEAST_AFTER = 0.1, 15.0


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
    mode: Literal["full", "gentle", "lora", "probe"] = Field(
        default="full",
        description="all learns alike; or each block at 3/4 of the next one's rate; or the head, and thin matrices "
        "beside those of the blocks, which become part of them in the end; or the head alone",
    )
    rank: StrictInt = Field(
        default=8,
        ge=1,
        exclude_if=lambda rank: rank == 8,  # it came after format 1
        description="lora: how thin the matrices are: rows of the one, columns of the other",
    )
    alpha: float = Field(
        default=8.0,
        gt=0,
        exclude_if=lambda alpha: alpha == 8.0,  # it came after format 1
        description="lora: the product of the two counts alpha / rank times",
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
        if self.mode == "lora" and self.thaw:
            raise ValueError("init.mode lora leaves the weights that it began with as they are: leave init.thaw out.")
        if self.mode != "lora" and (self.rank, self.alpha) != (8, 8.0):
            raise ValueError(f"init.rank and init.alpha go with init.mode lora, and it is {self.mode}.")
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
    table `[teacher]` say how. Where the pictures have several labels, a number or several tasks, it means the loss that
    these need. `double-softmax`: a class, with a softmax before it, as in Pulfer's tutorial."""

    kind: Literal["classification", "double-softmax"] = "classification"

    @model_validator(mode="before")
    @classmethod
    def _is_known(cls, values: Any) -> Any:
        kind = values.get("kind") if isinstance(values, dict) else values
        if isinstance(kind, str) and kind not in ("classification", "double-softmax"):
            raise ValueError(
                f"train.objective is {kind}, and should be classification, double-softmax, mae, lejepa, dino, or a "
                "function or class in a Python file: mine.py:focal."
            )
        return values


class MAESettings(Part):
    """`mae`: most patches are hidden, and from the others a light decoder says what their pixels are (He et al. 2022).
    It needs no labels."""

    kind: Literal["mae"] = "mae"
    mask_ratio: float = Field(default=0.75, description="share of the patches that are hidden")
    normalise: StrictBool = Field(
        default=True, description="the pixels to be said are those of a patch with mean 0 and variance 1"
    )
    decoder_width: StrictInt = Field(default=64, ge=1, le=65_536, description="a multiple of 4")
    decoder_depth: StrictInt = Field(default=2, ge=1, le=1_000)
    decoder_heads: StrictInt = Field(default=4, ge=1, description="divides decoder_width")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not 0 < self.mask_ratio < 1:
            reason = "with none hidden there is nothing to say" if self.mask_ratio <= 0 else "some must be seen"
            raise ValueError(
                f"train.objective.mask_ratio is {self.mask_ratio:g}, and should be between 0 and 1: {reason}. The "
                "paper has 0.75."
            )
        if self.decoder_width % 4 or self.decoder_width % self.decoder_heads:
            raise ValueError(
                f"train.objective.decoder_width is {self.decoder_width}, and should be a multiple of 4 and of "
                f"decoder_heads, {self.decoder_heads}."
            )
        return self


class LeJEPASettings(Part):
    """`lejepa`: several views of a picture are to look alike, and the pictures to be spread like a normal distribution
    in all directions (Balestriero and LeCun 2025). It needs no labels."""

    kind: Literal["lejepa"] = "lejepa"
    balance: Share = Field(default=0.05, description="λ: what the distribution counts for; the rest is for the views")
    directions: StrictInt = Field(default=256, ge=1, le=65_536, description="in which the distribution is looked at")
    projector: tuple[Annotated[StrictInt, Field(ge=1, le=65_536)], ...] = Field(
        default=(256, 256, 32), min_length=1, description="sizes of the layers after the model; the last is compared"
    )


class DINOSettings(Part):
    """`dino`: the model is to say of each view what its own moving average says of the two large ones (Caron et al.
    2021). It needs no labels."""

    kind: Literal["dino"] = "dino"
    prototypes: StrictInt = Field(default=1024, ge=2, le=1_000_000, description="K: kinds that pictures are said to be")
    hidden: StrictInt = Field(default=256, ge=1, le=65_536, description="size of the layers of the head")
    bottleneck: StrictInt = Field(default=64, ge=1, le=65_536, description="and of its last one before the prototypes")
    momentum: float = Field(default=0.996, ge=0, le=1, description="of the teacher at first; it rises to 1")
    student_temperature: float = Field(default=0.1, gt=0)
    teacher_temperature: float = Field(default=0.04, gt=0, description="lower is sharper")
    centre_momentum: float = Field(default=0.9, ge=0, le=1, description="1: no centring")


class OwnObjective(Part):
    """An objective in a user's own file: a class, or a function of logits and targets, with settings of its own."""

    model_config = ConfigDict(extra="allow")

    kind: str

    @property
    def settings(self) -> dict[str, Any]:
        """All but `kind`: for the class or function."""
        return dict(self.model_extra or {})


def _objective_tag(value: Any) -> str:
    kind = str(value.get("kind", "") if isinstance(value, dict) else getattr(value, "kind", ""))
    return "own" if is_plugin(kind) else kind if kind in WITHOUT_LABELS else "ours"


WITHOUT_LABELS = ("mae", "lejepa", "dino")  # objectives of ours that need none

ObjectiveSettings = Annotated[
    Annotated[ClassificationSettings, Tag("ours")]
    | Annotated[OwnObjective, Tag("own")]
    | Annotated[MAESettings, Tag("mae")]
    | Annotated[LeJEPASettings, Tag("lejepa")]
    | Annotated[DINOSettings, Tag("dino")],
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
    budget_covers: Literal["weights", "report"] = Field(
        default="weights",
        exclude_if=lambda covers: covers == "weights",  # it came after format 1
        description="a budget of time ends with the weights; report: measuring and drawing are in it, too",
    )
    batch_size: StrictInt = Field(default=64, ge=1, description="pictures a step")
    accumulate: StrictInt = Field(
        default=1, ge=1, description="parts that a batch is worked through in, to save memory"
    )
    recompute: StrictBool = Field(
        default=False,
        exclude_if=lambda recompute: not recompute,  # it came after format 1
        description="on the way back blocks are computed anew, and not kept: much less memory, some more time",
    )
    parallel: Literal["auto", "replicate", "shard"] = Field(
        default="auto",
        exclude_if=lambda parallel: parallel == "auto",  # it came after format 1
        description="of several processes each has the whole model, or a share of it; auto: a share where the whole "
        "would not fit",
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
        description="what is learnt by: classification; mae, lejepa or dino without labels; one's own: mine.py:focal",
    )
    restarts: tuple[Annotated[StrictInt, Field(ge=1)], ...] = Field(
        default=(),
        exclude_if=lambda restarts: restarts == (),  # it came after format 1
        description="steps after which warm-up and schedule begin anew, as where a finished run was trained longer",
    )
    label_smoothing: float = Field(default=0.0, ge=0, lt=1, description="share of the target spread over all classes")
    class_weights: Literal["none", "balanced"] = Field(
        default="none", description="balanced: a class or label weighs more in the loss the fewer pictures it has"
    )
    task_weights: tuple[Annotated[float, Field(ge=0)], ...] = Field(
        default=(),
        exclude_if=lambda weights: not weights,  # it came after format 1
        description="of several tasks, in the order of data.target: what the loss of each is multiplied by; []: 1",
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
        if parse_budget(self.budget)[0] and self.seconds <= 0:
            raise ValueError(
                f"train.budget is {self.budget}, and with train.budget_covers=report {LEAST_AFTER:.0f} s of it are for "
                f"measuring and drawing: nothing is left. Set train.budget={2 * LEAST_AFTER:.0f}s or more."
            )
        return self

    @property
    def seconds(self) -> float:
        """The time that a budget leaves for the training, up to the weights; 0: there is none.

        >>> Train(budget="10m").seconds, Train(budget="10m", budget_covers="report").seconds
        (600.0, 545.4545454545454)
        """
        seconds = parse_budget(self.budget)[0]
        return (
            min(seconds - LEAST_AFTER, seconds / (1 + AFTER)) if seconds and self.budget_covers == "report" else seconds
        )

    @staticmethod
    def seconds_after(seconds: float) -> float:
        """How long measuring and drawing may take after a training of so many seconds."""
        return max(LEAST_AFTER, AFTER * seconds)


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
