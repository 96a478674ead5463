"""225 photographs of food, and all of ViT-Ti/16 learns a little.     vitral train food-finetune

Accuracy: not measured yet.
"""

from vitral.recipe import Init, Recipe
from vitral.recipes.tiny16 import CHANGED, WEIGHTS, gentle, photographs, tiny16

food_finetune = Recipe(
    model=tiny16(),
    data=photographs("food", CHANGED),
    init=Init(weights=WEIGHTS, mode="gentle"),
    train=gentle(epochs=8),
)
