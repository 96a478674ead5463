"""Bourke's slides, exactly theirs: ViT-B/16 from nothing on 225 photographs of food.     vitral train bourke-food

His: no number on the slides; in his notebook one answer for every picture. Ours: 33.3 % of the 75 test pictures, one
answer for every picture too (seed 0, bfloat16, 25 minutes of one thread of a busy machine, torch 2.13.0).
All of train and no validation set, pixels from 0 to 1, no augmentation, as in the source. With `model.start=random` the
class token and the positions start as in his notebook.
"""

from vitral.model.kinds import BourkeConfig
from vitral.recipes.tutorial_food import tutorial_food

bourke_food = tutorial_food.model_copy(
    update={
        "model": BourkeConfig(classes=3),
        "train": tutorial_food.train.model_copy(update={"test_curve": True}),
    }
)
