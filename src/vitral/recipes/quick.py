"""What the quick recipes share: a small ViT behind a measured first layer, and a training that uses every minute.

How it was found, and what each part of it is worth: docs/decisions/0009-the-quick-recipes.md.
"""

from vitral.model.config import Attend, Blocks, Mlp, Pool, Stem, Tokens, ViTConfig
from vitral.training.config import Muon, Rising, Schedule, Train


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


def quick_train(budget: str, batch_size: int = 128, baseline: bool = False) -> Train:
    """Half of the patches are enough at first."""
    return Train(
        baseline=baseline,
        budget=budget,
        batch_size=batch_size,
        optimizer=Muon(learning_rate=0.03, adamw_learning_rate=3e-3, adamw_betas=(0.9, 0.98)),
        schedule=Schedule(kind="linear"),
        label_smoothing=0.1,
        patches=Rising(start=0.5, until=0.6),
    )
