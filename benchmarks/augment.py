"""How fast pictures are augmented: ours in two threads, Pillow in two processes, and kornia if it can be imported.

    python benchmarks/augment.py [repeats]

Runs take turns, so that a busy machine is unfair to all alike; what is printed is the median of the repeats, and ratios
are medians of the ratios of neighbouring runs. kornia is no dependency: `pip install --no-deps --target DIR kornia
kornia_rs` and PYTHONPATH=DIR bring it in. Its RandAugment draws its operations once for a batch, ours for each picture.
"""

import math
import os
import random
import sys
import time
from collections.abc import Callable
from statistics import median

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from sklearn.datasets import load_sample_image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from vitral.data.augment import augment
from vitral.data.config import Augment
from vitral.data.threads import one_core_each
from vitral.model.config import ViTConfig
from vitral.model.vit import ViT

WORKERS = 2
CASES: dict[str, tuple[int, int, int, dict[str, object]]] = {  # name → stored side, side, batch, settings
    "32 px: crop, flip, RandAugment, erase": (
        32,
        32,
        128,
        {"crop": 0.2, "flip": "random", "policy": "rand", "erase": 0.25},
    ),
    "32 px: pad 4, flip": (32, 32, 128, {"pad": 4, "flip": "random"}),
    "224 px: crop, flip": (256, 224, 64, {"crop": 0.2, "flip": "random"}),
    "224 px: crop, flip, RandAugment": (256, 224, 64, {"crop": 0.2, "flip": "random", "policy": "rand"}),
    "224 px: crop, flip, jitter": (
        256,
        224,
        64,
        {"crop": 0.2, "flip": "random", "brightness": 0.3, "contrast": 0.3, "saturation": 0.3},
    ),
    "224 px: crop, flip, 3-Augment, jitter": (
        256,
        224,
        64,
        {"crop": 0.2, "flip": "random", "policy": "three", "brightness": 0.3, "contrast": 0.3, "saturation": 0.3},
    ),
}


def stored(side: int, count: int) -> Tensor:
    """(count, 3, side, side) of uint8: parts of a photograph, none alike."""
    photo = load_sample_image("china.jpg")
    places = np.random.default_rng(0)
    tops, lefts = (places.integers(0, length - side, count) for length in photo.shape[:2])
    parts = [photo[top : top + side, left : left + side] for top, left in zip(tops, lefts, strict=True)]
    return torch.from_numpy(np.stack(parts)).permute(0, 3, 1, 2).contiguous()


# Pillow, as torchvision's transforms call it


class Pictures(Dataset[Tensor]):
    """Each picture augmented by Pillow: (H, W, 3) of uint8, which is cheaper to hand over than float."""

    def __init__(self, images: Tensor, side: int, how: Augment, batches: int) -> None:
        self.images = images.permute(0, 2, 3, 1).contiguous().numpy()
        self.side, self.how, self.batches = side, how, batches

    def __len__(self) -> int:
        return len(self.images) * self.batches

    def __getitem__(self, number: int) -> Tensor:
        image = Image.fromarray(self.images[number % len(self.images)])
        return torch.from_numpy(_erased(np.array(_changed(image, self.side, self.how)), self.how))


def _changed(image: Image.Image, side: int, how: Augment) -> Image.Image:
    if how.crop:
        area = random.uniform(how.crop, 1) * image.width * image.height
        aspect = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        width, height = min(math.sqrt(area * aspect), image.width), min(math.sqrt(area / aspect), image.height)
        left, top = random.uniform(0, image.width - width), random.uniform(0, image.height - height)
        box = (left, top, left + width, top + height)
        image = image.resize((side, side), Image.Resampling.BILINEAR, box)
    if how.pad:
        image = ImageOps.expand(image, how.pad)
        left, top = random.randint(0, 2 * how.pad), random.randint(0, 2 * how.pad)
        image = image.crop((left, top, left + side, top + side))
    if random.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    if how.policy.kind == "rand":
        for _ in range(2):
            image = random.choice(RAND)(image, random.choice((-0.3, 0.3)))
    if how.policy.kind == "three":
        image = random.choice(THREE)(image)
    for share, enhance in zip(
        (how.brightness, how.contrast, how.saturation),
        (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color),
        strict=True,
    ):
        if share:
            image = enhance(image).enhance(random.uniform(1 - share, 1 + share))
    return image


def _moved(image: Image.Image, *matrix: float) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR)


RAND: list[Callable[[Image.Image, float], Image.Image]] = [  # 0.3 of the full strength, which is magnitude 9 of 30
    lambda image, s: image,
    lambda image, s: _moved(image, 1, s * 0.3, 0, 0, 1, 0),
    lambda image, s: _moved(image, 1, 0, 0, s * 0.3, 1, 0),
    lambda image, s: _moved(image, 1, 0, s * 150 / 331 * image.width, 0, 1, 0),
    lambda image, s: _moved(image, 1, 0, 0, 0, 1, s * 150 / 331 * image.height),
    lambda image, s: image.rotate(s * 30, Image.Resampling.BILINEAR),
    lambda image, s: ImageEnhance.Brightness(image).enhance(1 + 0.9 * s),
    lambda image, s: ImageEnhance.Color(image).enhance(1 + 0.9 * s),
    lambda image, s: ImageEnhance.Contrast(image).enhance(1 + 0.9 * s),
    lambda image, s: ImageEnhance.Sharpness(image).enhance(1 + 0.9 * s),
    lambda image, s: ImageOps.posterize(image, 7),
    lambda image, s: ImageOps.solarize(image, 179),
    lambda image, s: ImageOps.autocontrast(image),
    lambda image, s: ImageOps.equalize(image),
]
THREE: list[Callable[[Image.Image], Image.Image]] = [
    lambda image: image.convert("L").convert("RGB"),
    lambda image: ImageOps.solarize(image, 128),
    lambda image: image.filter(ImageFilter.GaussianBlur(random.uniform(0.1, 2))),
]


def _erased(pixels: np.ndarray, how: Augment) -> np.ndarray:
    if random.random() < how.erase:
        side = int(math.sqrt(random.uniform(0.02, 1 / 3)) * len(pixels))
        top, left = random.randint(0, len(pixels) - side), random.randint(0, len(pixels) - side)
        pixels[top : top + side, left : left + side] = np.random.randint(0, 256, (side, side, 3))
    return pixels


# The three, each as a function that makes so many batches


def ours(images: Tensor, side: int, how: Augment) -> Callable[[int], None]:
    """In two threads, each making a batch at a time, as training has it."""
    samples, pool = np.arange(len(images)), one_core_each(WORKERS)

    def one(epoch: int) -> None:
        augment(images, how, size=(side, side), seed=0, epoch=epoch, samples=samples)

    def run(batches: int) -> None:
        list(pool.map(one, range(batches)))

    return run


def pillow(images: Tensor, side: int, how: Augment) -> Callable[[int], None]:
    loaders: dict[int, DataLoader[Tensor]] = {}

    def run(batches: int) -> None:
        if batches not in loaders:
            pictures = Pictures(images, side, how, batches)
            loaders[batches] = DataLoader(pictures, len(images), num_workers=WORKERS, persistent_workers=True)
        for made in loaders[batches]:
            made.permute(0, 3, 1, 2).float()

    return run


def kornia(images: Tensor, side: int, how: Augment) -> Callable[[int], None] | None:
    try:
        import kornia.augmentation as K  # type: ignore[import-not-found]
        from kornia.augmentation.auto import RandAugment  # type: ignore[import-not-found]
    except ImportError:
        return None
    if how.policy.kind == "three" or how.pad:
        return None
    steps = [K.RandomResizedCrop((side, side), scale=(how.crop, 1.0)), K.RandomHorizontalFlip()]
    if how.policy.kind == "rand":
        steps.append(RandAugment(n=2, m=9))
    if how.brightness:
        steps.append(K.ColorJitter(how.brightness, how.contrast, how.saturation, p=1.0))
    if how.erase:
        steps.append(K.RandomErasing(p=how.erase))

    def run(batches: int) -> None:
        for _ in range(batches):
            made = images.float() / 255
            for step in steps:
                made = step(made)

    return run


def vit_step(batch: int) -> Callable[[int], None]:
    """A training step of ViT-S/16 at 224 px."""
    model = ViT(ViTConfig(image_size=224, patch_size=16, width=384, depth=12, heads=6, classes=1000))
    optimizer = torch.optim.AdamW(model.parameters())
    images, labels = torch.randn(batch, 3, 224, 224), torch.arange(batch)

    def run(batches: int) -> None:
        for _ in range(batches):
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            optimizer.zero_grad()

    return run


def seconds(run: Callable[[int], None], batches: int) -> float:
    started_at = time.perf_counter()
    run(batches)
    return time.perf_counter() - started_at


def compare(name: str, repeats: int) -> None:
    inside, side, batch, settings = CASES[name]
    how, images, batches = Augment.read(settings), stored(inside, batch), 16 if side < 64 else 4
    made = {"ours": ours, "Pillow, 2 processes": pillow, "kornia": kornia}
    runs = {who: run for who, make in made.items() if (run := make(images, side, how))}
    for run in runs.values():
        run(batches)  # warm, and the processes started
    took: dict[str, list[float]] = {who: [] for who in runs}
    for _ in range(repeats):
        for who, run in runs.items():
            took[who].append(seconds(run, batches))
    for who, times in took.items():
        ratio = median(other / mine for other, mine in zip(times, took["ours"], strict=True))
        print(f"{name:40} {who:20} {batch * batches / median(times):8,.0f} img/s   ours is {ratio:5.2f} times as fast")


def share_of_a_step(repeats: int) -> None:
    batch = 16
    step = vit_step(batch)
    step(1)
    for name, (inside, side, _, settings) in CASES.items():
        if side == 224:
            run = ours(stored(inside, batch), side, Augment.read(settings))
            run(2)
            shares = [seconds(run, 2) / 2 / seconds(step, 1) for _ in range(repeats)]
            print(f"{name:40} {100 * median(shares):5.1f} % of a training step of ViT-S/16, batch {batch}")


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    print(f"{WORKERS} threads or processes, {repeats} repeats, load before: {os.getloadavg()[0]:.1f}")
    for name in CASES:
        compare(name, repeats)
    share_of_a_step(repeats)
    print(f"load after: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
