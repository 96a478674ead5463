"""225 photographs of food, and ViT-Ti/16 as it is: only a head learns.     vitral train food-features

Accuracy: not measured yet.
"""

from vitral.recipe import AdamW, Init, Recipe, Train
from vitral.recipes.tiny16 import WEIGHTS, photographs, tiny16

food_features = Recipe(
    model=tiny16(),
    data=photographs("food"),
    init=Init(weights=WEIGHTS, mode="probe"),
    train=Train(epochs=60, batch_size=32, optimizer=AdamW(learning_rate=3e-3)),
)
