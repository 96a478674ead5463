"""MNIST within minutes on two cores.     vitral train mnist train.budget=10m

Not measured yet.
"""

from vitral.data.config import Augment, Data
from vitral.recipe import Recipe
from vitral.recipes.quick import quick_model, quick_train

mnist = Recipe(
    model=quick_model(image_size=28, patch_size=4, channels=1, classes=10),
    data=Data(source="mnist", augment=Augment(rotate=10, zoom=0.1, shear=8, shift=0.08)),
    train=quick_train(budget="10m"),
)
