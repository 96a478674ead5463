"""The walk through DINO's code: its weights at another size, where only a head learns.     vitral train dino-walk

The weights are ViT-S/16 as DINO trained it, made for 224 pixels; here pictures have 320, so the table of positions is
resampled from 14×14 to 20×20 as DINO's code does it, with its 0.1 (`positions.resample = "dino"`). What the
walk-through draws: `vitral look RUN PICTURE`.

Accuracy: not measured. The weights are fetched from the Hub (87 MB), which could not be reached where the other
recipes were measured. What is tested is a small model by DINO's own code (tests/fixtures/dino_reference): this recipe
takes it to another size, trains a head, and its tokens are those of that code to 1e-5 (tests/test_tutorials.py).
"""

from vitral.data.config import Data
from vitral.model.config import Positions, ViTConfig
from vitral.recipe import Recipe
from vitral.training.config import AdamW, Init, Train

dino_walk = Recipe(
    model=ViTConfig(
        image_size=320,
        patch_size=16,
        channels=3,
        width=384,
        depth=12,
        heads=6,
        classes=0,
        positions=Positions(resample="dino"),
    ),
    data=Data(source="food", interpolation="bicubic", mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
    init=Init(weights="hf:timm/vit_small_patch16_224.dino", mode="probe"),
    train=Train(epochs=60, batch_size=32, optimizer=AdamW(learning_rate=3e-3)),
)
