"""What `model.kind` can be: the tutorials' configs, and the union of all. Imports no torch.

The models themselves are in tutorials.py. By default they have the sizes of ViT-B/16; the recipes that are named after
their authors have the sizes of the tutorials.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, InstanceOf, SerializeAsAny, Tag, model_validator

from vitral.model.config import (
    BACKBONES,
    HYBRIDS,
    KINDS,
    SIZES,
    VIT_NAMES,
    Blocks,
    Mlp,
    ModelConfig,
    Pool,
    Positions,
    UnresolvedConfig,
    ViTConfig,
)
from vitral.model.resnet_config import RESNETS, ResNetConfig
from vitral.model.swin_config import SWINS, SwinConfig
from vitral.plugin import is_plugin
from vitral.settings import Part

TORCH = Blocks(norm_eps=1e-5)  # what PyTorch's LayerNorm adds by default


def _default(name: str, value: Any) -> Any:
    """A setting of `ViTConfig`, with another default."""
    return Field(default=value, description=ViTConfig.model_fields[name].description)


class TutorialConfig(ViTConfig):
    """What the tutorials' models share: sizes can be set as in any ViT, and parts are the tutorial's."""

    @model_validator(mode="after")
    def _has_its_own_parts(self) -> Self:
        for name, field in type(self).model_fields.items():
            part, own = getattr(self, name), field.default
            if name == "mlp":  # how wide its hidden layer is, is a size
                part = part.model_copy(update={"ratio": own.ratio})
            if isinstance(own, Part) and part != own:
                raise ValueError(
                    f"model.kind {self.kind} is its tutorial's model, which has one model.{name}. "
                    "docs/tutorials.md names the recipe of a plain ViT with the same settings, where it can be changed."
                )
        return self


class MuConfig(TutorialConfig):
    """Vicki Mu, *From Pixels to Predictions* (2025)."""

    kind: Literal["mu"] = _default("kind", "mu")  # type: ignore[assignment]
    blocks: Blocks = _default("blocks", TORCH)


class OwenConfig(TutorialConfig):
    """Owen, *Building a Vision Transformer (ViT) from scratch* (2025)."""

    kind: Literal["owen"] = _default("kind", "owen")  # type: ignore[assignment]
    mlp: Mlp = _default("mlp", Mlp(kind="gelu-tanh"))
    blocks: Blocks = _default("blocks", TORCH)
    pool: Pool = _default("pool", Pool(norm="none"))


class PulferConfig(TutorialConfig):
    """Brian Pulfer, *Vision Transformers from Scratch (PyTorch)*."""

    kind: Literal["pulfer"] = _default("kind", "pulfer")  # type: ignore[assignment]
    positions: Positions = _default("positions", Positions(kind="sincos-1d"))
    blocks: Blocks = _default("blocks", TORCH)
    pool: Pool = _default("pool", Pool(norm="none"))


class BourkeConfig(TutorialConfig):
    """Daniel Bourke, the slides *Milestone Project 2: Paper Replicating*."""

    kind: Literal["bourke"] = _default("kind", "bourke")  # type: ignore[assignment]
    start: Literal["ones", "random"] = Field(
        default="ones", description="class token and positions at first: ones, as on the slides, or N(0, 1)"
    )
    blocks: Blocks = _default("blocks", TORCH)
    pool: Pool = _default("pool", Pool(norm="none"))


NAMED = (*VIT_NAMES, *HYBRIDS, *RESNETS, *SWINS)  # some of the sizes that `config_named` knows


def config_named(name: str) -> ModelConfig | None:
    """The config of a size by its name, such as B/16, R50+B/16, R50x1 or swin-T; None where it is no such name.

    >>> config_named("R50x1").kind, config_named("swin-T").kind, config_named("digits")
    ('resnet', 'swin', None)
    """
    size = name.partition("/")[0]
    if size in SIZES or any(size.startswith(f"{backbone}+") for backbone, _ in BACKBONES):
        return ViTConfig.named(name)
    if name in SWINS:
        return SwinConfig.named(name.removeprefix("swin-"))
    return ResNetConfig.named(name) if name in RESNETS else None


def _tag(config: Any) -> str:
    """Which class reads a table `[model]`."""
    if isinstance(config, ModelConfig):
        return "ready"
    kind = str(config.get("kind", "vit") if isinstance(config, dict) else "vit")
    return "own" if is_plugin(kind) else kind if kind in KINDS else "vit"


# A table is read by its kind. That of a model in a user's own file is kept as it is, until `resolve` reads it.
AnyModelConfig = Annotated[
    Annotated[ViTConfig, Tag("vit")]
    | Annotated[MuConfig, Tag("mu")]
    | Annotated[OwenConfig, Tag("owen")]
    | Annotated[PulferConfig, Tag("pulfer")]
    | Annotated[BourkeConfig, Tag("bourke")]
    | Annotated[ResNetConfig, Tag("resnet")]
    | Annotated[SwinConfig, Tag("swin")]
    | Annotated[UnresolvedConfig, Tag("own")]
    | Annotated[InstanceOf[SerializeAsAny[ModelConfig]], Tag("ready")],
    Discriminator(_tag),
]
