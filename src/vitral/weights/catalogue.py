"""Weights that are worth having: where they are, how large, under which licence, and what for. `vitral ls weights`.

Plain data. The sha256 are those that others publish for these addresses: for ViT-Ti/16 the tables of LibreYOLO and of
one more project, for ResNet-56 two projects and the first digits in its own file name. Nobody publishes exact sizes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from vitral.data.sources.named import RemoteFile


@dataclass(frozen=True)
class Known:
    """Weights on the Hugging Face Hub."""

    where: str
    parameters: int  # millions
    licence: str
    what_for: str

    @property
    def megabytes(self) -> int:
        """Of the file, four bytes a number."""
        return 4 * self.parameters


KNOWN = (
    Known("hf:timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k", 6, "Apache-2.0", "small and quick: photographs"),
    Known("hf:timm/vit_small_patch16_224.augreg_in21k_ft_in1k", 22, "Apache-2.0", "photographs, more exact"),
    Known("hf:facebook/deit-tiny-distilled-patch16-224", 6, "Apache-2.0", "DeiT: two tokens, taught by a CNN"),
    Known("hf:timm/vit_small_patch16_224.dino", 22, "Apache-2.0", "DINO: attention maps that show the subject"),
    Known("hf:facebook/dinov2-small", 22, "Apache-2.0", "DINOv2: features for few pictures, any subject"),
    Known("hf:facebook/dinov2-with-registers-small", 22, "Apache-2.0", "DINOv2 with registers: cleaner maps"),
    Known("hf:timm/vit_small_patch16_dinov3.lvd1689m", 22, "DINOv3 License", "DINOv3: features and maps, any size"),
    Known("hf:facebook/dinov3-vits16-pretrain-lvd1689m", 22, "DINOv3 License", "the same; its page asks for consent"),
    Known("hf:facebook/vit-mae-base", 112, "Apache-2.0", "MAE: to be trained further, not for features"),
)


@dataclass(frozen=True)
class NamedWeights:
    """Weights that recipes start from or learn from: `vitral fetch NAME` puts them into weights/NAME."""

    name: str
    what: str
    parameters: int
    licence: str
    cite: str
    file: RemoteFile  # a safetensors file; or a pickle, whose tensors become one
    about: Mapping[str, object] = field(hash=False)  # about.json: what the tensors do not tell
    hub: str = ""  # the same weights on the Hub

    @property
    def megabytes(self) -> float:
        """About, at four bytes a number."""
        return self.parameters * 4 / 1e6

    @property
    def is_pickle(self) -> bool:
        return not self.file.path.endswith(".safetensors")

    def is_here(self, directory: Path) -> bool:
        """Whether they are in the data directory, whole; any copy under this name counts."""
        folder = directory / "weights" / self.name
        return folder.is_dir() and any(path.suffix in (".safetensors", ".npz") for path in folder.iterdir())


_WEIGHTS = (
    NamedWeights(
        name="vit_tiny_patch16_224",
        what="ViT-Ti/16 (augreg), learnt on ImageNet-21k and then ImageNet",
        parameters=5_717_416,
        licence="Apache-2.0",
        cite="Steiner et al., How to train your ViT?, arXiv:2106.10270, 2021; weights as timm has them",
        file=RemoteFile(
            "https://huggingface.co/timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k/resolve/main/model.safetensors",
            "weights/vit_tiny_patch16_224/model.safetensors",
            0,
            "fecf81b492bd13ee7a5297cb74d1d417aac8bf7e1b7d96aed89c4691984587ed",
        ),
        about={
            "heads": 3,
            "norm_eps": 1e-6,
            "mlp": "gelu",
            "image_size": 224,
            "mean": [0.5, 0.5, 0.5],
            "std": [0.5, 0.5, 0.5],
            "resize": 248,
            "interpolation": "bicubic",
        },
        hub="hf:timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k",
    ),
    NamedWeights(
        name="cifar10_resnet56",
        what="ResNet-56, 93.4 % of CIFAR-10: a teacher",
        parameters=853_018,
        licence="BSD-2-Clause, copyright (c) 2018 Yerlan Idelbayev",
        cite="He et al., Deep Residual Learning, CVPR 2016; Idelbayev, Proper ResNet for CIFAR10",
        file=RemoteFile(
            "https://github.com/akamaster/pytorch_resnet_cifar10/raw/master/pretrained_models/resnet56-4bfd9763.th",
            "weights/cifar10_resnet56/model.th",
            0,
            "4bfd97631478d6b638d2764fd2baff3edb1d7d82252d54439343b6596b9b5367",
        ),
        about={"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]},
    ),
)
NAMED_WEIGHTS = {weights.name: weights for weights in _WEIGHTS}
