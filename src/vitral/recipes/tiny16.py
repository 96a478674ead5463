"""What the recipes share that start from ViT-Ti/16: its model, and the pictures as it saw them.

They need the weights `vit_tiny_patch16_224` (augreg, ImageNet-21k and then ImageNet; 23 MB): `vitral fetch
vit_tiny_patch16_224`, or init.weights=hf:timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k. Their scores were measured
with a copy of those in float16, which was not compared with timm's file.
"""

from vitral.data.config import Augment, Data, Scale
from vitral.model.config import ViTConfig
from vitral.training.config import AdamW, Train

WEIGHTS = "vit_tiny_patch16_224"


def tiny16(image_size: int = 224) -> ViTConfig:
    return ViTConfig(image_size=image_size, patch_size=16, channels=3, width=192, depth=12, heads=3, classes=0)


def photographs(source: str, augment: Augment | None = None) -> Data:
    """The shorter side of a photograph to 248 pixels, and of that the middle 224."""
    return Data(
        source=source,
        resize=Scale(kind="shortest", share=224 / 248, rounding="even"),
        interpolation="bicubic",
        mean=(0.5,) * 3,
        std=(0.5,) * 3,
        augment=augment or Augment(),
    )


# Of a photograph a part is looked at, another each time, and half of them mirrored.
CHANGED = Augment(crop=0.5, flip="random")


def gentle(epochs: int) -> Train:
    """For a few hundred photographs."""
    return Train(
        epochs=epochs,
        batch_size=32,
        optimizer=AdamW(learning_rate=5e-4),
        warmup=0.1,
        clip=1.0,
        label_smoothing=0.1,
    )
