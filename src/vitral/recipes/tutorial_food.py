"""Bourke's settings, and our plain ViT-B/16, from nothing on 225 photographs of food.     vitral train tutorial-food

Theirs stays at chance: so few pictures teach so large a model nothing.
So does ours: 33.3 and 25.3 % of the 75 test pictures after epochs 1 and 2 (21 minutes of one core, beside other work;
seed 0; vitral train tutorial-food train.test_curve=true). What others have learnt brings 96 %: docs/maker.md.
All of train and no validation set, pixels from 0 to 1, no augmentation, as in the source.
"""

from vitral.data.config import Data
from vitral.model.config import Blocks, Regularise, ViTConfig
from vitral.recipe import Recipe
from vitral.training.config import Adam, Schedule, Train

tutorial_food = Recipe(
    model=ViTConfig(
        image_size=224, patch_size=16, width=768, depth=12, heads=12, classes=3, blocks=Blocks(norm_eps=1e-5)
    ),
    data=Data(source="food", validation=0.0, mean=(0.0,) * 3, std=(1.0,) * 3),
    train=Train(
        epochs=10,
        batch_size=32,
        optimizer=Adam(learning_rate=3e-3, weight_decay=0.3, decay_on="all"),
        regularise=Regularise(dropout=0.1),
        warmup=0.0,
        schedule=Schedule(kind="constant"),
    ),
)
