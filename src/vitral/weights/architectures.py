"""The ViTs of timm by name, and what their tensors do not tell: heads, activation, epsilon, where the norms stand.

timm_architectures.json is made from timm itself, by `python benchmarks/timm_names.py --table FILE`.
"""

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from vitral.weights.names import Tensors

SOME_HAVE = (  # tensors that not every ViT has
    "cls_token",
    "dist_token",
    "reg_token",
    "patch_embed.norm.weight",
    "norm_pre.weight",
    "blocks.0.attn.qkv.bias",
    "blocks.0.attn.qv_bias.q",
    "blocks.0.attn.q_norm.weight",
    "blocks.0.ls1.gamma",
    "norm.weight",
    "fc_norm.weight",
    "attn_pool.latent",
)


@dataclass(frozen=True)
class Architecture:
    """Names of timm that differ in nothing but depth, patch and image size. What is usual is the default."""

    names: tuple[str, ...]
    shape: str  # see `shape_of`
    heads: int
    mlp: str = "gelu"
    norm_eps: float = 1e-6
    pool: str = "class"
    prefix: bool = False  # whether it pools class token and registers too
    blocks: str = "pre-norm"
    norm: str = "layer"
    rotary: bool = False  # as in DINOv3: there is no table of positions
    placed: bool = True  # whether class token and registers have rows in the table of positions


def shape_of(tensors: Tensors) -> str:
    """What a model has in any depth and for any patch and image size: the sizes of its MLP, and SOME_HAVE; and whether
    it has no table of positions.

    >>> import torch
    >>> tensors = {"blocks.0.mlp.fc1.weight": torch.zeros(8, 4), "blocks.0.mlp.fc2.weight": torch.zeros(4, 8)}
    >>> shape_of(tensors | {"cls_token": torch.zeros(1, 1, 4)})
    '4 8 8 cls_token no-table'
    """
    matrices = [tensors[name] for name in ("blocks.0.mlp.fc1.weight", "blocks.0.mlp.fc2.weight") if name in tensors]
    sizes = [str(size) for matrix in matrices for size in reversed(matrix.shape)][:3]
    table = [] if "pos_embed" in tensors else ["no-table"]
    return " ".join([*sizes, *(name for name in SOME_HAVE if name in tensors), *table])


@cache
def architectures() -> tuple[Architecture, ...]:
    rows = json.loads(files("vitral.weights").joinpath("timm_architectures.json").read_text(encoding="utf-8"))
    return tuple(Architecture(**row | {"names": tuple(row["names"].split())}) for row in rows)


def architecture_named(name: str) -> Architecture | None:
    """By its name, with or without the tag of some weights (vit_base_patch16_224.dino)."""
    return next((row for row in architectures() if name.partition(".")[0] in row.names), None)


def of_shape(tensors: Tensors) -> list[Architecture]:
    """Those whose tensors these could be; a last norm after the mean may be one that its makers had before it."""
    shape = shape_of(tensors)
    exact = [row for row in architectures() if row.shape == shape]
    return exact or [row for row in architectures() if row.shape == shape.replace("fc_norm.", "norm.")]
