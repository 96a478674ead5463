"""Ten classes of ImageNet, and ViT-Ti/16 as it is: only a head learns.     vitral train imagenette-mini-probe

Accuracy: not measured yet.
"""

from vitral.recipe import AdamW, Init, Recipe, Train
from vitral.recipes.tiny16 import WEIGHTS, photographs, tiny16

imagenette_mini_probe = Recipe(
    model=tiny16(),
    data=photographs("imagenette-mini"),
    init=Init(weights=WEIGHTS, mode="probe"),
    train=Train(epochs=60, batch_size=64, optimizer=AdamW(learning_rate=3e-3)),
)
