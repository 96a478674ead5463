"""A model, step by step: what goes in, what comes out, how many parameters and floating-point operations.

Measured, for any `Model`: it is built on torch's meta device, which has shapes and no numbers, one image runs through
it, and every call of torch is counted for the module that makes it.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from vitral.model import build
from vitral.model.config import ModelConfig
from vitral.model.interface import Model

Shape = tuple[int, ...]
Result = TypeVar("Result")


@dataclass(frozen=True)
class ShapeRow:
    """One step for one image. Operations are those of matrix products, a multiply and an add each, as torch counts.

    They are those of all tokens, as papers count; `Model.forward` may spare what no classifier looks at.
    """

    name: str  # of a module or a parameter, with * for the number of a block: blocks.*.attn.qkv
    what: str
    takes: Shape  # of several tensors with the same shape, their number first; of a parameter, nothing
    gives: Shape
    parameters: int
    flops: int
    times: int = 1  # how often the step is there: once per block


def shapes(config: ModelConfig) -> list[ShapeRow]:
    """Every step of the model, in order. A step is a module that has parameters, multiplies matrices or changes the
    shape; or what a larger module does itself, between those inside it; or a parameter that it holds itself.

    >>> from vitral.model.config import ViTConfig
    >>> count_parameters(shapes(ViTConfig()))
    86567656
    """
    model, images = on_meta(config)
    recorder = Recorder(model)
    with torch.no_grad(), torch.device("meta"), recorder.counter, recorder:
        tokens, embedding = recorder.stage("features", partial(model.features, images))
        views, pooling = recorder.stage("views", partial(model.views, tokens))
        _, heads = recorder.stage("classify", partial(model.classify, views))
    pooling = _with_pool(pooling, _shape(tokens), _shape(views[0]))
    rows = _join_calls([*embedding, *pooling, *heads, *recorder.unused()])
    words = model.step_words()
    return _fold([replace(row, what=words.get(_with_stars(row.name), row.what)) for row in rows])


def count_parameters(rows: Iterable[ShapeRow]) -> int:
    """How many numbers all these steps learn together."""
    return sum(row.parameters * row.times for row in rows)


def on_meta(config: ModelConfig) -> tuple[Model, Tensor]:
    """The model and one image, (1, C, H, W): shapes without numbers, which cost no memory."""
    with torch.device("meta"):
        return build(config).eval(), torch.empty(1, config.channels, *config.height_width)


@dataclass
class Call:
    """A module at work: its own steps and those of the modules inside it, in order."""

    name: str
    what: str
    takes: Shape
    rows: list[ShapeRow] = field(default_factory=list)
    inside: int = 0  # how many of the rows are of modules inside

    def finish(self, gives: Shape) -> list[ShapeRow]:
        parameters, flops = sum(row.parameters for row in self.rows), sum(row.flops for row in self.rows)
        if self.inside == 0:  # all of it is one step, or none
            changes = bool(gives) and gives != self.takes
            row = ShapeRow(self.name, self.what, self.takes, gives, parameters, flops)
            return [row] if parameters or flops or changes else []
        if len(self.rows) == 1:  # what holds one step only is that step
            return [replace(self.rows[0], name=self.name, takes=self.takes, gives=gives)]
        return self.rows


class Recorder(TorchFunctionMode):
    """Listens to a model that runs. A parameter belongs to the step that is the first to use it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.counter = FlopCounterMode(display=False)
        self.parameters = {id(parameter): (name, parameter) for name, parameter in model.named_parameters()}
        self.calls: list[Call] = []  # from the whole to the innermost
        for name, module in model.named_modules():
            if name:
                module.register_forward_pre_hook(partial(self._enter, name), with_kwargs=True)
                module.register_forward_hook(self._leave)

    def stage(self, name: str, run: Callable[[], Result]) -> tuple[Result, list[ShapeRow]]:
        """The result of a method of the model, and its steps."""
        self.calls = [Call(name, name, ())]
        return run(), self.calls[0].rows

    def unused(self) -> list[ShapeRow]:
        """Rows for the parameters that no step has used."""
        return [_parameter(name, parameter, "not used for logits") for name, parameter in self.parameters.values()]

    def _enter(self, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.calls.append(Call(name, _words(module), _shape(args) or _shape(kwargs)))

    def _leave(self, module: nn.Module, args: tuple[Any, ...], result: Any) -> None:
        rows = self.calls.pop().finish(_shape(result))
        self.calls[-1].rows += rows
        self.calls[-1].inside += len(rows)

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        before = self.counter.get_total_flops()
        result = function(*args, **(kwargs or {}))
        flops, call = self.counter.get_total_flops() - before, self.calls[-1]
        if getattr(function, "__name__", "") != "__get__":  # to ask for the dtype of a parameter is not to use it
            uses = (self.parameters.pop(id(tensor), None) for tensor in _tensors([args, kwargs]))
            call.rows += [_parameter(*use, "learned") for use in uses if use]
        if flops:
            call.rows.append(ShapeRow(call.name, call.what, _shape(args), _shape(result), 0, flops))
        return result


def _parameter(name: str, parameter: nn.Parameter, what: str) -> ShapeRow:
    shape = tuple(parameter.shape)
    return ShapeRow(name, what, (), shape[1:] if shape[0] == 1 else shape, parameter.numel(), 0)


def _words(module: nn.Module) -> str:
    if not isinstance(module, nn.Conv2d):
        return type(module).__name__
    stride = f", stride {module.stride[0]}" if module.stride[0] > 1 else ""
    return f"Conv2d {'×'.join(map(str, module.kernel_size))}{stride}"


def _shape(values: Any) -> Shape:
    """The shape of the first tensor, for one image; of several with the same shape, their number first."""
    shapes = [tuple(tensor.shape[1:]) for tensor in _tensors([values])]
    if not shapes:
        return ()
    return (len(shapes), *shapes[0]) if len(shapes) > 1 and len(set(shapes)) == 1 else shapes[0]


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)
        elif isinstance(value, Mapping):
            yield from _tensors(value.values())


def _with_pool(rows: list[ShapeRow], tokens: Shape, view: Shape) -> list[ShapeRow]:
    """What makes one view of many tokens is no module in most models: it stands where the shapes have a gap."""
    modules = [row for row in rows if row.takes]
    if not modules or modules[0].takes != tokens:
        takes, gives, place = tokens, modules[0].takes if modules else view, 0
    else:
        takes, gives, place = modules[-1].gives, view, len(rows)
    pool = [ShapeRow("pool", "what the head sees", takes, gives, 0, 0)] if takes != gives else []
    return [*rows[:place], *pool, *rows[place:]]


def _join_calls(rows: list[ShapeRow]) -> list[ShapeRow]:
    """One row for a module that is called more than once, and for all that a module does itself."""
    joint: dict[str, ShapeRow] = {}
    for row in rows:
        first = joint.get(row.name, replace(row, parameters=0, flops=0))
        parameters, flops = first.parameters + row.parameters, first.flops + row.flops
        joint[row.name] = replace(first, gives=row.gives, parameters=parameters, flops=flops)
    return list(joint.values())


def _fold(rows: list[ShapeRow]) -> list[ShapeRow]:
    """Neighbours that differ in their number alone, such as blocks.0 and blocks.1, become one with `times`."""
    runs: list[tuple[str, list[str], list[ShapeRow]]] = []  # what holds them, their numbers, the rows of each
    for (holder, number), group in groupby(rows, lambda row: _split(row.name)[:2]):
        inside = list(group)
        if number:
            inside = _fold([replace(row, name=_split(row.name)[2]) for row in inside])
        if number and runs and (runs[-1][0], runs[-1][2]) == (holder, inside):
            runs[-1][1].append(number)
        else:
            runs.append((holder, [number], inside))
    folded = []
    for holder, numbers, inside in runs:
        number = "*" if len(numbers) > 1 else numbers[0]
        for row in inside:
            name = ".".join(part for part in (holder, number, row.name) if part)
            folded.append(replace(row, name=name, times=row.times * len(numbers)))
    return folded


def _split(name: str) -> tuple[str, str, str]:
    """
    >>> _split("blocks.0.attn.qkv"), _split("norm")
    (('blocks', '0', 'attn.qkv'), ('', '', 'norm'))
    """
    parts = name.split(".")
    place = next((place for place, part in enumerate(parts) if part.isdecimal()), None)
    if place is None:
        return "", "", name
    return ".".join(parts[:place]), parts[place], ".".join(parts[place + 1 :])


def _with_stars(name: str) -> str:
    return re.sub(r"\b\d+\b", "*", name)
