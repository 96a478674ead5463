"""LoRA (Hu et al. 2021; arXiv:2106.09685): a matrix stays as it is, and a product of two thin ones learns beside it.

    y = W x + b + α/r · B A x          W: (out, in)   A: (r, in)   B: (out, r)

B starts at zero, so that the model begins as it was. In the end W + α/r · B A takes the place of W, and the model is a
plain one again: only training knows of this file.
"""

from copy import deepcopy

import torch
from torch import Tensor, nn

from vitral.errors import RecipeError
from vitral.model.interface import Model


class LoraLinear(nn.Linear):
    """A linear layer, its own weight and bias under their own names, with A and B beside them."""

    def __init__(self, linear: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__(linear.in_features, linear.out_features, device="meta")
        self.weight, self.bias = linear.weight, linear.bias
        like = {"device": self.weight.device, "dtype": self.weight.dtype}
        self.lora_a = nn.Linear(self.in_features, rank, bias=False, **like)
        self.lora_b = nn.Linear(rank, self.out_features, bias=False, **like)
        self.scale = alpha / rank
        nn.init.zeros_(self.lora_b.weight)

    def forward(self, x: Tensor) -> Tensor:  # (…, in) → (…, out)
        # Added where it stands: a tensor as wide as the layer's outputs less at a time.
        return super().forward(x).add_(self.lora_b(self.lora_a(x) * self.scale))

    def merged(self) -> nn.Linear:
        """The plain layer that gives the same."""
        plain = nn.Linear(self.in_features, self.out_features, device="meta")
        plain.weight = nn.Parameter(self.weight + self.lora_b.weight @ self.lora_a.weight * self.scale)
        plain.bias = self.bias
        return plain


def add_lora(model: Model, rank: int, alpha: float, frozen: int = 0) -> None:
    """Put A and B beside every linear layer of the trunk: not of the embedding, nor of the `frozen` first blocks."""
    linears = {id(layer.weight): name for name, layer in model.named_modules() if type(layer) is nn.Linear}
    learning = [layer for layer in model.layers() if layer.part == "trunk" and layer.depth > frozen]
    weights = [parameter for layer in learning for parameter in layer.parameters.values() if id(parameter) in linears]
    if not weights:
        raise RecipeError(
            f"init.mode lora learns beside the linear layers of the blocks, and a model of kind {model.config.kind} "
            f"has none{f' above the first {frozen} blocks' if frozen else ''}: set init.mode=full, gentle or probe."
        )
    least = min(min(weight.shape) for weight in weights)
    if rank > least:
        raise RecipeError(f"init.rank is {rank}, and the thinnest matrix beside which it learns is {least} wide.")
    for weight in weights:
        name = linears[id(weight)]
        model.set_submodule(name, LoraLinear(model.get_submodule(name), rank, alpha))  # type: ignore[arg-type]


@torch.no_grad()
def merged(model: Model) -> Model:
    """A copy that gives the same outputs without A and B; the model itself where it has none."""
    adapters = {name: layer for name, layer in model.named_modules() if isinstance(layer, LoraLinear)}
    if not adapters:
        return model
    plain = deepcopy(model)
    for name, layer in adapters.items():
        plain.set_submodule(name, layer.merged())
    return plain


@torch.no_grad()
def check_lora(model: Model) -> None:
    """Refuse a model of the user's own that goes round its layers, as `nn.TransformerEncoderLayer` does where no
    gradient is asked for: it would not be the model that is stored."""
    adapted = deepcopy(model).eval()
    for layer in adapted.modules():
        if isinstance(layer, LoraLinear):
            nn.init.normal_(layer.lora_b.weight)
    images = torch.rand(2, model.config.channels, *model.config.height_width).to(next(model.parameters()))
    before, there, stored = (one.eval().features(images, None) for one in (deepcopy(model), adapted, merged(adapted)))
    if not torch.dist(there, stored) < 1e-3 * torch.dist(before, stored):
        raise RecipeError(
            f"model.kind {model.config.kind} uses weights without calling the layer that holds them, so that init.mode "
            "lora cannot learn beside them: set init.mode=full, gentle or probe."
        )
