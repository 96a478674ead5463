"""A tensor becomes logits. Knows nothing of files, data or training."""

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from vitral.errors import RecipeError
from vitral.files import where_it_failed
from vitral.model.config import KINDS, ModelConfig, Regularise, UnresolvedConfig
from vitral.plugin import Plugin, is_plugin

if TYPE_CHECKING:
    from vitral.model.interface import Model


def build(config: ModelConfig, regularise: Regularise | None = None) -> "Model":
    """The model that a config describes, with new weights.

    >>> from vitral.model.config import ViTConfig
    >>> build(ViTConfig(image_size=32, patch_size=8, width=64, depth=2, heads=4, classes=10)).config.kind
    'vit'
    """
    kind = model_class(config)
    if not config.built_by:
        return kind(config, regularise)
    try:
        model = kind(config, regularise)
    except Exception as error:  # of code that is not ours
        raise RecipeError(f"model.kind {config.kind} cannot be built: {where_it_failed(error)}") from error
    if getattr(model, "config", None) != config:
        raise RecipeError(f"model.kind {config.kind} should keep its settings: self.config = config.")
    return model


def check_own(model: "Model") -> None:
    """See whether a model of the user's own does what `interface.py` says, on two blank images; else a sentence."""
    import torch

    config, name = model.config, f"model.kind {model.config.kind}"
    height, width = config.height_width
    if height % config.stride or width % config.stride:
        raise RecipeError(f"{name}: its stride, {config.stride}, does not divide model.image_size {height}×{width}.")
    try:
        with torch.no_grad():
            tokens = model.eval().features(torch.zeros(2, config.channels, height, width), None)
            if tokens.ndim != 3 or len(tokens) != 2:
                raise RecipeError(
                    f"{name}: features gives {tuple(tokens.shape)} for two images, and tokens, (2, T, D), are expected."
                )
            logits = model.logits(tokens)
    except RecipeError:
        raise
    except Exception as error:  # of code that is not ours
        raise RecipeError(f"{name} fails on two blank images: {where_it_failed(error)}") from error
    inside = [name for layer in model.layers() for name in layer.parameters]
    if sorted(inside) != sorted(name for name, _ in model.named_parameters()):
        raise RecipeError(f"{name}: layers() should have every parameter once.")
    if config.has_classes and not any(layer.part == "head" for layer in model.layers()):
        raise RecipeError(f"{name}: layers() has no head. Keep the classifier in self.head, or write layers().")
    if config.has_classes and any(one.shape != (2, config.classes) for one in logits):
        shapes = ", ".join(str(tuple(one.shape)) for one in logits)
        raise RecipeError(f"{name}: logits of {shapes} for two images and {config.classes} classes.")
    model.train()


def model_class(config: ModelConfig) -> "type[Model]":
    """The class of the model that a config describes."""
    if isinstance(config, UnresolvedConfig):
        raise RecipeError(f"model.kind {config.kind} is in a file of Python, which has not been run.")
    if config.built_by:
        return config.built_by
    module, _, name = KINDS[config.kind].partition(":")
    kind: type[Model] = getattr(import_module(module), name)
    return kind


def resolve(config: ModelConfig, plugins: Mapping[str, Plugin]) -> ModelConfig:
    """The config of a model in a user's own file, read by the class in that file; any other config as it is."""
    if not is_plugin(config.kind):
        return config
    plugin, name = plugins[config.kind], f"model.kind {config.kind}"
    from vitral.model.interface import Model

    if not (isinstance(plugin.value, type) and issubclass(plugin.value, Model)):
        raise RecipeError(f"{name} is not a class of vitral.model.interface.Model.")
    settings = plugin.value.__annotations__.get("config")
    settings = plugin.names.get(settings) if isinstance(settings, str) else settings  # `from __future__` makes it text
    if not (isinstance(settings, type) and issubclass(settings, ModelConfig)):
        raise RecipeError(
            f"{name} does not say what its settings are: write `config: MyConfig` below the first line of the class, "
            "where MyConfig is a class of vitral.model.config.ModelConfig."
        )
    if missing := sorted({"image_size", "channels", "classes"} - settings.model_fields.keys()):
        raise RecipeError(f"{name}: its settings have no {', '.join(missing)}.")
    # A class of its own: two models of a file may share their settings, and a ViT of the user's own is no ViT of ours.
    inside = {"__annotations__": {"kind": str}, "built_by": plugin.value, "code_sha256": plugin.sha256}
    own: type[ModelConfig] = type(settings.__name__, (settings,), {"__module__": settings.__module__, **inside})
    return own.read(config.write(), "model.")
