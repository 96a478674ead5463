"""The model card (README.md) of converted weights: what they are, how to use them, their training and quality."""

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from vitral.evaluation.metrics import METRICS
from vitral.run import Run, last_name
from vitral.version import __version__
from vitral.weights import timm

if TYPE_CHECKING:
    from vitral.deploy.convert import ConvertedWeights

# The library_name of each target on the Hub, which has none for the others.
LIBRARIES = {"hf": "transformers", "timm": "timm"}


def write_card(
    to: str, name: str, weights: "ConvertedWeights", licence: str, run: Run | None, origin: str, family: str
) -> str:
    """The text of a card as the Hub reads it. `run` is the run that trained the weights, if Vitral did, starting from
    `origin` where that is not empty; else `family` names the family of the weights."""
    title = run.folder.resolve().name if run else name
    parts = [
        _header(to, licence, bool(weights.class_names)),
        f"# {title}\n\n{_what(weights)}",
        f"## How to use it\n\n```python\n{_usage(to, weights)}\n```",
        "## What it was trained on\n\n" + (_training(run, origin) if run else _elsewhere(family)),
    ]
    if run and run.evaluation:
        parts.append("## How good it is\n\n" + "\n".join(_figures(run.evaluation)))
    if weights.notes:
        parts.append("## What is different here\n\n" + "\n".join(f"- {note}" for note in weights.notes))
    parts.append("## Licence\n\n" + (licence or "Not stated. Whoever publishes these weights should say."))
    return "\n\n".join(parts) + "\n"


def _header(to: str, licence: str, classes: bool) -> str:
    """The YAML header. JSON is a part of YAML, so a value that is quoted as JSON cannot break out of it."""
    lines = ["---"]
    if licence and re.fullmatch(r"[\w.-]+", licence):
        lines.append(f"license: {json.dumps(licence.lower())}")
    elif licence:
        lines += ["license: other", f"license_name: {json.dumps(licence)}"]
    if to in LIBRARIES:
        lines.append(f"library_name: {LIBRARIES[to]}")
    lines.append(f"pipeline_tag: {'image-classification' if classes else 'image-feature-extraction'}")
    return "\n".join([*lines, "tags:", "- vision-transformer", "- vitral", "---"])


def _what(weights: "ConvertedWeights") -> str:
    config, names = weights.config, weights.class_names
    height, width = config.height_width
    numbers = sum(tensor.numel() for tensor in weights.tensors.values())
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    some = ", ".join(_plain(name) for name in names[:20]) + more
    classes = f" It tells {len(names)} classes apart: {some}." if names else " It has no classes: it gives features."
    return (
        f"A Vision Transformer for pictures of {height} × {width} pixels: {config.depth} blocks of width "
        f"{config.width}, {config.heads} heads, {numbers:,} numbers.{classes} Written by Vitral {__version__}."
    )


def _plain(name: str) -> str:
    """A name in Markdown, on one line, with all signs of markup escaped."""
    return re.sub(r"([\\`*_{}\[\]<>()#+!|~-])", r"\\\1", " ".join(name.split()))


def _training(run: Run, origin: str) -> str:
    record = run.record
    start = f" It started from the weights `{origin.replace('`', '')}`." if origin else ""
    counts = ", ".join(f"{count:,} to {use}" for use, count in _uses(record.data.pictures) if count)
    return (
        f"On `{last_name(record.data.source).replace('`', '')}`: {counts}. {record.steps:,} steps, Vitral "
        f"{record.version}, recipe and sha256 of the pictures (`{record.data.sha256[:16]}…`) in the run folder.{start}"
    )


def _uses(pictures: dict[str, int]) -> Iterator[tuple[str, int]]:
    words = {"train": "train", "validation": "validate", "test": "test"}
    return ((words.get(split, split), count) for split, count in pictures.items())


def _elsewhere(family: str) -> str:
    whose = f"weights of the family {family}" if family else "weights by themselves"
    return f"Vitral did not train it, or was not told: it was given {whose}."


def _figures(evaluation: dict[str, Any]) -> Iterator[str]:
    """The lines of the table of metrics, from evaluation.json; an older one has the accuracy alone."""
    low, high = evaluation.get("accuracy_interval", (None, None))
    figures = {"accuracy": {"value": evaluation.get("accuracy"), "low": low, "high": high}}
    figures |= evaluation.get("figures", {})
    yield f"Measured on {evaluation.get('pictures', 0):,} {evaluation.get('split', 'test')} pictures.\n"
    yield "| | | 95 % interval |\n|---|---|---|"
    for metric in METRICS:
        figure = figures.get(metric.name)
        if metric.is_share and figure and figure.get("value") is not None:
            known = figure.get("low") is not None and figure.get("high") is not None
            interval = f"{figure['low']:.1%} to {figure['high']:.1%}" if known else ""
            yield f"| {metric.long_title or metric.title} | {figure['value']:.1%} | {interval} |"


def _usage(to: str, weights: "ConvertedWeights") -> str:
    return {"hf": _with_transformers, "timm": _with_timm, "torchvision": _with_torchvision, "npz": _with_numpy}[to](
        weights
    )


def _with_transformers(weights: "ConvertedWeights") -> str:
    task = "image-classification" if weights.class_names else "image-feature-extraction"
    lines = ["from transformers import pipeline", "", f'ask = pipeline("{task}", model=".")  # this folder']
    return "\n".join([*lines, 'print(ask("picture.jpg"))'])


def _with_timm(weights: "ConvertedWeights") -> str:
    config = weights.config
    if timm.architecture(config):
        return 'import timm\n\nmodel = timm.create_model("local-dir:.", pretrained=True).eval()  # this folder'
    unplaced = weights.tensors["pos_embed"].shape[1] == config.grid[0] * config.grid[1] and config.extra > 0
    settings = timm.arguments(config, unplaced) | {"num_classes": config.classes}
    call = [f"{name}={value!r}" for name, value in settings.items()]
    lines = ["from functools import partial", "", "from safetensors.torch import load_file"]
    if config.mlp.kind == "swiglu":
        lines.append("from timm.layers import SwiGLUPacked")
        call += ["mlp_layer=SwiGLUPacked", "act_layer=nn.SiLU"]
    distilled = config.tokens.kind == "distilled"
    where, name = ("deit", "VisionTransformerDistilled") if distilled else ("vision_transformer", "VisionTransformer")
    call.append(f"norm_layer=partial(nn.LayerNorm, eps={config.blocks.norm_eps!r})")
    lines += [f"from timm.models.{where} import {name}", "from torch import nn", "", *_construction(name, call)]
    return "\n".join(lines)


def _with_torchvision(weights: "ConvertedWeights") -> str:
    config = weights.config
    settings = {
        "image_size": config.height_width[0],
        "patch_size": config.patch_size,
        "num_layers": config.depth,
        "num_heads": config.heads,
        "hidden_dim": config.width,
        "mlp_dim": config.mlp_size,
        "num_classes": config.classes,
    }
    if config.head.kind == "mlp":
        settings["representation_size"] = config.head.size or config.width
    call = [*(f"{name}={value}" for name, value in settings.items())]
    call.append(f"norm_layer=partial(nn.LayerNorm, eps={config.blocks.norm_eps!r})")
    imports = ["from functools import partial", "", "from safetensors.torch import load_file", "from torch import nn"]
    return "\n".join(
        [*imports, "from torchvision.models import VisionTransformer", "", *_construction("VisionTransformer", call)]
    )


def _construction(name: str, arguments: list[str]) -> list[str]:
    """Lines of Python that build a model of the class `name` and load its weights."""
    inside = [f"    {one}," for one in arguments]
    return [f"model = {name}(", *inside, ")", 'model.load_state_dict(load_file("model.safetensors"))', "model.eval()"]


def _with_numpy(weights: "ConvertedWeights") -> str:
    lines = ["import numpy as np", "", 'with np.load("model.npz") as tensors:  # under the names of vision_transformer']
    return "\n".join([*lines, "    print(tensors.files)"])
