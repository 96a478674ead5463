"""CIFAR-10 within minutes on two cores.     vitral train cifar10 train.budget=10m"""

from vitral.data.config import Augment, Data
from vitral.recipe import Recipe
from vitral.recipes.quick import quick_model, quick_train

cifar10 = Recipe(
    model=quick_model(image_size=32, patch_size=4, channels=3, classes=10),
    data=Data(source="cifar10", augment=Augment(pad=2, flip="alternating", outside="mirror")),
    train=quick_train(budget="10m"),
)
