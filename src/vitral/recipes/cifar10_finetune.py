"""CIFAR-10 from ViT-Ti/16, its table of positions taken to 96 pixels.     vitral train cifar10-finetune

Accuracy: not measured yet (at least 92 % in 30 minutes on two cores is the aim).
"""

from vitral.data.config import Augment, Data
from vitral.recipe import AdamW, Init, Recipe, Train
from vitral.recipes.tiny16 import WEIGHTS, tiny16

cifar10_finetune = Recipe(
    model=tiny16(image_size=96),
    data=Data(
        source="cifar10",
        mean=(0.5,) * 3,
        std=(0.5,) * 3,
        augment=Augment(pad=6, flip="alternating", outside="mirror"),
    ),
    init=Init(weights=WEIGHTS, mode="gentle"),
    train=Train(
        budget="30m",
        batch_size=128,
        optimizer=AdamW(learning_rate=1e-3, weight_decay=0.05),
        warmup=0.1,
        clip=1.0,
        label_smoothing=0.1,
    ),
)
