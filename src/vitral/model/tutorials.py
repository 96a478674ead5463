"""The models of the tutorials that people learn the ViT from, layer for layer: what each does otherwise than vit.py.

Four ViTs with the parts of ours. They differ in what every layer starts with, which a short training does not forget,
and Pulfer's attention and Bourke's dropout are their own. docs/tutorials.md has each tutorial's names beside ours.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

from vitral.errors import RecipeError
from vitral.model.config import Regularise, ViTConfig
from vitral.model.kinds import BourkeConfig, MuConfig, OwenConfig, PulferConfig
from vitral.model.mlps import Gelu
from vitral.model.vit import Attention, Block, ViT


class TutorialViT(ViT):
    """What the four share: a class token, and for most a learned table of positions."""

    cls_token: nn.Parameter
    pos_embed: nn.Parameter  # of those with learned positions

    def start_as_multihead_attention(self) -> None:
        """As PyTorch's `nn.MultiheadAttention` starts: q, k and v are one Xavier-uniform matrix, and all biases are
        zero; the last matrix is that of any `nn.Linear`."""
        for layer in self.modules():
            if isinstance(layer, Attention):
                nn.init.xavier_uniform_(layer.qkv.weight)
                nn.init.zeros_(layer.qkv.bias)
                nn.init.zeros_(layer.proj.bias)


class MuViT(TutorialViT):
    """Mu's: PyTorch's own first values in all layers; class token and positions start at zero."""

    config: MuConfig

    @torch.no_grad()
    def initialise(self) -> None:
        nn.init.zeros_(self.cls_token)
        nn.init.zeros_(self.pos_embed)
        self.start_as_multihead_attention()


class OwenViT(TutorialViT):
    """Owen's: all matrices, the convolution, the class token and the positions start as N(0, 0.02²), biases at zero."""

    config: OwenConfig

    @torch.no_grad()
    def initialise(self) -> None:
        for layer in self.modules():
            if isinstance(layer, nn.Linear | nn.Conv2d):
                nn.init.normal_(layer.weight, std=0.02)
                nn.init.zeros_(layer.bias)  # type: ignore[arg-type]  # all have one
        nn.init.normal_(self.cls_token, std=0.02)
        nn.init.normal_(self.pos_embed, std=0.02)


class SlicedLinear(nn.Module):
    """Queries, keys and values where each head sees only its own share of the token: 3 · heads small matrices."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        size = width // heads
        self.weight = nn.Parameter(torch.empty(3, heads, size, size))  # (q k v, heads, out, in)
        self.bias = nn.Parameter(torch.empty(3, heads, size))
        for numbers in (self.weight, self.bias):  # as `nn.Linear(size, size)` starts
            nn.init.uniform_(numbers, -(size**-0.5), size**-0.5)

    def forward(self, x: Tensor) -> Tensor:  # (B, T, D) → (B, T, 3D): q, k, v, each head by head
        slices = x.unflatten(-1, self.bias.shape[1:])  # (B, T, heads, D/heads)
        return (torch.einsum("bthi,nhoi->btnho", slices, self.weight) + self.bias).flatten(2)


class PulferBlock(Block):
    """Each head attends within its slice of the tokens, and no matrix mixes the heads: equation (8) is missing."""

    def __init__(self, config: ViTConfig, regularise: Regularise, number: int) -> None:
        super().__init__(config, regularise, number)
        self.attn.qkv = SlicedLinear(config.width, config.heads)  # type: ignore[assignment]
        self.attn.proj = nn.Identity()  # type: ignore[assignment]


class PulferViT(TutorialViT):
    """Pulfer's: heads that see slices; PyTorch's own first values; the class token starts uniform between 0 and 1.

    His softmax before the loss is no part of it: `train.objective=double-softmax`.
    """

    config: PulferConfig
    block_class = PulferBlock

    @torch.no_grad()
    def initialise(self) -> None:
        nn.init.uniform_(self.cls_token)

    def layer_weights(self) -> list[str]:
        sliced = [f"{name}.weight" for name, layer in self.named_modules() if isinstance(layer, SlicedLinear)]
        return [*super().layer_weights(), *sliced]

    def plain(self) -> ViT:
        """Each slice becomes a block on the diagonal of a full matrix, and the identity mixes the heads."""
        config = ViTConfig.read({**self.config.write(), "kind": "vit"}, "model.")
        state = self.state_dict()
        for name in [name for name in state if name.endswith("attn.qkv.weight")]:
            block, bias = name.removesuffix("qkv.weight"), name.replace("weight", "bias")
            state[name] = torch.cat([torch.block_diag(*heads) for heads in state[name]])  # (3D, D)
            state[bias] = state[bias].flatten()
            state[f"{block}proj.weight"] = torch.eye(config.width)
            state[f"{block}proj.bias"] = torch.zeros(config.width)
        model = ViT(config, self.regularise)
        model.load_state_dict(state)
        return model.train(self.training)


class DropoutMlp(Gelu):
    """Dropout after the GELU, and after the second layer."""

    def __init__(self, config: ViTConfig, share: float) -> None:
        super().__init__(config)
        self.share = share

    def forward(self, x: Tensor) -> Tensor:  # (B, T, D) → (B, T, D)
        hidden = dropout(self.act(self.fc1(x)), self.share, self.training)
        return dropout(self.fc2(hidden), self.share, self.training)


class BourkeBlock(Block):
    """Dropout inside the MLP, and none behind attention."""

    def __init__(self, config: ViTConfig, regularise: Regularise, number: int) -> None:
        super().__init__(config, regularise, number)
        self.mlp = DropoutMlp(config, regularise.dropout)
        self.drop = nn.Identity()  # type: ignore[assignment]


class BourkeViT(TutorialViT):
    """Bourke's: PyTorch's own first values; class token and positions start at one, or as N(0, 1) in his notebook."""

    config: BourkeConfig
    block_class = BourkeBlock

    def __init__(self, config: BourkeConfig, regularise: Regularise | None = None) -> None:
        if regularise and regularise.stochastic_depth:
            raise RecipeError("model.kind bourke leaves no branches out: set train.regularise.stochastic_depth=0.")
        super().__init__(config, regularise)
        self.pos_drop = nn.Identity()  # type: ignore[assignment]

    @torch.no_grad()
    def initialise(self) -> None:
        for tokens in (self.cls_token, self.pos_embed):
            nn.init.ones_(tokens) if self.config.start == "ones" else nn.init.normal_(tokens)
        self.start_as_multihead_attention()
