"""CIFAR-10 within minutes on two cores.     vitral train cifar10 train.budget=10m

Ten minutes alone on 2 cores (x86 with AVX-512, no GPU, torch 2.13.0) are 2,099 steps, 5.4 epochs. After so many steps
(train.budget=2099steps): 85.1 ± 0.3 % of the test pictures (84.9, 85.0, 85.5: seeds 0, 1, 2). How it was found:
docs/decisions/0009-the-quick-recipes.md.
"""

from vitral.data.config import Augment, Data
from vitral.recipe import Recipe
from vitral.recipes.quick import quick_model, quick_train

cifar10 = Recipe(
    model=quick_model(image_size=32, patch_size=4, channels=3, classes=10),
    data=Data(source="cifar10", augment=Augment(pad=2, flip="alternating", outside="mirror")),
    train=quick_train(budget="10m"),
)
