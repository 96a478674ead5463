"""Vitral: a Vision Transformer that one can read, train on one's own pictures, look into, and hand on.

The public names, loaded on first use: importing vitral loads no torch and changes nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitral.classifier import Classifier
    from vitral.data.preprocess import Preprocess
    from vitral.errors import DataError, RecipeError, RunError, VitralError, WeightsError
    from vitral.evaluation.embed import embed
    from vitral.evaluation.evaluate import Evaluation, evaluate
    from vitral.evaluation.probe import probe
    from vitral.look.maps import attention_maps
    from vitral.model.config import ViTConfig
    from vitral.model.patches import patchify, unpatchify
    from vitral.model.vit import ViT
    from vitral.predictions import Prediction
    from vitral.progress import Progress
    from vitral.recipe import Recipe
    from vitral.run import Run
    from vitral.training.loop import Finished, Saved, Scored, Started, Step, events, train
    from vitral.training.session import Epoch
    from vitral.version import __version__
    from vitral.weights.own import Weights, write_weights
    from vitral.weights.pretrained import Pretrained, load_pretrained

_HOMES = {
    "Classifier": "vitral.classifier",
    "DataError": "vitral.errors",
    "Epoch": "vitral.training.session",
    "Evaluation": "vitral.evaluation.evaluate",
    "Finished": "vitral.training.loop",
    "Packing": "vitral.training.loop",  # the old name of Progress
    "Prediction": "vitral.predictions",
    "Preprocess": "vitral.data.preprocess",
    "Pretrained": "vitral.weights.pretrained",
    "Progress": "vitral.progress",
    "Recipe": "vitral.recipe",
    "RecipeError": "vitral.errors",
    "Run": "vitral.run",
    "RunError": "vitral.errors",
    "Saved": "vitral.training.loop",
    "Scored": "vitral.training.loop",
    "Started": "vitral.training.loop",
    "Step": "vitral.training.loop",
    "ViT": "vitral.model.vit",
    "ViTConfig": "vitral.model.config",
    "VitralError": "vitral.errors",
    "Weights": "vitral.weights.own",
    "WeightsError": "vitral.errors",
    "__version__": "vitral.version",
    "attention_maps": "vitral.look.maps",
    "embed": "vitral.evaluation.embed",
    "evaluate": "vitral.evaluation.evaluate",
    "events": "vitral.training.loop",
    "load_pretrained": "vitral.weights.pretrained",
    "patchify": "vitral.model.patches",
    "probe": "vitral.evaluation.probe",
    "train": "vitral.training.loop",
    "unpatchify": "vitral.model.patches",
    "write_weights": "vitral.weights.own",
}

__all__ = [
    "Classifier",
    "DataError",
    "Epoch",
    "Evaluation",
    "Finished",
    "Prediction",
    "Preprocess",
    "Pretrained",
    "Progress",
    "Recipe",
    "RecipeError",
    "Run",
    "RunError",
    "Saved",
    "Scored",
    "Started",
    "Step",
    "ViT",
    "ViTConfig",
    "VitralError",
    "Weights",
    "WeightsError",
    "__version__",
    "attention_maps",
    "embed",
    "evaluate",
    "events",
    "load_pretrained",
    "patchify",
    "probe",
    "train",
    "unpatchify",
    "write_weights",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'vitral' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
