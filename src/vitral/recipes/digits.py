"""A small ViT on scikit-learn's 8×8 handwritten digits.     vitral train digits

Test accuracy: 98.83 ± 0.46 % (mean ± sd of seeds 0 to 4; 360 pictures), 38 to 47 s a seed on 2 quiet cores (x86 with
AVX2, no GPU), Vitral 0.1.0, torch 2.13.0. How it was chosen: docs/decisions/0003-the-digits-recipe.md.
"""

from vitral.data.config import Augment, Data
from vitral.model.config import Positions, ViTConfig
from vitral.recipe import Recipe
from vitral.training.config import Muon, Schedule, Train

digits = Recipe(
    model=ViTConfig(
        image_size=8,
        patch_size=2,
        channels=0,
        width=64,
        depth=4,
        heads=4,
        classes=0,
        positions=Positions(std=0.5),
    ),
    data=Data(
        source="digits",
        interpolation="box",
        jpeg="scaled",
        augment=Augment(rotate=11.5, zoom=0.12, shear=8.5, shift=0.09),
    ),
    train=Train(
        epochs=80,
        batch_size=64,
        optimizer=Muon(learning_rate=0.005, weight_decay=1.0, adamw_learning_rate=0.01, adamw_weight_decay=0.05),
        warmup=0.1,
        schedule=Schedule(kind="linear"),
        label_smoothing=0.1,
        ema=0.99,
    ),
)
