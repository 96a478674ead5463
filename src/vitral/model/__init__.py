"""A tensor becomes logits. Knows nothing of files, data or training."""

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from vitral.errors import RecipeError
from vitral.model.config import ModelConfig, Regularise, UnresolvedConfig
from vitral.plugin import Plugin, is_plugin

if TYPE_CHECKING:
    from vitral.model.interface import Model

# What `model.kind` can be, and where it is: loaded on first use, since each brings torch.
KINDS = {"vit": "vitral.model.vit:ViT"}


def build(config: ModelConfig, regularise: Regularise | None = None) -> "Model":
    """The model that a config describes, with new weights.

    >>> from vitral.model.config import ViTConfig
    >>> build(ViTConfig(image_size=32, patch_size=8, width=64, depth=2, heads=4, classes=10)).config.kind
    'vit'
    """
    return model_class(config)(config, regularise)


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
    settings.built_by, settings.code_sha256 = plugin.value, plugin.sha256
    return settings.read(config.write(), "model.")
