"""BiT's ResNets by the names of timm, transformers and Google's npz, and a config from their tensors.

Google's code adds 1e-10 to the variance of a filter, and timm and transformers, with the same weights, 1e-8.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from vitral.errors import RecipeError, WeightsError
from vitral.model.resnet_config import LAYERS, ResNetConfig
from vitral.weights.describe import about_groups, stages, widths_or_usual
from vitral.weights.facts import ModelFacts, facts_from
from vitral.weights.google import patches, patches_back
from vitral.weights.names import Family, Name, Tensors
from vitral.weights.stored import RawWeights


def matrix(kernel: Tensor) -> Tensor:  # (classes, D, 1, 1) → (classes, D)
    return kernel.flatten(1)


def kernel(matrix: Tensor, heads: int) -> Tensor:
    return matrix[:, :, None, None].contiguous()


def matrix_of_google(kernel: Tensor) -> Tensor:  # (1, 1, D, classes) → (classes, D)
    return patches(kernel).flatten(1)


def kernel_of_google(matrix: Tensor, heads: int) -> Tensor:
    return patches_back(kernel(matrix, heads), heads)


BLOCK = "stages.{s}.blocks.{n}"
PARTS = ("norm1", "conv1", "norm2", "conv2", "norm3", "conv3")
TIMM_NAMES = (
    Name("stem.conv.weight", "stem.conv.weight"),
    *(Name(f"{BLOCK}.{part}.{{p}}", f"{BLOCK}.{part}.{{p}}") for part in (*PARTS, "downsample.conv")),
    Name("norm.{p}", "norm.{p}"),
    Name("head.fc.weight", "head.weight", matrix, kernel),
    Name("head.fc.bias", "head.bias"),
)
HF_BLOCK = "encoder.stages.{s}.layers.{n}"
HF_NAMES = (
    Name("embedder.convolution.weight", "stem.conv.weight"),
    *(Name(f"{HF_BLOCK}.{part}.{{p}}", f"{BLOCK}.{part}.{{p}}") for part in (*PARTS, "downsample.conv")),
    Name("norm.{p}", "norm.{p}"),
    Name("classifier.1.{p}", "head.{p}"),
)
UNIT, KERNEL = "block{s+1}/unit{n+01}", "standardized_conv2d/kernel"
GOOGLE_NAMES = (
    Name(f"root_block/{KERNEL}", "stem.conv.weight", patches, patches_back),
    *(
        row
        for number, letter in enumerate("abc", start=1)
        for row in (
            Name(f"{UNIT}/{letter}/{KERNEL}", f"{BLOCK}.conv{number}.weight", patches, patches_back),
            Name(f"{UNIT}/{letter}/group_norm/gamma", f"{BLOCK}.norm{number}.weight"),
            Name(f"{UNIT}/{letter}/group_norm/beta", f"{BLOCK}.norm{number}.bias"),
        )
    ),
    Name(f"{UNIT}/a/proj/{KERNEL}", f"{BLOCK}.downsample.conv.weight", patches, patches_back),
    Name("group_norm/gamma", "norm.weight"),
    Name("group_norm/beta", "norm.bias"),
    Name("head/conv2d/kernel", "head.weight", matrix_of_google, kernel_of_google),
    Name("head/conv2d/bias", "head.bias"),
)

TIMM_PREFIX = r"(?:module\.|model\.|backbone\.)+"
TIMM_MARK = rf"^(?:{TIMM_PREFIX})?stages\.\d+\.blocks\.\d+\.conv3\.weight$"
TIMM = Family("timm BiT", TIMM_NAMES, TIMM_MARK, TIMM_PREFIX, half=True, kind="resnet")
HUGGINGFACE = Family("Hugging Face BiT", HF_NAMES, r"embedder\.convolution\.", r"bit\.", half=True, kind="resnet")
GOOGLE = Family("Google BiT", GOOGLE_NAMES, r"root_block/", r"resnet/", half=True, kind="resnet")
FAMILIES = (GOOGLE, HUGGINGFACE, TIMM)


def describe(tensors: Tensors, family: Family, facts: ModelFacts) -> tuple[ResNetConfig, ModelFacts]:
    """The config, and the facts, completed with what is usual for the family."""
    usual = {"groups": 32, "weight_eps": 1e-10 if family is GOOGLE else 1e-8, "image_size": (224, 224)}
    facts = facts.then(facts_from(f"as is usual for {family.name}", **usual))
    stem, head = tensors.get("stem.conv.weight"), tensors.get("head.weight")
    if stem is None or stem.ndim != 4 or stem.shape[2:] != (7, 7):
        raise WeightsError("A stem of one convolution of 7×7 was expected.")
    depths, widths = stages(tensors, "")
    assert facts.image_size is not None
    height, width = facts.image_size
    try:
        config = ResNetConfig.read(
            {
                "kind": "resnet",
                "image_size": height if height == width else [height, width],
                "channels": stem.shape[1],
                "depths": depths,
                "widths": widths_or_usual(depths, (stem.shape[0], *widths)),
                "groups": facts.groups,
                "weight_eps": facts.weight_eps,
                "classes": 0 if head is None else head.shape[0],
                "head": "none" if head is None else "linear",
            },
            "model.",
        )
    except RecipeError as error:
        raise WeightsError(f"The tensors describe a model that cannot be. {error}{about_groups(facts)}") from None
    return config, facts


def check_architecture(raw: RawWeights) -> None:
    """Refuse what transformers' class for BiT makes of such tensors, and ours would not."""
    config = raw.config
    if config.get("model_type") != "bit":
        return
    ours = {"layer_type": "preactivation", "hidden_act": "relu", "output_stride": 32, "width_factor": 1}
    for name, value in ours.items():
        if config.get(name, value) != value:
            raise WeightsError(f"config.json asks for {config[name]} as {name}, and a ResNet here has {value}.")
    if config.get("global_padding") or config.get("embedding_dynamic_padding"):
        raise WeightsError("config.json asks for padding as in TensorFlow, which a ResNet has here in hybrids alone.")
    if any(str(name).endswith("Backbone") for name in config.get("architectures") or ()):
        raise WeightsError(
            f"{raw.where} gives the maps of its stages, and a ResNet here that of its last one, after the norm. Load "
            "the model that the backbone was made from."
        )


# ---- to other libraries

NAMES: dict[
    tuple[int, ...], tuple[str, int]
] = {  # timm's for so many blocks, and how many times as wide as R50x1 that is
    LAYERS["50"]: ("resnetv2_50x1_bit", 1),
    LAYERS["101"]: ("resnetv2_101x1_bit", 1),
    LAYERS["152"]: ("resnetv2_152x2_bit", 2),
}


def check_holds(who: str, config: ResNetConfig, **others: tuple[Any, ...]) -> None:
    """A `WeightsError` where a library has no such ResNet; `others`: what it further asks of settings."""
    holds = {"stem": ("7x7",), "weight_eps": (1e-8,), **others}
    for name, accepted in holds.items():
        if (value := getattr(config, name)) not in accepted:
            known = " or ".join(map(str, accepted))
            raise WeightsError(
                f"{who} cannot hold this model: its model.{name} is {value}, and would have to be {known}."
            )
    stem, *widths = config.all_widths
    if uneven := [width for width, multiple in ((stem, 8), *((width, 32) for width in widths)) if width % multiple]:
        raise WeightsError(
            f"{who} cannot hold this model: it rounds channels inside a block to multiples of 8, and of its "
            f"model.widths {uneven[0]} would become another."
        )


def architecture(config: ResNetConfig) -> str:
    """The name of timm's with these depths; its channels are arguments."""
    return NAMES[config.depths][0]


def arguments(config: ResNetConfig) -> dict[str, Any]:
    """The arguments with which timm makes this model by that name."""
    times = NAMES[config.depths][1]
    stem, *widths = (width // times for width in config.all_widths)
    return {"in_chans": config.channels, "stem_chs": stem, "channels": widths}


def write_config(config: ResNetConfig, class_names: Sequence[str]) -> dict[str, Any]:
    """config.json as transformers has it."""
    stem, *widths = config.all_widths
    values: dict[str, Any] = {
        "architectures": [f"Bit{'ForImageClassification' if class_names else 'Model'}"],
        "model_type": "bit",
        "image_size": config.image_size if isinstance(config.image_size, int) else list(config.image_size),
        "num_channels": config.channels,
        "embedding_size": stem,
        "hidden_sizes": widths,
        "depths": list(config.depths),
        "num_groups": config.groups,
        "layer_type": "preactivation",
        "hidden_act": "relu",
        "dtype": "float32",
    }
    if class_names:
        values["id2label"] = {str(number): name for number, name in enumerate(class_names)}
        values["label2id"] = {name: number for number, name in enumerate(class_names)}
        values["problem_type"] = "single_label_classification"
    return values
