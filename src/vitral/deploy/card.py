"""The model card (README.md) of converted weights: what they are, how to use them, their training and quality."""

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from vitral.deploy.trial import LIBRARIES
from vitral.errors import printable
from vitral.evaluation.target_metrics import METRICS_OF
from vitral.run import Run, last_name
from vitral.version import __version__
from vitral.weights import timm
from vitral.weights.processors import resized_to

if TYPE_CHECKING:
    from vitral.deploy.convert import ConvertedWeights


def write_card(
    to: str,
    name: str,
    weights: "ConvertedWeights[Any]",
    licence: str,
    run: Run | None,
    origin: str,
    family: str,
) -> str:
    """The text of a card as the Hub reads it. `run` is the run that trained the weights, if Vitral did, starting from
    `origin` where that is not empty; else `family` names the family of the weights."""
    title = run.folder.resolve().name if run else name
    parts = [
        _header(to, licence, weights),
        f"# {title}\n\n{_what(weights)}",
        f"## How to use it\n\n```python\n{_usage(to, weights)}\n```\n\n{weights.trial}",
        "## What it was trained on\n\n" + (_training(run, origin) if run else _elsewhere(family)),
    ]
    if run and run.evaluation:
        parts.append("## How good it is\n\n" + "\n".join(_figures(run.evaluation)))
    if weights.notes:
        parts.append("## What is different here\n\n" + "\n".join(f"- {note}" for note in weights.notes))
    parts.append("## Licence\n\n" + (licence or "Not stated. Whoever publishes these weights should say."))
    return printable("\n\n".join(parts), keep="\n") + "\n"


def _header(to: str, licence: str, weights: "ConvertedWeights[Any]") -> str:
    """The YAML header. JSON is a part of YAML, so a value that is quoted as JSON cannot break out of it."""
    lines = ["---"]
    if licence and re.fullmatch(r"[\w.-]+", licence):
        lines.append(f"license: {json.dumps(licence.lower())}")
    elif licence:
        lines += ["license: other", f"license_name: {json.dumps(licence)}"]
    if to in ("hf", "timm"):  # the Hub has no name for the others
        lines.append(f"library_name: {LIBRARIES[to]}")
    lines.append(f"pipeline_tag: {'image-classification' if weights.class_names else 'image-feature-extraction'}")
    tag = "resnet" if weights.config.kind == "resnet" else "vision-transformer"
    return "\n".join([*lines, "tags:", f"- {tag}", "- vitral", "---"])


def _what(weights: "ConvertedWeights[Any]") -> str:
    config, names = weights.config, weights.class_names
    height, width = config.height_width
    numbers = sum(tensor.numel() for tensor in weights.tensors.values())
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    some = ", ".join(_plain(name) for name in names[:20]) + more
    classes = f" It tells {len(names)} classes apart: {some}." if names else " It has no classes: it gives features."
    if weights.target and weights.target.kind == "labels":
        classes = f" It tells which of {len(names)} labels a picture has, any number of them: {some}."
    elif weights.target:
        classes = f" It tells a number: {some}."
    what, _, parts = config.words.partition(", " if config.kind != "resnet" else " of ")
    return (
        f"A {what} for pictures of {height} × {width} pixels: {parts}, {numbers:,} numbers.{classes} "
        f"Written by Vitral {__version__}."
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
    targets = evaluation.get("targets", [])
    figures |= targets[0]["figures"] if targets else evaluation.get("figures", {})
    yield f"Measured on {evaluation.get('pictures', 0):,} {evaluation.get('split', 'test')} pictures.\n"
    yield "| | | 95 % interval |\n|---|---|---|"
    for metric in METRICS_OF[targets[0]["kind"] if targets else "class"]:
        figure = figures.get(metric.name)
        if (metric.is_share or metric.in_unit) and figure and figure.get("value") is not None:
            known = figure.get("low") is not None and figure.get("high") is not None
            interval = f"{metric.text(figure['low'])} to {metric.text(figure['high'])}" if known else ""
            yield f"| {metric.long_title or metric.title} | {metric.text(figure['value'])} | {interval} |"


def _usage(to: str, weights: "ConvertedWeights[Any]") -> str:
    """How to ask about a picture."""
    if to == "npz":
        lines = ["import numpy as np", "", 'with np.load("model.npz") as tensors:  # named as in vision_transformer']
        return "\n".join([*lines, "    print(tensors.files)"])
    if to == "hf":
        is_number = weights.target is not None and weights.target.kind == "number"
        says = ', function_to_apply="none"' if is_number else ""  # else it takes a single output for a probability
        return loading_code(to, weights) + f'\nprint(ask("picture.jpg"{says}))'
    mode = "L" if weights.preprocess.channels == 1 else "RGB"
    loading = loading_code(to, weights) if to == "timm" else "from classifier import class_names, model, transform"
    opening = f'picture = ImageOps.exif_transpose(Image.open("picture.jpg")).convert("{mode}")'
    kind = weights.target.kind if weights.target else "class"
    says = {"class": ".softmax(dim=1)", "labels": ".sigmoid()", "number": ""}[kind]
    asking = f"print(model(transform(picture)[None]){says})"
    return "\n".join(["from PIL import Image, ImageOps", loading, opening, asking])


def loading_code(to: str, weights: "ConvertedWeights[Any]", folder: str = ".") -> str:
    """Python that loads what is in the folder: `ask`, a pipeline of transformers; else `model` and `transform`."""
    return {"hf": _with_transformers, "timm": _with_timm, "torchvision": _with_torchvision}[to](weights, folder)


def _with_transformers(weights: "ConvertedWeights[Any]", folder: str) -> str:
    task = "image-classification" if weights.class_names else "image-feature-extraction"
    return f'from transformers import pipeline\n\nask = pipeline("{task}", model={_quoted(folder)})'


def _with_timm(weights: "ConvertedWeights[Any]", folder: str) -> str:
    config = weights.config
    if config.kind != "vit" or timm.architecture(config):
        model = f"timm.create_model({_quoted(f'local-dir:{folder}')}, pretrained=True).eval()"
        transform = "timm.data.create_transform(**timm.data.resolve_model_data_config(model), is_training=False)"
        return f"import timm\n\nmodel = {model}\ntransform = {transform}"
    unplaced = weights.tensors["pos_embed"].shape[1] == config.grid[0] * config.grid[1] and config.extra > 0
    arguments = timm.arguments(config, unplaced) | {"num_classes": config.classes}
    call = [f"{name}={value!r}" for name, value in arguments.items()]
    lines = ["import json", "from functools import partial", "from pathlib import Path", ""]
    lines += ["from safetensors.torch import load_file", "from timm.data import create_transform, resolve_data_config"]
    if config.mlp.kind == "swiglu":
        lines.append("from timm.layers import SwiGLUPacked")
        call += ["mlp_layer=SwiGLUPacked", "act_layer=nn.SiLU"]
    distilled = config.tokens.kind == "distilled"
    where, name = ("deit", "VisionTransformerDistilled") if distilled else ("vision_transformer", "VisionTransformer")
    call.append(f"norm_layer=partial(nn.LayerNorm, eps={config.blocks.norm_eps!r})")
    lines += [f"from timm.models.{where} import {name}", "from torch import nn", ""]
    lines.append(f"folder = Path({_quoted(folder)})")
    return "\n".join(
        [
            *lines,
            *_construction(name, call),
            'settings = json.loads((folder / "config.json").read_text())["pretrained_cfg"]',
            "transform = create_transform(**resolve_data_config(pretrained_cfg=settings), is_training=False)",
        ]
    )


def _with_torchvision(weights: "ConvertedWeights[Any]", _folder: str) -> str:
    """All of classifier.py: torchvision has no file for the settings of a model, nor for a transform."""
    config, preprocess = weights.config, weights.preprocess
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
    resize = []
    if size := resized_to(preprocess):
        mode = f"transforms.InterpolationMode.{preprocess.interpolation.upper()}"
        resize = [f"        transforms.Resize({size}, interpolation={mode}),"]
    return "\n".join(
        [
            '"""The model of this folder, and how a Pillow picture becomes its input.',
            "",
            f'Written by Vitral {__version__}."""',
            "",
            "from functools import partial",
            "from pathlib import Path",
            "",
            "from safetensors.torch import load_file",
            "from torch import nn",
            "from torchvision import transforms",
            "from torchvision.models import VisionTransformer",
            "",
            "folder = Path(__file__).parent",
            f"class_names = {list(weights.class_names)!a}",
            "transform = transforms.Compose(",
            "    [",
            *resize,
            f"        transforms.CenterCrop({preprocess.image_size}),",
            "        transforms.ToTensor(),",
            f"        transforms.Normalize(mean={list(preprocess.mean)}, std={list(preprocess.std)}),",
            "    ]",
            ")",
            *_construction("VisionTransformer", call),
        ]
    )


def _construction(name: str, arguments: list[str]) -> list[str]:
    """Lines of Python that build a model of the class `name` and load its weights."""
    inside = [f"    {one}," for one in arguments]
    loading = 'model.load_state_dict(load_file(folder / "model.safetensors"))'
    return [f"model = {name}(", *inside, ")", loading, "model.eval()"]


def _quoted(text: str) -> str:
    """A string as Python has it in the source, with double quotes."""
    return json.dumps(text, ensure_ascii=False)
