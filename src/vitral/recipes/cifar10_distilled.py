"""CIFAR-10 within minutes, with a CNN as teacher.     vitral train cifar10-distilled

86.4 % of the 10,000 test pictures (85.7 to 87.0 %; seed 0) after 1,810 steps (train.budget=1810steps): what is left of
the 2,099 steps that ten minutes are without the teacher (`cifar10`: 84.9 % with seed 0), if its one pass through the
pictures takes 78 s. What was tried: docs/decisions/0013-a-teacher-that-shows.md.
"""

from vitral.recipe import Teacher
from vitral.recipes.cifar10 import cifar10

# The teacher looks at each picture once, a minute or more of the ten; at every step it would take half of them.
cifar10_distilled = cifar10.model_copy(
    update={"teacher": Teacher(source="cifar10_resnet56", kind="map", sees="picture", weight=0.5)}
)
