"""A module of another library and our model with its weights, side by side on a random picture: are they the same?"""

import inspect
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from vitral.model.interface import Model

CLOSE = 1e-4  # of the largest number: sums that are taken in another order differ by less
SAME = 1e-8  # the same in float64, where a norm that adds 1e-4 and not 1e-5 makes 7e-6 of a deep ResNet
BLOCK = re.compile(r"(?:^|\.)(?:blocks|layers?|encoder_layer)[._](\d+)$")  # what the libraries call a block
START, END = "before the first block", "after the last block, in norm, pooling or head"


class NotComparable(Exception):
    """The module does not take a picture, or gives nothing that ours gives."""


@torch.no_grad()
def compare(module: nn.Module, model: Model, image_size: tuple[int, int]) -> tuple[float, str]:
    """How much they differ on a random picture, and from where on: the largest difference over the largest number, of
    the tokens before the first block and after each, and of the output; the first that is not close, else the largest.
    Of a model without `states`, of the output alone.

    The module stays as it is: in training or evaluation, its hooks, and torch's random numbers.
    """
    images = torch.randn(1, model.config.channels, *image_size, generator=torch.Generator().manual_seed(0))
    difference = _difference(module, model, images)
    if difference[0] <= CLOSE:
        return difference
    try:  # the sums of a deep ResNet round as much as that; what still differs in float64 is another model
        exact = _difference(module, deepcopy(model).double(), images.double())
    except NotComparable:
        return difference
    return exact if exact[0] <= SAME else difference


def _difference(module: nn.Module, model: Model, images: Tensor) -> tuple[float, str]:
    patches = math.prod(model.grid_of(images))
    theirs = _outputs(module, images, patches, tuple(images.shape[2:]) != model.config.height_width)
    features = model.features(images)
    ours = dict(zip([START, *map(_after, range(len(model.layers())))], model.states(images), strict=False))
    ours[END] = torch.stack(model.logits(features)).mean(dim=0)  # (1, classes)
    if END in theirs and theirs[END].shape == features.shape:  # it has neither pooling nor head
        ours[END] = features
    differences = [
        (float((ours[where] - theirs[where]).abs().max() / theirs[where].abs().max().clamp(min=1e-12)), where)
        for where in ours
        if where in theirs and theirs[where].shape == ours[where].shape
    ]
    if strange := [one for one in differences if not one[0] <= CLOSE]:
        return strange[0]
    if END not in (where for _, where in differences):
        raise NotComparable("its output has another shape than ours")
    return max(differences)


def _outputs(module: nn.Module, images: Tensor, patches: int, resized: bool) -> dict[str, Tensor]:
    """What the module gives for images, and its blocks on the way."""
    outputs: dict[str, Tensor] = {}

    def keep(where: str, value: Any) -> None:
        value = value[0] if isinstance(value, tuple) else value
        if isinstance(value, Tensor):
            outputs.setdefault(where, value.to(images.dtype))

    def hooks(number: int, block: nn.Module) -> Iterator[Any]:
        if number == 0:
            yield block.register_forward_pre_hook(lambda block, inputs: keep(START, inputs))
        yield block.register_forward_hook(lambda block, inputs, output: keep(_after(number), output))

    try:
        if any(p.dtype != images.dtype or p.device.type != "cpu" for p in module.parameters()):
            module = deepcopy(module).cpu().to(images.dtype)  # or it would differ by what it rounds
        names = [(BLOCK.search(name), part) for name, part in module.named_modules()]
        handles = [handle for match, part in names if match for handle in hooks(int(match[1]), part)]
        # transformers brings positions to another size only where it is told to, and its MAE shuffles the patches.
        options = {"interpolate_pos_encoding": resized, "noise": torch.arange(float(patches))[None]}
        known = inspect.signature(module.forward).parameters
        try:
            with _evaluating(module), torch.random.fork_rng(devices=[]), torch.autocast("cpu", enabled=False):
                output = module(images, **{name: value for name, value in options.items() if name in known})
        finally:
            for handle in handles:
                handle.remove()
    except Exception as error:  # whatever a stranger's code raises
        raise NotComparable(f"it does not take a picture ({type(error).__name__})") from error
    for name in ("logits", "pooler_output", "last_hidden_state"):  # of transformers
        if not isinstance(output, Tensor) and getattr(output, name, None) is not None:
            output = getattr(output, name)
    keep(END, output)
    if END in outputs and outputs[END].ndim == 4:  # a map: of pooled channels, or of the last stage
        rows = outputs[END].flatten(2).transpose(1, 2)
        outputs[END] = rows[:, 0] if rows.shape[1] == 1 else rows
    return outputs


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    """In evaluation, and each part back to what it was."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


def _after(number: int) -> str:
    return f"from block {number} on"
