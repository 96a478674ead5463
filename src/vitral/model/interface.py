"""What every model here is: all that training, evaluation and look may use of it.

A model has a config and turns images into tokens, tokens into what its heads see, and that into logits. All but
`features` has a default, for a model that has its blocks in `blocks` and its classifier in `head`. The one to read is
`ViT` in vit.py.

Shapes: B images, C channels, H height, W width, T tokens, D width of a token, F of what a head sees.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MethodType
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from vitral.errors import DataError, RecipeError
from vitral.model.config import ModelConfig, Regularise

# The trunk is what a probe freezes. The head is new for new classes; pre_logits stands between the two.
PartOfModel = Literal["trunk", "pre_logits", "head"]


@dataclass(frozen=True)
class Layer:
    """Parameters that stand at one depth of a model: they are frozen, thawed and slowed down together."""

    name: str  # embedding, blocks.0, …, head
    depth: int  # 0 at the input, then one more for each block; what stands above the last block is one deeper
    parameters: dict[str, nn.Parameter]  # by their names in the model
    part: PartOfModel = "trunk"


class Model(nn.Module, ABC):
    """The base of all models."""

    config: ModelConfig
    regularise: Regularise

    attends: bool = False  # has attention to look at
    drops_patches: ClassVar[bool] = False  # `features` can leave patches out: `keep`
    any_size: ClassVar[bool] = False  # takes images of other sizes than the config's
    splits: ClassVar[bool] = False  # has `tokens_after` and `head_tokens_from`

    @abstractmethod
    def features(self, images: Tensor, keep: Tensor | None = None) -> Tensor:  # (B, C, H, W) → (B, T, D)
        """All tokens after the last block. `keep`, (B, K): the numbers of the patches to look at; None: all."""

    def views(self, tokens: Tensor) -> Sequence[Tensor]:  # (B, T, D) → each (B, F)
        """What each classifier sees: by default there is one, and it sees the mean of all tokens."""
        return [tokens.mean(dim=1)]

    def classify(self, views: Sequence[Tensor]) -> tuple[Tensor, ...]:  # each (B, F) → each (B, classes)
        """The logits of each classifier."""
        return tuple(self.get_submodule("head")(view) for view in views)

    def layers(self) -> list[Layer]:
        """Every parameter in its layer, from the input to the head: what is made before `blocks` is the embedding, then
        block by block, then what stands above them."""
        inside: dict[str, dict[str, nn.Parameter]] = {"embedding": {}}
        depths = {"embedding": 0}
        for name, parameter in self.named_parameters():
            first, number, *_ = f"{name}.".split(".")
            if first == "blocks":
                layer = f"blocks.{number}"
                depths[layer] = int(number) + 1
            else:
                layer = first if len(depths) > 1 or first.startswith("head") else "embedding"
            inside.setdefault(layer, {})[name] = parameter
        top = max(depths.values()) + 1
        return [Layer(name, depths.get(name, top), some, _part(name)) for name, some in inside.items() if some]

    def matrices(self) -> dict[str, int]:
        """What Muon orthogonalises: names of weights, and how many matrices lie in each, one above the other."""
        return {}

    def layer_weights(self) -> list[str]:
        """What weight decay acts on, where it does not act on all: names of the weights of linear layers and
        convolutions, and not biases, norms, tokens or tables of positions."""
        return layer_weights(self)

    def fit_inputs(self, images: Tensor) -> None:  # (B, C, H, W)
        """Fit layers that are measured and not learned, on some training images before the first step."""
        return

    def refit_norms(self, batches: Iterable[Tensor]) -> None:  # each (B, C, H, W)
        """Measure what BatchNorms remember anew, as the weights are now."""
        return

    def repeated_blocks(self) -> list[nn.Module]:
        """The blocks, from the input to the head: what lies in `blocks`, of the model or of its parts."""
        places = (module for name, module in self.named_modules() if name.rpartition(".")[2] == "blocks")
        return [block for place in places for block in place.children()]

    def recompute_blocks(self) -> None:
        """From now on a block keeps only what it is given, and makes the rest anew on the way back. The last one keeps
        all: the way back begins there."""
        blocks = self.repeated_blocks()[:-1]
        if not blocks:
            raise RecipeError(
                "train.recompute saves memory block by block, and a model of kind "
                f"{self.config.kind} has no two blocks in `blocks`: set train.recompute=false."
            )
        if any(isinstance(module, _BatchNorm) for block in blocks for module in block.modules()):
            raise RecipeError(
                "train.recompute goes through blocks twice, and the BatchNorm in those of a model of kind "
                f"{self.config.kind} would remember each batch twice: set train.recompute=false."
            )
        for block in blocks:  # that of the class: twice is once, also for a copy
            block.forward = partial(checkpoint, MethodType(type(block).forward, block), use_reentrant=False)

    def step_words(self) -> dict[str, str]:
        """What the steps that `shapes` lists are, in words, by name (blocks.*.attn); others have their class."""
        return {}

    def head_tokens(self, images: Tensor, keep: Tensor | None = None) -> Tensor:  # (B, C, H, W) → (B, t, D)
        """As many of the features as the classifiers look at: a model may spare the others."""
        return self.features(images, keep)

    def tokens_after(self, images: Tensor, depth: int) -> Tensor:  # (B, C, H, W) → (B, T, D)
        """The tokens as they leave the layers up to a depth."""
        raise NotImplementedError

    def head_tokens_from(self, tokens: Tensor, depth: int) -> Tensor:  # (B, T, D) → (B, t, D)
        """`head_tokens`, from where `tokens_after` stopped."""
        raise NotImplementedError

    def states(self, images: Tensor) -> Iterator[Tensor]:  # (B, C, H, W) → each (B, T, D)
        """The tokens that the first block gets, and those that each block gives, for those who want to see them: of a
        model that has but one size and number of tokens."""
        return iter(())

    def patch_tokens(self, tokens: Tensor) -> Tensor:  # (B, T, D) → (B, N, D)
        """Those of the features that stand for places in the image, in reading order."""
        return tokens

    def logits(self, tokens: Tensor) -> tuple[Tensor, ...]:  # (B, T, D) → (B, classes), one tensor per classifier
        """The logits of each classifier."""
        return self.classify(self.views(tokens))

    def pool(self, tokens: Tensor) -> Tensor:  # (B, T, D) → (B, F)
        """What the classifiers see, for those who want features; of two, the mean."""
        return torch.stack(list(self.views(tokens))).mean(dim=0)

    def forward(self, images: Tensor, keep: Tensor | None = None) -> Tensor:  # (B, C, H, W) → (B, classes)
        return torch.stack(self.logits(self.head_tokens(images, keep))).mean(dim=0)

    def __repr__(self) -> str:
        height, width = self.config.height_width
        count = sum(parameter.numel() for parameter in self.parameters())
        images, outputs = f"{height}×{width}×{self.config.channels}", outputs_in_words(self.config)
        return f"{type(self).__name__}({images} → {outputs}; {count:,} parameters)"

    def grid_of(self, images: Tensor) -> tuple[int, int]:
        """How many places `patch_tokens` has for these images: (down, across). Images that do not fit are refused."""
        _, channels, height, width = images.shape
        stride = self.config.stride
        if channels != self.config.channels:
            raise DataError(f"The images have {channels} channels, and the model takes {self.config.channels}.")
        if height % stride or width % stride or 0 in (height, width):
            below = "×".join(str(max(side // stride, 1) * stride) for side in (height, width))
            above = "×".join(str(max(-(-side // stride), 1) * stride) for side in (height, width))
            raise DataError(
                f"Patches of {stride} pixels do not divide images of {height}×{width}. Try {below} or {above}."
            )
        cell = self.config.cell
        return -(-height // cell), -(-width // cell)

    def plain(self) -> "Model":
        """A model that does the same with the parts that other libraries know: itself, unless it has other parts."""
        return self

    def at(self, image_size: int | tuple[int, int]) -> Self:
        """A copy of the model made for another image size."""
        raise RecipeError(f"A model of kind {self.config.kind} is made for one image size: it has no other.")

    def copy_with(self, config: ModelConfig, state: Mapping[str, Tensor]) -> Self:
        """A copy with another config and tensors of its own; what is frozen stays so."""
        with torch.device("meta"):
            model = type(self)(config, self.regularise)
        model.load_state_dict({name: tensor.clone() for name, tensor in state.items()}, assign=True)
        for ours, theirs in zip(self.parameters(), model.parameters(), strict=True):
            theirs.requires_grad_(ours.requires_grad)
        return model.train(self.training)


def outputs_in_words(config: ModelConfig) -> str:
    """How many outputs a model has: one is a number, and no class."""
    if not config.classes:
        return "no head"
    return "1 output" if config.classes == 1 else f"{config.classes} classes"


def layer_weights(module: nn.Module) -> list[str]:
    """The names of the weights of all linear and convolution layers."""
    return [f"{name}.weight" for name, layer in module.named_modules() if isinstance(layer, nn.Linear | nn.Conv2d)]


def _part(layer: str) -> PartOfModel:
    return "head" if layer.startswith("head") else "pre_logits" if layer == "pre_logits" else "trunk"
