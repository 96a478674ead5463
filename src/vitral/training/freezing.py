"""What of a model stays as it is: its first blocks, its whole trunk, or all but thin matrices beside it (LoRA)."""

import torch

from vitral.errors import RecipeError
from vitral.model.interface import Model
from vitral.model.lora import add_lora, check_lora
from vitral.plugin import is_plugin
from vitral.training.config import Init


def freeze_by(model: Model, init: Init, seed: int) -> None:
    """Freeze what does not learn from the first step on; with LoRA, thin matrices learn beside it."""
    _check_blocks(model, init.freeze)
    if init.mode in ("probe", "lora"):
        freeze_trunk(model)
    elif init.freeze:
        freeze(model, init.freeze)
    if init.mode == "lora":
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            add_lora(model, init.rank, init.alpha, init.freeze)
            if is_plugin(model.config.kind):
                check_lora(model)


def freeze(model: Model, blocks: int) -> None:
    """Freeze the embedding and so many first blocks; with 0 everything learns."""
    for layer in model.layers():
        for parameter in layer.parameters.values():
            parameter.requires_grad_(blocks == 0 or layer.depth > blocks)


def freeze_trunk(model: Model) -> None:
    """Freeze the trunk: only what stands above it learns."""
    for layer in model.layers():
        for parameter in layer.parameters.values():
            parameter.requires_grad_(layer.part != "trunk")


def _check_blocks(model: Model, frozen: int) -> None:
    """Refuse to freeze more blocks than there are."""
    blocks = max(layer.depth for layer in model.layers()) - 1
    if frozen > blocks:
        raise RecipeError(f"init.freeze is {frozen}, and the model has {blocks} blocks.")
