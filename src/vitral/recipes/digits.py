"""A small ViT on scikit-learn's 8×8 handwritten digits.     vitral train digits

Accuracy: not measured yet.
"""

from vitral.data.config import Augment, Data
from vitral.model.config import Mlp, ViTConfig
from vitral.recipe import Muon, Recipe, Schedule, Train

digits = Recipe(
    model=ViTConfig(image_size=8, patch_size=2, channels=0, width=64, depth=4, heads=4, classes=0, mlp=Mlp(ratio=4.0)),
    data=Data(source="digits", interpolation="box", augment=Augment(rotate=6.0, zoom=0.05, shift=0.06)),
    train=Train(
        epochs=40,
        batch_size=64,
        optimizer=Muon(learning_rate=0.02, adamw_learning_rate=0.002),
        schedule=Schedule(kind="linear"),
        label_smoothing=0.1,
        ema=0.98,
    ),
)
