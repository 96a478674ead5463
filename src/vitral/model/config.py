"""What a model is: every part's words and settings, validated. Imports no torch.

`ViTConfig()` is the paper's ViT-B/16. Config and weights together are the model, so they are stored together.
"""

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import ConfigDict, Field, StrictBool, StrictInt, model_serializer, model_validator

from vitral.errors import RecipeError
from vitral.plugin import is_plugin
from vitral.settings import Part, Settings, unknown

if TYPE_CHECKING:
    from vitral.model.interface import Model

ImageSize = StrictInt | tuple[StrictInt, StrictInt]  # pixels per side, or (height, width)

# What `model.kind` can be, and where its class is: loaded on first use, since each brings torch. Configs: kinds.py.
KINDS = {
    "vit": "vitral.model.vit:ViT",
    "mu": "vitral.model.tutorials:MuViT",
    "owen": "vitral.model.tutorials:OwenViT",
    "pulfer": "vitral.model.tutorials:PulferViT",
    "bourke": "vitral.model.tutorials:BourkeViT",
    "resnet": "vitral.model.resnet:ResNet",
    "swin": "vitral.model.swin:Swin",
}


class ModelConfig(Settings):
    """What the config of every model has. A user's own declares `image_size`, `channels` and `classes` as ViTConfig
    does, and whatever else it needs."""

    kind: str
    if TYPE_CHECKING:  # declared below, each in its place of the stored file
        image_size: ImageSize
        channels: int
        classes: int

    # Where the model is in a user's own file: its class, and the sha256 of the file.
    built_by: ClassVar["type[Model] | None"] = None
    code_sha256: ClassVar[str] = ""

    @property
    def height_width(self) -> tuple[int, int]:
        """The image size as (height, width)."""
        return (self.image_size, self.image_size) if isinstance(self.image_size, int) else self.image_size

    @property
    def stride(self) -> int:
        """Both sides of an image are whole multiples of this: the patch size, if there are patches."""
        return 1

    @property
    def cell(self) -> int:
        """How many pixels a side stand behind one place of the grid; at the right and lower border fewer, where
        `stride` allows that."""
        return self.stride

    @property
    def block_count(self) -> int | None:
        """How many blocks can be frozen; None: only the built model knows."""
        return None

    @property
    def has_classes(self) -> bool:
        """Whether there is a head that gives a logit per class."""
        return True

    @property
    def pools_patches(self) -> bool:
        """Whether the head sees the mean of the patches, and not a token of its own."""
        return True

    @property
    def resampling(self) -> str:
        """How what belongs to places is brought to another image size, in a word."""
        return ""

    @property
    def words(self) -> str:
        """What the model is, for a report."""
        return self.kind

    def with_classes(self, classes: int) -> Self:
        """The same model with a head for other classes."""
        return type(self).read({**self.write(), "classes": classes}, "model.")

    def check_batch(self, pictures: int, scale: float) -> None:
        """Refuse a batch that the model cannot learn from: so many pictures, their sides times `scale`."""
        return


class UnresolvedConfig(ModelConfig):
    """The config of a model in a user's own file, which has not been run: its settings as they were written."""

    model_config = ConfigDict(extra="allow")

    image_size: ImageSize = 224
    channels: StrictInt = 3
    classes: StrictInt = 1000

    @model_serializer(mode="wrap")
    def _only_fields_set(self, default: Any) -> Any:
        """Only the settings that were set: the defaults of the others are in the file."""
        return {name: value for name, value in default(self).items() if name in self.model_fields_set}


# How a table of positions is brought to another grid; the libraries differ (see docs/names.md).
Resample = Literal["antialiased", "bicubic", "dino", "corners"]


class Tokens(Part):
    """The tokens beside the patches. `class`: one that is read out; `distilled`: and one taught by another model
    (DeiT); `tasks`: one for each of several tasks, that gives its `outputs`; `none`. Registers hold what no patch has
    room for."""

    kind: Literal["class", "distilled", "tasks", "none"] = "class"
    outputs: tuple[Annotated[StrictInt, Field(ge=1)], ...] = Field(
        default=(),
        exclude_if=lambda outputs: not outputs,  # it came after format 1
        description="of tasks: how many each has; [] in a recipe: as the data has",
    )
    registers: StrictInt = Field(default=0, ge=0, le=1024)

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.outputs and self.kind != "tasks":
            raise ValueError(f"model.tokens {self.kind} has one head for all: outputs does not go with it.")
        return self


class Positions(Part):
    """Where each token stands. `learned`: a row per token; `learned-2d`: half a row per row and column of the grid;
    `relative`: a learned key for each distance, in every block; `sincos-1d`, `sincos-2d`: fixed waves; `rotary`:
    queries and keys of patches are turned by their place, in every block (DINOv3); `none`."""

    kind: Literal["learned", "learned-2d", "relative", "sincos-1d", "sincos-2d", "rotary", "none"] = "learned"
    class_token: StrictBool = Field(default=True, description="whether the class and distillation token have a place")
    resample: Resample = Field(default="antialiased", description="how a learned table is brought to another grid")
    std: float = Field(default=0.02, ge=0, description="spread of the numbers that a learned table starts with")
    base: float = Field(
        default=100.0,
        gt=1,
        exclude_if=lambda base: base == 100.0,  # it came after format 1
        description="rotary: the slowest wave is nearly this many times as long as the quickest",
    )

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if not self.kind.startswith("learned") and (self.resample, self.std) != ("antialiased", 0.02):
            raise ValueError(f"model.positions {self.kind} has no table to learn: resample and std do not go with it.")
        if self.kind != "rotary" and self.base != 100.0:
            raise ValueError(f"model.positions {self.kind} turns nothing: base goes with rotary alone.")
        if not self.class_token and self.kind in ("relative", "sincos-2d", "rotary", "none"):
            raise ValueError(
                f"model.positions {self.kind} gives the class token no place anyway: leave class_token out."
            )
        return self


Depths = tuple[Annotated[StrictInt, Field(ge=1, le=1_000)], ...]
Widths = tuple[Annotated[StrictInt, Field(ge=1, le=65_536)], ...]


def resnet_widths(depths: Depths, widths: Widths) -> Widths:
    """The channels of a ResNet after its stem and after each stage: those that are given, else those of ResNet-50."""
    return widths or (64, *(256 * 2**stage for stage in range(len(depths))))


def check_resnet(where: str, depths: Depths, widths: Widths, groups: int) -> None:
    """Refuse sizes that no ResNet has."""
    if widths and len(widths) != len(depths) + 1:
        raise ValueError(
            f"{where}.widths has {len(widths)} numbers, and {where}.depths {len(depths)}: it should have one for the "
            f"stem and one for each stage, {len(depths) + 1}."
        )
    stem, *stages = resnet_widths(depths, widths)
    for width, inner in ((stem, stem), *((width, width // 4) for width in stages)):
        if inner % groups or not inner:  # inside a block there are a quarter as many channels
            inside = f" Inside a block there are a quarter as many channels, {inner}." if inner != width else ""
            raise ValueError(f"{where}.groups {groups} does not divide the channels of {where}.widths {width}.{inside}")
        if width % 4:
            raise ValueError(f"{where}.widths {width} is no multiple of 4, and a block has a quarter of it inside.")


class Stem(Part):
    """How a patch becomes a token. `linear`: one matrix; `conv`: 3×3 convolutions of stride 2, then one matrix;
    `whitened`: a first layer measured on the training pictures, then 3×3 convolutions with pools; `resnet`: a ResNet,
    then one matrix (the paper's hybrid)."""

    kind: Literal["linear", "conv", "whitened", "resnet"] = "linear"
    bias: StrictBool = Field(default=True, description="of the matrix")
    norm: StrictBool = Field(
        default=False,
        exclude_if=lambda norm: not norm,  # it came after format 1, as `depths`, `widths` and `groups` did
        description="linear: a norm of what the matrix gives (AIMv2)",
    )
    channels: StrictInt = Field(default=48, ge=1, le=4096, description="of the convolutions")
    depths: Depths = Field(
        default=(3, 4, 9),
        exclude_if=lambda depths: depths == (3, 4, 9),
        description="resnet: how many blocks each stage has; the first of stride 4, each after it halves",
    )
    widths: Widths = Field(
        default=(),
        exclude_if=lambda widths: not widths,
        description="resnet: channels after the first layer and after each stage; []: 64, 256, 512, 1024, 2048",
    )
    groups: StrictInt = Field(
        default=32, ge=1, exclude_if=lambda groups: groups == 32, description="resnet: of channels in its GroupNorms"
    )

    @property
    def stride(self) -> int:
        """resnet: how many pixels a side one place of its map stands for."""
        return 4 * 2 ** max(0, len(self.depths) - 1)

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.kind in ("linear", "resnet") and self.channels != 48:
            hint = ": its widths are model.stem.widths" if self.kind == "resnet" else " has no convolutions"
            raise ValueError(f"model.stem {self.kind}{hint}, and channels does not go with it.")
        if self.kind == "resnet":
            check_resnet("model.stem", self.depths, self.widths, self.groups)
        elif (self.depths, self.widths, self.groups) != ((3, 4, 9), (), 32):
            raise ValueError(f"model.stem {self.kind} is no ResNet: depths, widths and groups do not go with it.")
        if self.kind == "whitened" and not self.bias:
            raise ValueError("model.stem whitened has no matrix: bias does not go with it.")
        if self.norm and self.kind != "linear":
            raise ValueError(f"model.stem {self.kind} has no norm of its own: norm goes with linear alone.")
        return self


class Attend(Part):
    """How tokens look at each other. `softmax` is the paper's."""

    kind: Literal["softmax"] = "softmax"
    bias: StrictBool | Literal["query-value"] = Field(
        default=True, description="of queries, keys and values; query-value: keys have none (DINOv3)"
    )
    qk_norm: StrictBool = Field(default=False, description="LayerNorm on the queries and keys of each head")


class Mlp(Part):
    """What each block does to a token by itself: two layers with a GELU between (`gelu` by erf, `gelu-tanh`,
    `gelu-quick` by a sigmoid), or `swiglu`, where one half of the first layer gates the other."""

    kind: Literal["gelu", "gelu-tanh", "gelu-quick", "swiglu"] = "gelu"
    ratio: float = Field(default=4.0, gt=0, le=64, description="hidden size over width, rounded to a whole number")


class Blocks(Part):
    """What all blocks share. `pre-norm` is the paper's: the norm stands before attention and MLP."""

    kind: Literal["pre-norm"] = "pre-norm"
    norm: Literal["layer", "rms"] = Field(
        default="layer",
        exclude_if=lambda norm: norm == "layer",  # it came after format 1
        description="every norm: LayerNorm, or RMSNorm, which subtracts no mean and has no bias",
    )
    norm_eps: float = Field(default=1e-6, gt=0, lt=1, description="added to the variance in every norm")
    bias: StrictBool = Field(
        default=True,
        exclude_if=lambda bias: bias,  # it came after format 1
        description="of the matrix after the heads, and of the MLP",
    )
    first_norm: StrictBool = Field(default=False, description="a norm before the first block, as in CLIP")
    layer_scale: float = Field(default=0.0, ge=0, description="what LayerScale starts with; 0: none")
    init_std: float = Field(default=0.0, ge=0, description="matrices start as N(0, std²); 0: Xavier, as in the paper")
    start: Literal["paper", "torch"] = Field(
        default="paper",
        exclude_if=lambda start: start == "paper",  # it came after format 1
        description="torch: all layers of the model start with PyTorch's own values",
    )

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.start == "torch" and self.init_std:
            raise ValueError("model.blocks.start torch has PyTorch's own matrices: leave init_std out.")
        return self


class Pool(Part):
    """What the head sees: the class token, the mean of the patches, or both side by side; `map`: what a learned query
    takes from the patches by attention, and an MLP makes of it (SigLIP)."""

    kind: Literal["class", "mean", "class-mean", "map"] = "class"
    norm: Literal["before", "after", "none"] = Field(default="before", description="the last norm: before or after")
    all_tokens: StrictBool = Field(
        default=False,
        exclude_if=lambda all_tokens: not all_tokens,  # it came after format 1
        description="mean, map: of class token and registers too",
    )

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.all_tokens and self.kind not in ("mean", "map"):
            raise ValueError(f"model.pool {self.kind} sees what it sees: all_tokens goes with mean and map.")
        return self


class Head(Part):
    """`linear`: a logit per class; `mlp`: a hidden layer with tanh before it (the paper's pre-training); `hidden`: that
    layer and no classes (what transformers calls a pooler); `none`."""

    kind: Literal["linear", "mlp", "hidden", "none"] = "linear"
    size: StrictInt = Field(default=0, ge=0, le=65_536, description="of the hidden layer; 0: as what it sees")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.size and self.kind in ("linear", "none"):
            raise ValueError(f"model.head {self.kind} has no hidden layer: size does not go with it.")
        return self


class ViTConfig(ModelConfig):
    """A Vision Transformer in one frozen object.

    >>> ViTConfig(image_size=32, patch_size=4).grid
    (8, 8)
    """

    kind: Literal["vit"] = Field(
        default="vit", description="the architecture: vit, a tutorial's (mu, …), or mine.py:Mixer"
    )
    image_size: ImageSize = Field(default=224, description="pixels a side, or [height, width]")
    patch_size: StrictInt = Field(default=16, ge=1, description="P: pixels a side of a patch; divides image_size")
    channels: StrictInt = Field(
        default=3, ge=0, le=1024, description="C: 1 grey, 3 colour; 0 in a recipe: as the data has"
    )
    width: StrictInt = Field(default=768, ge=1, le=65_536, description="D: the size of a token")
    depth: StrictInt = Field(default=12, ge=1, le=1_000, description="L: the number of blocks")
    heads: StrictInt = Field(default=12, ge=1, description="heads of attention; divides width")
    classes: StrictInt = Field(
        default=1000, ge=0, le=10_000_000, description="how many; 0 in a recipe: as the data has"
    )
    tokens: Tokens = Field(default=Tokens(), description="class, distilled, tasks (one each) or none; registers = 0")
    positions: Positions = Field(
        default=Positions(), description="learned, learned-2d, relative, sincos-1d, sincos-2d, rotary or none"
    )
    stem: Stem = Field(default=Stem(), description="linear, conv, whitened or resnet (a hybrid)")
    attention: Attend = Field(default=Attend(), description="softmax; bias = true, qk_norm = false")
    mlp: Mlp = Field(default=Mlp(), description="gelu, gelu-tanh, gelu-quick or swiglu; ratio = 4.0")
    blocks: Blocks = Field(
        default=Blocks(), description="pre-norm; norm, norm_eps, bias, first_norm, layer_scale, init_std, start"
    )
    pool: Pool = Field(default=Pool(), description="class, mean, class-mean or map; norm = before, after or none")
    head: Head = Field(default=Head(), description="linear, mlp, hidden or none")

    @model_validator(mode="before")
    @classmethod
    def _is_known(cls, values: Any) -> Any:
        kind = values.get("kind", "vit") if isinstance(values, dict) else "vit"
        if kind not in KINDS and not is_plugin(str(kind)):
            known = ", ".join(KINDS)
            raise ValueError(
                f"model.kind is {kind}, and should be {known}, or a class in a Python file: mine.py:Mixer."
            )
        return values

    @classmethod
    def named(cls, name: str, image_size: int | tuple[int, int] = 224, channels: int = 3, classes: int = 1000) -> Self:
        """A size of the paper's table 1 (and the two smaller ones that came later), or of DINOv3, with any patch; after
        `R50+` a hybrid of its table 3.

        >>> ViTConfig.named("B/16") == ViTConfig()
        True
        >>> ViTConfig.named("R50+B/16").stem.depths
        (3, 4, 9)
        >>> ViTConfig.named("dinov3-S+/16").positions.kind
        'rotary'
        """
        size, _, patch = name.partition("/")
        backbone, plus, size = size.rpartition("+") if size.startswith("R") else ("", "", size)
        if size not in SIZES or not patch.isdecimal() or (backbone + plus and (backbone, patch) not in BACKBONES):
            raise RecipeError(unknown(name, [*VIT_NAMES, *HYBRIDS], "size"))
        width, depth, heads = SIZES[size]
        return cls(
            image_size=image_size,
            patch_size=int(patch),
            channels=channels,
            width=width,
            depth=depth,
            heads=heads,
            classes=classes,
            **(DINOV3_PARTS if size.startswith("dinov3-") else {}),
            stem=Stem(kind="resnet", depths=BACKBONES[backbone, patch]) if backbone else Stem(),
            mlp=Mlp(kind="swiglu") if size.endswith("+") else Mlp(),
        )

    @property
    def stride(self) -> int:
        pads = self.stem.kind == "resnet" and self.stem.stride == self.patch_size  # what its strides do not divide
        return 1 if pads else self.patch_size

    @property
    def cell(self) -> int:
        return self.patch_size

    @property
    def block_count(self) -> int:
        return self.depth

    @property
    def has_classes(self) -> bool:
        return self.head.kind in ("linear", "mlp")

    @property
    def pools_patches(self) -> bool:
        return self.pool.kind != "class"

    @property
    def resampling(self) -> str:
        return "" if self.positions.kind == "rotary" else self.positions.resample

    @property
    def words(self) -> str:
        blocks = "1 block" if self.depth == 1 else f"{self.depth} blocks"
        return f"Vision Transformer, {blocks} of width {self.width}, {self.heads} heads"

    def with_classes(self, classes: int) -> Self:
        if self.tokens.kind == "tasks":
            raise RecipeError("The model has a token for each of its tasks, so it cannot learn others.")
        return type(self).read({**self.write(), "classes": classes, "head": "linear"}, "model.")

    def check_batch(self, pictures: int, scale: float) -> None:
        down, across = (max(1, round(side * scale)) for side in self.grid)
        if self.stem.kind == "whitened" and pictures * down * across < 2:  # BatchNorm cannot compare one with itself
            raise RecipeError("model.stem whitened needs more than one patch in a batch: raise train.batch_size.")

    @property
    def grid(self) -> tuple[int, int]:
        """How many patches: (down, across)."""
        height, width = self.height_width
        return -(-height // self.patch_size), -(-width // self.patch_size)

    @property
    def mlp_size(self) -> int:
        """The hidden size of the MLP."""
        return round(self.width * self.mlp.ratio)

    @property
    def read_out(self) -> int:
        """How many tokens are there to be read out: the class token, and the distillation token; or one per task."""
        return {"class": 1, "distilled": 2, "tasks": len(self.tokens.outputs), "none": 0}[self.tokens.kind]

    @property
    def tokens_seen(self) -> int | None:
        """How many of the first tokens the classifiers look at; None: at all."""
        return self.read_out if self.pool.kind == "class" else None

    @property
    def extra_tokens(self) -> dict[str, int]:
        """The tokens before the patches: the name of their parameter, and how many they are."""
        distilled = int(self.tokens.kind == "distilled")
        tokens = {
            "cls_token": self.read_out - distilled,
            "dist_token": distilled,
            "reg_token": self.tokens.registers,
        }
        return {name: count for name, count in tokens.items() if count}

    @property
    def extra(self) -> int:
        """How many tokens stand before the patches."""
        return sum(self.extra_tokens.values())

    @property
    def pooled_from(self) -> int:
        """The first token that is pooled, where several are."""
        return 0 if self.pool.all_tokens else self.extra

    @property
    def classifiers(self) -> tuple[str, ...]:
        """The names of the heads: a distillation token has one of its own."""
        return ("head", "head_dist") if self.tokens.kind == "distilled" else ("head",)

    @model_validator(mode="after")
    def _possible(self) -> Self:
        for side in self.height_width:
            if not 1 <= side <= 65_536:
                raise ValueError(f"model.image_size {side} is not between 1 and 65,536 pixels.")
            if side % self.stride:
                below = side // self.patch_size * self.patch_size
                near = " or ".join(str(size) for size in (below, below + self.patch_size) if size)
                raise ValueError(
                    f"model.patch_size {self.patch_size} does not divide model.image_size {side}. "
                    f"{_divisors(side)} do. Set model.patch_size=… or choose another model.image_size, such as {near}."
                )
        if self.mlp_size < 1:
            raise ValueError(f"model.mlp.ratio {self.mlp.ratio} of model.width {self.width} leaves nothing.")
        if self.width % self.heads:
            raise ValueError(
                f"model.heads {self.heads} does not divide model.width {self.width}. "
                f"{_divisors(self.width)} do. Set model.heads=… or choose another model.width."
            )
        self._parts_fit()
        return self

    def _parts_fit(self) -> None:
        tokens, pool, positions = self.tokens.kind, self.pool.kind, self.positions.kind
        if pool not in ("mean", "map") and tokens == "none":
            raise ValueError(f"model.pool {pool} needs a class token: set model.pool=mean, or model.tokens=class.")
        if tokens == "distilled" and pool != "class":
            raise ValueError("model.tokens distilled reads out both its tokens: set model.pool=class.")
        if tokens == "tasks" and (pool != "class" or self.pool.norm == "after" or self.head.kind != "linear"):
            raise ValueError(
                "model.tokens tasks gives each task a linear head on its own token: set model.pool=class and "
                "model.head=linear."
            )
        if tokens == "tasks" and self.classes and not self.tokens.outputs:
            raise ValueError(
                "model.tokens tasks does not say how many outputs each task has: set model.tokens.outputs, or "
                "model.classes=0 to take what the data has."
            )
        if self.tokens.outputs and self.classes not in (0, sum(self.tokens.outputs)):
            outputs = " + ".join(map(str, self.tokens.outputs))
            raise ValueError(f"model.tokens has the outputs {outputs}, and model.classes is {self.classes}.")
        multiple = {"learned-2d": 2, "sincos-1d": 2, "sincos-2d": 4}.get(positions, 1)
        if self.width % multiple:
            raise ValueError(f"model.positions {positions} needs a model.width that {multiple} divides.")
        if positions == "rotary" and self.width // self.heads % 4:
            raise ValueError(
                f"model.positions rotary turns each head by rows and by columns: width / heads is "
                f"{self.width // self.heads}, and should be a multiple of 4."
            )
        if self.stem.kind == "resnet" and self.patch_size % self.stem.stride:
            stages = len(self.stem.depths)
            raise ValueError(
                f"model.stem resnet with {stages} stages makes one place of {self.stem.stride} pixels a side: set "
                f"model.patch_size={self.stem.stride}, or a multiple of it, not {self.patch_size}."
            )
        if self.stem.kind in ("conv", "whitened") and (self.patch_size & (self.patch_size - 1) or self.patch_size == 1):
            raise ValueError(
                f"model.stem {self.stem.kind} needs a model.patch_size that is a power of 2, not {self.patch_size}."
            )
        if self.head.kind in ("hidden", "none") and self.classes:
            raise ValueError(f"model.head {self.head.kind} has no classes: set model.classes=0.")


# name: width, depth, heads. B, L and H are the paper's table 1; Ti and S are DeiT's. Those with + have a gated MLP.
SIZES = {
    "Ti": (192, 12, 3),
    "S": (384, 12, 6),
    "B": (768, 12, 12),
    "L": (1024, 24, 16),
    "H": (1280, 32, 16),
    "dinov3-S": (384, 12, 6),
    "dinov3-S+": (384, 12, 6),
    "dinov3-B": (768, 12, 12),
    "dinov3-L": (1024, 24, 16),
    "dinov3-H+": (1280, 32, 20),
}
VIT_NAMES = tuple(f"{size}/{patch}" for size in SIZES for patch in (16, 14, 32))
# Before a `+`, and the patch: the stages of the ResNet. For patches of 16 R50 has no fourth stage, and a longer third.
BACKBONES = {("R50", "16"): (3, 4, 9), ("R50", "32"): (3, 4, 6, 3), ("R26", "32"): (2, 2, 2, 2)}
HYBRIDS = ("R50+B/16", "R50+B/32", "R50+L/16", "R50+L/32")  # of table 3
DINOV3_PARTS: dict[str, Any] = {
    "tokens": Tokens(registers=4),
    "positions": Positions(kind="rotary"),
    "attention": Attend(bias="query-value"),
    "blocks": Blocks(norm_eps=1e-5, layer_scale=1e-5),
}


class Regularise(Settings):
    """What is left out at random while training: not what a model is, so not stored with it."""

    dropout: float = Field(default=0.0, ge=0, lt=1, description="of numbers after the embedding, attention and MLP")
    attention_dropout: float = Field(default=0.0, ge=0, lt=1, description="of what a token attends to")
    stochastic_depth: float = Field(
        default=0.0, ge=0, lt=1, description="of whole branches: 0 in the first block, up to this in the last"
    )


def _divisors(number: int) -> str:
    divisors = [str(n) for n in range(1, number + 1) if number % n == 0]
    return ", ".join(divisors if len(divisors) <= 12 else [*divisors[:6], "…", *divisors[-5:]])
