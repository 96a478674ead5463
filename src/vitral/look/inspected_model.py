"""A model under inspection: its answers, its attention and its maps for one picture."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitral.data.threads import one_core_each
from vitral.errors import DataError, RecipeError
from vitral.inference import Inference, Source, load_calibrated, name_of_source
from vitral.look import windows
from vitral.look.maps import as_attending, each_block, layout_of, queries_of
from vitral.look.readings import FOR_A_CLASS, METHODS, class_attention
from vitral.model.shapes import shapes
from vitral.model.swin import Swin
from vitral.model.swin_config import SwinConfig
from vitral.plugin import Code
from vitral.predictions import Prediction, prediction_of
from vitral.targets import columns, one_class
from vitral.weights.calibration import Calibration
from vitral.weights.own import Weights
from vitral.weights.pretrained import Pretrained

Pixels = NDArray[np.uint8]  # (C, H, W): what the model sees of a picture

SMALL = 4 * 10**9  # operations per image, below which a second core waits more than it works
MOST_MAPS = 400 * 2**20  # bytes of attention of one picture that a page can hold


@dataclass(frozen=True)
class Answer:
    """The probability of each class, or what each output says of other targets; and the distance of the picture from
    those that the model learnt from (above 1: it is unlike them all)."""

    probabilities: NDArray[np.float32]  # (classes,)
    distance: float | None
    prediction: Prediction

    def top(self, count: int) -> list[int]:
        """The numbers of the `count` most probable classes, the most probable first."""
        return [int(label) for label in np.argsort(-self.probabilities, kind="stable")[:count]]


class InspectedModel:
    """A model with its preprocessing, class names and calibration.

    Several threads may call it: one worker thread computes for them all, one after another. Maps by gradients put hooks
    on the model while it runs; and each thread that computes would start helpers of its own, which get in each other's
    way.

    >>> from vitral.data.preprocess import Preprocess
    >>> from vitral.model.vit import ViT, ViTConfig
    >>> model = ViT(ViTConfig(image_size=8, patch_size=4, channels=1, width=16, depth=1, heads=2, classes=2))
    >>> preprocess = Preprocess(image_size=(8, 8), channels=1, mean=(0.5,), std=(0.5,))
    >>> inspected = InspectedModel("cats", Weights(model, preprocess, ("cat", "dog")))
    >>> inspected.answer(np.zeros((1, 8, 8), np.uint8), off=[3]).probabilities
    array([0.5, 0.5], dtype=float32)
    """

    def __init__(self, name: str, weights: Weights, calibration: Calibration | None = None) -> None:
        self.name = name
        self.model = as_attending(weights.model)
        self.model.eval()
        self.inference = Inference(weights, calibration)
        self.preprocess = weights.preprocess
        names = weights.class_names
        unnamed = isinstance(weights, Pretrained) and weights.loaded and names == tuple(map(str, range(len(names))))
        # Where the classes have no names, a number would look like an answer.
        self.class_names = tuple(f"class {name}" for name in names) if unnamed else names
        self.targets = weights.other_targets or one_class(self.class_names)
        self.calibration = calibration
        self.notes = weights.notes  # what had to be guessed of it
        self.layout = layout_of(self.model, self.preprocess.image_size)
        is_small = sum(row.flops * row.times for row in shapes(self.model.config)) < SMALL
        self._worker = one_core_each(1) if is_small else ThreadPoolExecutor(1)

    @classmethod
    def load(cls, source: Source, code: Code = ()) -> "InspectedModel":
        """The model of a run, of weights of any library, or in memory. Without classes it has maps and no answers."""
        weights, calibration = load_calibrated(source, code)
        if not isinstance(source, str | Path):
            return cls(name_of_source(source), weights, calibration)
        path = Path(source)
        if path.is_file() and path.stem == "model":
            path = path.resolve().parent  # the name of the folder says more
        return cls((path.resolve() if path.is_dir() else path).name, weights, calibration)

    @property
    def methods(self) -> list[str]:
        """The names in METHODS that this model allows."""
        return [name for name in METHODS if name != FOR_A_CLASS or self.class_names]

    @property
    def tokens(self) -> int:
        """How many tokens a picture becomes."""
        return self.layout.patches.stop

    @property
    def maps_bytes(self) -> int:
        """The size of all attention of one picture in bytes, as `maps` gives it."""
        return 2 * sum(self.heads) * self.tokens**2

    @property
    def heads(self) -> list[int]:
        """How many each block has."""
        config = self.model.config
        if isinstance(config, SwinConfig):
            return [heads for heads, depth in zip(config.heads, config.depths, strict=True) for _ in range(depth)]
        return [config.heads] * config.depth

    def page_facts(self) -> dict[str, Any]:
        """The facts about the model that the page of the glass needs, as JSON."""
        config, size = self.model.config, self.maps_bytes
        too_large = (
            f"The attention of one picture has {size // 2**20:,} MB here ({self.tokens:,} tokens), too much for a "
            "page. The prediction and the maps of the whole model are there."
        )
        # Attention itself the page has block by block.
        methods = [name for name in self.methods if name not in ("attention", "mean-attention")]
        fixed = ""
        if isinstance(self.model, Swin):
            fixed = "A Swin Transformer looks at whole windows: no patch can be left out."
            answer: Sequence[int] = range(self.tokens)
        else:
            answer = queries_of(self.model, torch.empty(0, config.channels, *self.preprocess.image_size), "answer")
            if self.model.config.positions.kind == "relative":
                fixed = "With relative positions no patch can be left out: distances are counted in patches."
        return {
            "name": self.name,
            "image_size": self.preprocess.image_size,
            "grid": self.layout.grid,
            "extra": self.layout.extra,
            "answer": list(answer),
            "depth": config.depth,
            "heads": self.heads,
            "classes": config.classes,
            "output": "label" if self.targets[0].kind == "labels" else "class",
            "methods": methods,
            "no_maps": too_large if size > MOST_MAPS else "",
            "fixed": fixed,
        }

    def answer(self, pixels: Pixels, off: Sequence[int] = ()) -> Answer | None:
        """The answer to a picture without the patches of the numbers `off`; None where the model has no classes."""
        keep = self._remaining(off)
        if not self.class_names:
            return None
        return self._worker.submit(self._compute_answer, pixels, keep).result()

    def _compute_answer(self, pixels: Pixels, keep: torch.Tensor | None) -> Answer:
        outputs = self.inference.outputs(self.images(pixels), keep)
        distances, inference = self.inference.distances(outputs), self.inference
        values = inference.values(outputs)[0].numpy()
        distance = None if distances is None else distances.item()
        prediction = prediction_of(values, self.targets, distance, inference.thresholds, inference.margins)
        return Answer(values, distance, prediction)

    def target_of(self, output: int) -> tuple[int, slice]:
        """The place of the target that an output belongs to, and all outputs of that target."""
        places = enumerate(columns(self.targets))
        return next((place, mine) for place, mine in places if mine.start <= output < mine.stop)

    def maps(self, pixels: Pixels) -> Iterator[bytes]:
        """The attention of each block, (heads, T, T) in float16: enough for a share of 0.00001 to be seen."""
        if self.maps_bytes > MOST_MAPS:
            raise RecipeError(self.page_facts()["no_maps"])
        model, images = self.model, self.images(pixels)
        blocks = windows.each_block(model, images) if isinstance(model, Swin) else each_block(model, images)
        for _ in range(self.model.config.depth):
            yield self._worker.submit(_next_half, blocks).result()

    def reading(self, pixels: Pixels, method: str, label: int | None = None) -> NDArray[np.float32]:
        """A map over the patches by one of METHODS, (down, across); `class-attention` for the class `label`."""
        if method not in METHODS:
            raise RecipeError(f"There is no method {method}. There are: {', '.join(METHODS)}.")
        if label is not None and method != FOR_A_CLASS:
            raise RecipeError(f"The method {method} is the same for every class.")
        return self._worker.submit(self._compute_map, pixels, method, label).result()

    def _compute_map(self, pixels: Pixels, method: str, label: int | None) -> NDArray[np.float32]:
        images = self.images(pixels)
        if label is None:
            maps = METHODS[method](self.model, images)
        else:
            kinds = [target.kind for target in self.targets for _ in target.names]  # of each output
            of_number = kinds[label : label + 1] == ["number"]
            maps = class_attention(self.model, images, torch.tensor([label]), of_number=of_number)
        return maps[0].detach().float().cpu().numpy()

    def images(self, pixels: Pixels) -> torch.Tensor:  # → (1, C, H, W)
        """The pixels as a normalised batch of one, on the device of the model."""
        images = self.preprocess.normalise(torch.from_numpy(pixels))[None]
        return images.to(next(self.model.parameters()))

    def _remaining(self, off: Sequence[int]) -> torch.Tensor | None:  # → (1, K)
        """The numbers of all patches but `off`; None: all."""
        if not off:
            return None
        count = self.layout.grid[0] * self.layout.grid[1]
        for number in off:
            if not 0 <= number < count:
                raise DataError(f"There is no patch {number}: the picture has {count}, numbered 0 to {count - 1}.")
        numbers = sorted(set(range(count)) - set(off))
        if not numbers:
            raise DataError("All patches are switched off, and there is nothing left to look at. Leave one on.")
        return torch.tensor([numbers], device=next(self.model.parameters()).device)


def _next_half(blocks: Iterator[tuple[int, torch.Tensor]]) -> bytes:
    """The next block's maps in float16."""
    _, shares = next(blocks)  # (1, heads, T, T)
    return shares[0].to(torch.float16).cpu().numpy().astype("<f2", copy=False).tobytes()
