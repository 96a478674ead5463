"""Every ViT of timm through `load_pretrained`: are the outputs timm's own?

    python benchmarks/timm_names.py [--only 'vit_base*'] [--json walk.json]
    python benchmarks/timm_names.py --table src/vitral/weights/timm_architectures.json   # what names stand for

It needs `pip install timm torchvision`, which are no dependencies of Vitral. The models are all names of timm's
vision_transformer.py, deit.py, vision_transformer_hybrid.py, swin_transformer.py, swin_transformer_v2.py and
resnetv2.py, and those of DINOv3 in its eva.py, with their own width, heads, tokens, norms and MLPs, but two blocks (a
Swin, a ResNet: in each stage) and at most 8 × 8 patches (a Swin: as many as it has), and with random numbers in every
tensor: no norm is the identity, no bias and no position is zero. Then some with arguments of their own: oblong, grey,
another activation, other pooling, registers that make another grid possible.

Each is loaded in four ways: the module in memory; the folder that timm's `save_for_hf` writes; the same with a
config.json that holds the name alone, as earlier versions wrote it; and the file of tensors with nothing beside it.
Equal means that logits differ by at most 1e-5 of the largest one. What is refused is counted by its sentence.
"""

import argparse
import fnmatch
import json
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitral import WeightsError, load_pretrained
from vitral.weights.architectures import Architecture, shape_of
from vitral.weights.names import renamed
from vitral.weights.stored import activation_word, norm_word
from vitral.weights.timm import TIMM, TIMM_DINOV3

# A torchvision that was made for another torch lacks its compiled operators; timm imports it, and uses none of them.
_OPERATORS = torch.library.Library("torchvision", "DEF")
for _name in ("nms", "qnms"):
    _OPERATORS.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

import timm  # noqa: E402
from timm.models import save_for_hf  # noqa: E402

WAYS = ("live", "folder", "name", "bare")
EQUAL = 1e-5  # of the largest logit
PATCHES = 8  # per side, at most
SMALL: dict[str, Any] = {"patch_size": 16, "embed_dim": 192, "num_heads": 3}
OTHERS: dict[str, dict[str, Any]] = {
    "oblong 224×256": SMALL | {"img_size": (224, 256)},
    "oblong 112×448": SMALL | {"img_size": (112, 448)},
    "oblong, any size": SMALL | {"img_size": (112, 448), "dynamic_img_size": True},
    "grey": SMALL | {"in_chans": 1},
    "six channels": SMALL | {"in_chans": 6},
    "relu": SMALL | {"act_layer": "relu"},
    "silu": SMALL | {"act_layer": "silu"},
    "tanh-gelu": SMALL | {"act_layer": "gelu_tanh"},
    "prefix in the mean": SMALL | {"global_pool": "avg", "pool_include_prefix": True},
    "fc_norm on the token": SMALL | {"fc_norm": True},
    "mean, norm before": SMALL | {"global_pool": "avg", "fc_norm": False},
    "max": SMALL | {"global_pool": "max"},
    "tokens, no pool": SMALL | {"global_pool": "", "num_classes": 0},
    "no head": SMALL | {"num_classes": 0},
    "no final norm": SMALL | {"final_norm": False},
    "no bias of proj": SMALL | {"proj_bias": False},
    "RMSNorm": SMALL | {"norm_layer": "rmsnorm"},
    "no positions": SMALL | {"pos_embed": "none"},
    "other heads": SMALL | {"num_heads": 6},
    "4 registers, 2×2 patches": SMALL | {"img_size": 32, "reg_tokens": 4},
    "4 registers, no place": SMALL | {"img_size": 32, "reg_tokens": 4, "no_embed_class": True},
    "8 registers, 4×4 patches": SMALL | {"img_size": 64, "reg_tokens": 8},
    "8 registers, no place": SMALL | {"img_size": 64, "reg_tokens": 8, "no_embed_class": True},
}


FILES = (  # of timm; of eva.py the DINOv3, whose class is another, and LingBot's, which are DINOv3 by another name
    "vision_transformer",
    "deit",
    "vision_transformer_hybrid",
    "swin_transformer",
    "swin_transformer_v2",
    "resnetv2",
    "eva",
)
SIZE = 64  # of the pictures of a ResNet, which takes any


def models(only: str) -> Iterator[tuple[str, str, nn.Module]]:
    """All names, by the file of timm that has them, then models with arguments of their own."""
    for file in FILES:
        for name in names(file):
            if fnmatch.fnmatch(name, only):
                yield f"{file}.py", name, shallow(name, file)
    for words, arguments in OTHERS.items():
        if fnmatch.fnmatch(words, only):
            yield "arguments of their own", words, made("vit_base_patch16_224", depth=2, **arguments)


def names(file: str) -> list[str]:
    every: list[str] = timm.list_models(module=file)
    return [name for name in every if file != "eva" or "_dinov3" in name or "lingbot" in name]


def shallow(name: str, file: str) -> nn.Module:
    """The model of a name with few blocks and few patches."""
    if file == "resnetv2":
        return made(name)
    if file.startswith("swin"):
        return made(name, depths=(2, 2, 2, 2))
    stem = timm.create_model(name, depth=1, device="meta").patch_embed
    return made(name, depth=2, img_size=min(stem.grid_size[0], PATCHES) * stem.feat_ratio(as_scalar=True))


def made(name: str, **arguments: Any) -> nn.Module:
    """With random numbers, and without the time that timm takes for its first values."""
    arguments = {"num_classes": 10} | arguments
    model = timm.create_model(name, device="meta", **arguments)
    if next(model.buffers(), None) is None:
        shorten(model)
        model.to_empty(device="cpu")
    else:  # frequencies of rotary positions, which are no parameters; BatchNorm
        model = timm.create_model(name, **arguments)
        shorten(model)
    randomise(model)
    return model


def shorten(model: nn.Module) -> None:
    """Two blocks for each stage of a ResNet, for which timm takes no argument."""
    backbone = getattr(model.patch_embed, "backbone", None) if hasattr(model, "patch_embed") else model
    for stage in getattr(backbone, "stages", ()):
        if hasattr(stage, "blocks"):
            del stage.blocks[2:]


@torch.no_grad()
def randomise(model: nn.Module) -> None:
    """Numbers of about the size that training leaves, none of them 0 or 1; tokens that are small before the first
    block, so that the epsilon of its norm shows."""
    chance = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        numbers = torch.randn(parameter.shape, generator=chance)
        if name.startswith("patch_embed.proj.") or name.endswith(("token", "pos_embed")):
            numbers *= 0.05 * parameter[0].numel() ** -0.5 if parameter.ndim == 4 else 0.05
        elif parameter.ndim >= 2:
            numbers *= parameter[0].numel() ** -0.5
        elif "norm" in name and name.endswith("weight"):
            numbers = 1 + 0.3 * numbers
        else:
            numbers *= 0.5
        parameter.copy_(numbers)


def outcomes(model: nn.Module, folder: Path) -> dict[str, str]:
    """For each way: equal, DIFFERENT, CRASHED, or the sentence that refuses it."""
    channels = next(part.in_channels for part in model.modules() if isinstance(part, nn.Conv2d))
    size = model.patch_embed.img_size if hasattr(model, "patch_embed") else (SIZE, SIZE)
    images = torch.randn(2, channels, *size, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        theirs = model.eval()(images)
    sources: dict[str, Any] = {"live": model}
    try:
        save_for_hf(model, str(folder / "folder"), safe_serialization=True)
    except ValueError as error:
        return {way: f"timm does not save it: {error}" for way in WAYS}
    config = json.loads((folder / "folder" / "config.json").read_text())
    config.pop("model_args", None)
    (folder / "name").mkdir()
    (folder / "name" / "config.json").write_text(json.dumps(config))
    (folder / "name" / "model.safetensors").symlink_to(folder / "folder" / "model.safetensors")
    (folder / "bare.safetensors").symlink_to(folder / "folder" / "model.safetensors")
    sources |= {"folder": folder / "folder", "name": folder / "name", "bare": folder / "bare.safetensors"}
    return {way: outcome(source, images, theirs) for way, source in sources.items()}


@torch.inference_mode()
def outcome(source: nn.Module | Path, images: Tensor, theirs: Tensor) -> str:
    try:
        model = load_pretrained(source).model
        ours = model(images) if theirs.ndim == 2 else model.features(images)
    except WeightsError as error:
        return str(error)
    except Exception as error:
        return f"CRASHED ({type(error).__name__}: {error})"
    if ours.shape != theirs.shape:
        return f"DIFFERENT (shape {tuple(ours.shape)})"
    difference = float((ours - theirs).abs().max() / theirs.abs().max())
    return "equal" if difference <= EQUAL else f"DIFFERENT by {difference:.1e}"


def cause(sentence: str) -> str:
    """The sentence without what is of one model alone."""
    sentence = re.sub(r"^(\S*/(folder|name|bare\.safetensors)|the \w+ in memory)", "It", sentence)
    sentence = re.sub(r"as in \w+", "as in …", sentence)
    sentence = re.sub(r"by [\d.e-]+$", "", sentence)
    return re.sub(r"\d[\d.,×%]*", "…", sentence)


def table() -> list[dict[str, Any]]:
    """What tensors do not tell, of every name whose tensors Vitral has a place for; one row for names that agree."""
    rows: dict[str, dict[str, Any]] = {}
    for name in names("vision_transformer") + names("deit") + names("eva"):
        model = timm.create_model(name, depth=1, device="meta")
        norms = [part for part in model.modules() if "norm" in type(part).__name__.lower()]
        rotary = model.pos_embed is None
        tensors, left_over = renamed(model.state_dict(), TIMM_DINOV3 if rotary else TIMM)
        if left_over or len({norm_word(norm) for norm in norms}) > 1 or not norm_word(norms[0]):
            continue
        block = model.blocks[0]
        assert {norm.eps for norm in norms} == {block.norm1.eps}, name
        row = {
            "shape": shape_of(tensors),
            "heads": block.attn.num_heads,
            "mlp": activation_word(block.mlp.act),
            "norm_eps": block.norm1.eps,
            "pool": {"token": "class", "avg": "mean", "map": "map"}[model.global_pool],
            "prefix": getattr(model, "pool_include_prefix", False),
            "norm": norm_word(block.norm1),
            "blocks": {"ResPostBlock": "post-norm"}.get(type(block).__name__, "pre-norm"),
            "rotary": rotary,
            "placed": not model.no_embed_class or rotary,
        }
        usual = {field.name: field.default for field in fields(Architecture)}
        row = {key: value for key, value in row.items() if value != usual[key]}
        rows.setdefault(json.dumps(row), row | {"names": ""})["names"] += f" {name}"
    return [row | {"names": row["names"].strip()} for row in rows.values()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="*", help="a pattern of names")
    parser.add_argument("--json", type=Path, help="a file for the outcome of each name")
    parser.add_argument("--table", type=Path, help="write what the names stand for to this file, and end")
    arguments = parser.parse_args()
    if arguments.table:
        arguments.table.write_text("[\n" + ",\n".join(map(json.dumps, table())) + "\n]\n")
        return
    started_at = time.perf_counter()
    groups: dict[str, dict[str, dict[str, str]]] = {}
    for group, name, model in models(arguments.only):
        with tempfile.TemporaryDirectory() as folder:
            row = groups.setdefault(group, {})[name] = outcomes(model, Path(folder))
        print(f"{name:45}", *(f"{kind_of(one):10}" for one in row.values()), file=sys.stderr, flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps(groups, indent=1))
    for group, rows in groups.items():
        show(group, rows)
    print(f"\ntimm {timm.__version__}, torch {torch.__version__}, {time.perf_counter() - started_at:.0f} s")


def kind_of(outcome: str) -> str:
    word = outcome.partition(" ")[0]
    return word if word in ("equal", "DIFFERENT", "CRASHED") else "refused"


def show(group: str, rows: dict[str, dict[str, str]]) -> None:
    for way in WAYS:
        counts = Counter(kind_of(row[way]) for row in rows.values())
        print(f"\n{group}, {way}, {len(rows)} names:", ", ".join(f"{count} {kind}" for kind, count in counts.items()))
        causes: dict[str, list[str]] = {}
        for name, row in rows.items():
            causes.setdefault(cause(row[way]), []).append(name)
        for words, names in sorted(causes.items(), key=lambda pair: -len(pair[1])):
            if words != "equal":
                shown = names[:2] if kind_of(words) == "refused" else names
                print(f"  {len(names):4}  {words}  [{', '.join(shown)}]")


if __name__ == "__main__":
    main()
