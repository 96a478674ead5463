"""A tutorial's ViT of width 48 on CIFAR-10.     vitral train tutorial-cifar10-b

Theirs: 64 % of the test pictures after 50 or 100 epochs.
Ours: not measured yet. All of train and no validation set, pixels from 0 to 1, no augmentation, as in the source.
"""

from vitral.data.config import Data
from vitral.model.config import Blocks, Mlp, Pool, ViTConfig
from vitral.recipe import AdamW, Recipe, Schedule, Train

tutorial_cifar10_b = Recipe(
    model=ViTConfig(
        image_size=32,
        patch_size=4,
        width=48,
        depth=4,
        heads=4,
        classes=10,
        mlp=Mlp(kind="gelu-tanh"),
        blocks=Blocks(norm_eps=1e-5, init_std=0.02),
        pool=Pool(norm="none"),
    ),
    data=Data(source="cifar10", mean=(0.0,) * 3, std=(1.0,) * 3),
    train=Train(
        epochs=100,
        batch_size=256,
        optimizer=AdamW(learning_rate=1e-2, weight_decay=1e-2, decay_on="all"),
        warmup=0.0,
        schedule=Schedule(kind="constant"),
    ),
)
