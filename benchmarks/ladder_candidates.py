"""What the ladder tries: each candidate is the recipe `cifar10` with some settings, perhaps a model in a file of its
own (candidates/), and perhaps other optimizers. The order is that of what was expected of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from candidates import muons, race_cnn

from vitral.recipe import Recipe
from vitral.recipes.cifar10 import cifar10
from vitral.training.learner import Learner
from vitral.training.optimizers import Optimizers

FOLDER = Path(__file__).parent / "candidates"
ALL_PATCHES = {"train.patches": "fixed"}


@dataclass(frozen=True)
class Candidate:
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the recipe, by dotted names
    kind: str = ""  # of the model: a class in a file of candidates/; "": a ViT
    whole: bool = False  # that class has all settings of its own
    optimizers: Callable[[Learner], Optimizers] | None = None

    def recipe(self, **asked: Any) -> Recipe:
        """`cifar10` with its settings."""
        ours = {name: value for name, value in self.settings.items() if self.kind and name.startswith("model.")}
        others = {name: value for name, value in self.settings.items() if name not in ours}
        recipe = cifar10.changed({**others, **asked})
        if not self.kind:
            return recipe
        model = {} if self.whole else recipe.model.write()
        kept = {f"model.{name}": value for name, value in model.items() if name != "kind"}
        return recipe.changed({"model.kind": f"{FOLDER}/{self.kind}", **kept, **ours})


def changed(**settings: Any) -> Candidate:
    """The ViT with settings of the model: width=128."""
    return Candidate({f"model.{name}": value for name, value in settings.items()})


def trained(**settings: Any) -> Candidate:
    return Candidate({f"train.{name}": value for name, value in settings.items()})


def muon(**settings: Any) -> Candidate:
    return Candidate({f"train.optimizer.{name}": value for name, value in settings.items()})


def augmented(**settings: Any) -> Candidate:
    return Candidate({f"data.augment.{name}": value for name, value in settings.items()})


def rising(start: float, until: float = 0.6) -> dict[str, Any]:
    return {"kind": "rising", "start": start, "until": until}


RACE = {
    "train.label_smoothing": 0.2,
    "train.warmup": 0.0,
    **ALL_PATCHES,
}

CANDIDATES: dict[str, Candidate] = {
    "baseline": Candidate(),
    "gelu-erf": Candidate(kind="activations.py:Erf"),
    "stem-strided": Candidate(kind="stems.py:Strided"),
    "stem-pooled": Candidate(kind="stems.py:Pooled"),
    "near-mlp": Candidate(kind="near.py:InMlp"),
    "near-shortcut": Candidate(kind="near.py:OnShortcut"),
    "cnn": Candidate({**RACE, "train.batch_size": 256}, "race_cnn.py:RaceCnn", True, race_cnn.optimizers),
    "cnn-narrow": Candidate(
        {**RACE, "train.batch_size": 128, "model.widths": [32, 128, 128]},
        "race_cnn.py:RaceCnn",
        True,
        race_cnn.optimizers,
    ),
    "batch-64": trained(batch_size=64),
    "batch-96": trained(batch_size=96),
    "merged": Candidate(ALL_PATCHES, "merged.py:Merged"),
    "merged-deep": Candidate({**ALL_PATCHES, "model.depth": 6}, "merged.py:Merged"),
    "merged-wide": Candidate({**ALL_PATCHES, "model.width": 128, "model.heads": 4}, "merged.py:Merged"),
    "merged-early": Candidate({**ALL_PATCHES, "model.depth": 6, "model.merge_after": 1}, "merged.py:Merged"),
    "mimetic": Candidate(kind="first_values.py:Mimetic"),
    "impulse": Candidate({"model.positions": "sincos-2d"}, "first_values.py:Impulse"),
    "waves": changed(positions="sincos-2d"),  # what impulse is to be compared with
    "own-positions": Candidate(kind="own_positions.py:OwnPositions"),
    "no-qk-norm": changed(attention={"qk_norm": False}),
    "value-skip": Candidate(kind="value_skip.py:ValueSkip"),
    "relu2": Candidate(kind="activations.py:Squared"),
    "silu": Candidate(kind="activations.py:Silu"),
    "adamw-0.0015": muon(adamw_learning_rate=1.5e-3),
    "adamw-0.006": muon(adamw_learning_rate=6e-3),
    "adamw-0.012": muon(adamw_learning_rate=1.2e-2),
    "adamw-0.95": muon(adamw_betas=(0.9, 0.95)),
    "adamw-0.8": muon(adamw_betas=(0.8, 0.98)),
    "muon-0.015": muon(learning_rate=0.015),
    "muon-0.05": muon(learning_rate=0.05),
    "momentum-0.9": muon(momentum=0.9),
    "normuon": Candidate(optimizers=muons.instead(muons.NorMuon)),
    "polar-express": Candidate(optimizers=muons.instead(muons.PolarExpress)),
    "rising-momentum": Candidate(optimizers=muons.instead(muons.RisingMomentum)),
    "average": trained(ema=0.98),
    "average-flat": trained(ema=0.99, schedule="constant"),
    "warmup-0.02": trained(warmup=0.02),
    "warmup-0.15": trained(warmup=0.15),
    "smoothing-0.05": trained(label_smoothing=0.05),
    "smoothing-0.2": trained(label_smoothing=0.2),
    "patches-0.25": trained(patches=rising(0.25)),
    "patches-late": trained(patches=rising(0.5, 0.9)),
    "images-0.5": Candidate({**ALL_PATCHES, "train.image_size": rising(0.5)}),
    "images-0.75": Candidate({**ALL_PATCHES, "train.image_size": rising(0.75)}),
    "stem-32": changed(stem={"kind": "whitened", "channels": 32}),
    "stem-64": changed(stem={"kind": "whitened", "channels": 64}),
    "depth-3": changed(depth=3),
    "depth-6": changed(depth=6),
    "width-64": changed(width=64, heads=2),
    "width-128": changed(width=128, heads=4),
    "mlp-3": changed(mlp={"kind": "gelu-tanh", "ratio": 3.0}),
    "heads-6": changed(heads=6),
    "scale-0.3": changed(blocks={"layer_scale": 0.3}),
    "batch-256": trained(batch_size=256),
    "jitter": augmented(brightness=0.2, contrast=0.2),
    "pad-3": augmented(pad=3),
    "linear-patches": changed(stem={"kind": "linear"}),  # the second row: no convolution at all
    "cutmix": augmented(cutmix=1.0),
    "mixup": augmented(mixup=0.2),
    "erase": augmented(erase=0.25),
}

# What longer rungs try, of all that is above: the choice of the shorter ones, and what only a longer time can bear.
LONGER = {
    "10m": ("baseline", "cnn", "cnn-narrow", "depth-6", "width-128", "cutmix", "mixup", "pad-3"),
    "30m": ("baseline", "cnn", "depth-6", "width-128", "cutmix", "mixup"),
}
FINALISTS: tuple[str, ...] = ("baseline", "cnn")  # what is measured on the test pictures, at the very end
