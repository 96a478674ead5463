"""What the quick recipes share: a small ViT behind a measured first layer, and a training that uses every minute; and
small models of other kinds, for the same training.

How it was found, and what each part of it is worth: docs/decisions/0009-the-quick-recipes.md.
"""

from collections.abc import Callable

from vitral.model.config import Attend, Blocks, Mlp, ModelConfig, Pool, Stem, Tokens, ViTConfig
from vitral.model.resnet_config import ResNetConfig
from vitral.model.swin_config import SwinConfig
from vitral.training.config import Fixed, Muon, Rising, Schedule, Train


def quick_model(image_size: int | tuple[int, int], patch_size: int, channels: int = 0, classes: int = 0) -> ViTConfig:
    """No class token: a mean learns sooner. Norms on queries and keys and branches that start small bear high rates."""
    return ViTConfig(
        image_size=image_size,
        patch_size=patch_size,
        channels=channels,
        width=96,
        depth=4,
        heads=3,
        classes=classes,
        tokens=Tokens(kind="none"),
        stem=Stem(kind="whitened"),
        attention=Attend(qk_norm=True),
        mlp=Mlp(kind="gelu-tanh", ratio=2.0),
        blocks=Blocks(layer_scale=0.1),
        pool=Pool(kind="mean"),
    )


def quick_swin(image_size: int | tuple[int, int], patch_size: int, channels: int = 0, classes: int = 0) -> SwinConfig:
    """Two stages; its last map has as many places as the ViT has patches of that size."""
    return SwinConfig(
        image_size=image_size,
        patch_size=max(1, patch_size // 2),
        channels=channels,
        width=64,
        depths=(2, 2),
        heads=(2, 4),
        window=4,
        classes=classes,
        mlp=Mlp(kind="gelu-tanh", ratio=2.0),
    )


def quick_resnet(
    image_size: int | tuple[int, int], patch_size: int, channels: int = 0, classes: int = 0
) -> ResNetConfig:
    """Three stages of one block; for photographs, of which patches are large, the stem that makes them smaller."""
    return ResNetConfig(
        image_size=image_size,
        channels=channels,
        depths=(1, 1, 1),
        widths=(32, 64, 128, 256),
        stem="7x7" if patch_size >= 8 else "3x3",
        groups=8,
        classes=classes,
    )


QUICK: dict[str, Callable[[int | tuple[int, int], int], ModelConfig]] = {  # other kinds
    "swin": quick_swin,
    "resnet": quick_resnet,
}


def quick_train(budget: str, batch_size: int = 128, baseline: bool = False, kind: str = "vit") -> Train:
    """Half of the patches are enough at first, where the model can leave some out."""
    return Train(
        baseline=baseline,
        budget=budget,
        batch_size=batch_size,
        optimizer=Muon(learning_rate=0.03, adamw_learning_rate=3e-3, adamw_betas=(0.9, 0.98)),
        schedule=Schedule(kind="linear"),
        label_smoothing=0.1,
        patches=Rising(start=0.5, until=0.6) if kind == "vit" else Fixed(),
    )
