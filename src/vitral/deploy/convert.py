"""Convert weights for other libraries: write a folder that the library loads, or raise a sentence that says why not.

A part that a library lacks can often be written as a part that it has: fixed positions as a table, LayerScale as a
factor of the matrix before it, a missing bias as zeros. Such changes leave the outputs as they were, and are listed in
the card. Any other part that the library lacks is refused. Differences in its preprocessing, its GELU or the epsilon
of its norms are listed too.
"""

import io
import json
import os
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn

from vitral.data.config import Pad, Resize, Rounding, Scale
from vitral.data.preprocess import Preprocess
from vitral.deploy.card import loading_code, write_card
from vitral.deploy.trial import LIBRARIES, PICTURES, Trial, try_pictures
from vitral.errors import WeightsError
from vitral.files import write_whole
from vitral.inference import Inference, Source, load_calibrated, name_of_source, run_of
from vitral.model.config import ModelConfig, Pool, ViTConfig
from vitral.model.resnet_config import ResNetConfig
from vitral.model.swin_config import SwinConfig
from vitral.model.vit import ViT
from vitral.plugin import Code
from vitral.predictions import number_words
from vitral.run import Run
from vitral.targets import Target
from vitral.version import __version__
from vitral.weights import bit, google, huggingface, swin, timm, torchvision
from vitral.weights.names import Family, Tensors, renamed_back
from vitral.weights.own import Weights
from vitral.weights.pretrained import Pretrained
from vitral.weights.processors import write_processor

Files = dict[str, bytes | str]  # name → content


Config = TypeVar("Config", bound=ModelConfig)


@dataclass(frozen=True)
class ConvertedWeights(Generic[Config]):
    """A model on its way to another library: its tensors have our names until the last step."""

    config: Config
    tensors: Tensors
    preprocess: Preprocess
    class_names: tuple[str, ...]
    notes: tuple[str, ...] = ()  # what was changed, in sentences
    trial: Trial = Trial("")  # what the library answers, once it has been asked
    target: Target | None = None  # what the outputs are, where that is not one class: labels, or a number

    def with_tensors(self, tensors: Mapping[str, Tensor], note: str = "") -> "ConvertedWeights[Config]":
        """A copy with other tensors under some names, and with a note."""
        notes = (*self.notes, note) if note else self.notes
        return replace(self, tensors=self.tensors | dict(tensors), notes=notes)


def convert(
    source: Source, to: str, out: str | Path | None = None, *, code: Code = (), pictures: int = PICTURES
) -> Path:
    """Write weights as another library has them: `hf` (transformers), `timm`, `torchvision` or `npz` (Google's).

    `source` is a run, weights that `load_pretrained` reads, a model of one of those libraries in memory, or `Weights`.
    Returns the folder: RUN/hf, or NAME-hf beside the weights (here, where they were not given as a path), unless `out`
    names another. `code`: files of Python that may be run, where the model is in one. So many `pictures` of the run are
    tried in the other library, where it is installed; README.md and about.json in the folder say what came of it.
    """
    if to not in WRITERS:
        raise WeightsError(f"There is no way to write weights for {to}. There are: {', '.join(WRITERS)}.")
    folder = (Path(out) if out is not None else _beside(source, to)).absolute()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise WeightsError(f"{folder} is not empty, and nothing is overwritten. Choose another place with --out.")
    (weights, calibration), run = load_calibrated(source, code), run_of(source)
    _check_targets(weights, name_of_source(source))
    prepared = _prepare(weights, float(calibration.temperature) if calibration else 1.0)
    files, converted_weights = _writer(prepared.config, to)(prepared)
    converted_weights = _told(to, converted_weights, Inference(weights, calibration))
    licence, origin = weights.about.get("licence", ""), weights.about.get("origin", "")
    trained_elsewhere = weights.loaded.family if isinstance(weights, Pretrained) and weights.loaded else ""

    def words(written: Path) -> Files:
        loading = loading_code(to, converted_weights, str(written)) if to in LIBRARIES else ""
        trial = try_pictures(to, written, loading, Inference(weights, calibration), run, pictures)
        tried = replace(converted_weights, trial=trial)
        card = write_card(to, folder.name, tried, licence, run, origin, trained_elsewhere)
        return {"about.json": _json(_about(tried, licence)), "README.md": card}

    _write_folder(folder, files, words)
    return folder


def _check_targets(weights: Weights, name: str) -> None:
    """Refuse several tasks: the other libraries have one kind of output a model."""
    if len(weights.targets) > 1:
        tasks = ", ".join(f"{target.name} ({target.kind})" for target in weights.targets)
        raise WeightsError(
            f"{name} has several tasks, {tasks}, and other libraries have one kind of output a model. "
            "Train one of them alone (data.target) and convert that."
        )


def _told(to: str, weights: ConvertedWeights[Any], inference: Inference) -> ConvertedWeights[Any]:
    """With notes on what the outputs are, where that is not one class."""
    if weights.target is None:
        return weights
    if weights.target.kind == "number":
        [margin] = inference.margins
        note = f"The output is {weights.target.name} in its unit, as mean and standard deviation are part of the head."
        inside = f" It lies within ± {number_words(margin)} for 9 pictures of 10, if they are like those of validation."
        return weights.with_tensors({}, note + inside * bool(margin))
    thresholds = zip(weights.class_names, inference.thresholds, strict=True)
    each = ", ".join(f"{name} {threshold:.3f}" for name, threshold in thresholds)
    return weights.with_tensors({}, f"Each label has a sigmoid of its own. It is said from these on: {each}.")


def _beside(source: Source, to: str) -> Path:
    if isinstance(source, nn.Module | Weights):
        raise WeightsError("A model in memory has no folder: say where to write it, with out.")
    source = source.folder if isinstance(source, Run) else source
    if str(source).startswith("hf:"):
        return Path(f"{Path(source).name}-{to}")
    path = Path(source).absolute()  # also `.` has a name
    if Run.is_run(path):
        return path / to
    return path.with_name(f"{path.name if path.is_dir() else path.stem}-{to}")


def _prepare(weights: Weights, temperature: float) -> ConvertedWeights[Any]:
    """The weights in float32, with resampled positions and temperature, which `vitral predict` applies apart, made part
    of the tensors."""
    model, notes = weights.model, list(weights.notes)
    if weights.preprocess.image_size != model.config.height_width:
        model = model.at(weights.preprocess.image_size)
        if model.config.resampling:
            notes.append("Positions are resampled once, to the size that pictures are prepared in.")
    model = model.plain()
    if not isinstance(model.config, ViTConfig | SwinConfig | ResNetConfig):
        kind = model.config.kind
        raise WeightsError(f"A model of kind {kind} is known to no other library: a ViT, a Swin and a ResNet are.")
    tensors = {name: tensor.detach().float().cpu() for name, tensor in model.state_dict().items()}
    if temperature != 1.0:
        tensors |= {name: tensor / temperature for name, tensor in tensors.items() if name.startswith("head")}
        notes.append(f"The head is divided by the temperature {temperature:.4g}, so that probabilities are calibrated.")
    [target] = weights.other_targets or (None,)
    if target and target.kind == "number":  # output · std + mean
        linear = [name for name in tensors if name.startswith("head") and len(tensors[name]) == 1][-2:]
        tensors |= {name: tensors[name] * target.std for name in linear}
        tensors |= {name: tensors[name] + target.mean for name in linear if name.endswith("bias")}
    config = model.config
    if not isinstance(config, ViTConfig):
        names = weights.class_names
        return ConvertedWeights(config, tensors, weights.preprocess, names, tuple(notes), target=target)
    if config.pool.kind == "class" and config.pool.norm == "after":  # for one token the same as before
        tensors = {name.removeprefix("fc_"): tensor for name, tensor in tensors.items()}
        config = config.model_copy(update={"pool": Pool()})
    if config.attention.bias == "query-value" and config.positions.kind != "rotary":  # keys may have one of zero
        tensors = _with_key_biases(tensors)
        config = config.model_copy(update={"attention": config.attention.model_copy(update={"bias": True})})
    if not config.blocks.bias:
        tensors |= _zero_biases(tensors, "attn.proj", "mlp.fc1", "mlp.fc2")
        config = config.model_copy(update={"blocks": config.blocks.model_copy(update={"bias": True})})
    names = weights.class_names
    return ConvertedWeights(config, tensors, weights.preprocess, names, tuple(notes), target=target)


# What a target can hold: a setting of the model, and what it may be. What is not named may be anything.
TABLE = ("learned", "learned-2d", "sincos-1d", "sincos-2d", "none")
PLAIN: dict[str, Collection[Any]] = {
    "tokens": ("class",),
    "tokens.registers": (0,),
    "positions": TABLE,
    "stem": ("linear",),
    "stem.norm": (False,),
    "attention.qk_norm": (False,),
    "mlp": ("gelu", "gelu-tanh", "gelu-quick"),
    "blocks.first_norm": (False,),
    "blocks.norm": ("layer",),
    "pool": ("class",),
    "pool.norm": ("before",),
    "pool.all_tokens": (False,),
    "head": ("linear",),
}


def _check(who: str, config: ViTConfig, holds: Mapping[str, Collection[Any]]) -> None:
    for setting, accepted in holds.items():
        value: Any = config
        for name in setting.split("."):
            value = getattr(value, name)
        value = getattr(value, "kind", value)
        if value not in accepted:
            known = " or ".join(str(one).lower() if isinstance(one, bool) else str(one) for one in accepted)
            raise WeightsError(
                f"{who} cannot hold this model: its model.{setting} is {str(value).lower()}, "
                f"and would have to be {known}."
            )


def _check_square(who: str, config: ViTConfig) -> None:
    height, width = config.height_width
    if height != width:
        raise WeightsError(f"{who} cannot hold this model: its model.image_size is {height} × {width}, not a square.")


def _with_table(weights: ConvertedWeights[ViTConfig], registers: bool = False) -> ConvertedWeights[ViTConfig]:
    """The weights with positions as a learned table: a row for each class and distillation token (zeros where it
    has no place), for each register if `registers`, and for each patch."""
    config = weights.config
    with torch.device("meta"):
        rule = ViT(config).positions
    rows = rule(weights.tensors.get("pos_embed"), config.grid).float()  # (1, T, D)
    if not registers:
        rows = torch.cat([rows[:, : config.read_out], rows[:, config.extra :]], dim=1)
    kind, note = config.positions.kind, ""
    if kind != "learned":
        note = f"Positions ({kind}) are written out as a table for {config.grid[0]}×{config.grid[1]} patches."
    return weights.with_tensors({"pos_embed": rows.contiguous()}, note)


def _with_biases(weights: ConvertedWeights[ViTConfig], *names: str) -> ConvertedWeights[ViTConfig]:
    """The weights with biases of zero in these layers, where the target has a bias and the model has none."""
    return weights.with_tensors(_zero_biases(weights.tensors, *names))


def _zero_biases(tensors: Tensors, *names: str) -> Tensors:
    """A bias of zero for each of these layers that has none."""
    weights = [name for name in tensors if name.endswith(tuple(f"{one}.weight" for one in names))]
    biases = {f"{name.removesuffix('weight')}bias": torch.zeros(len(tensors[name])) for name in weights}
    return {name: zeros for name, zeros in biases.items() if name not in tensors}


def _with_key_biases(tensors: Tensors) -> Tensors:
    """The tensors with one bias for queries, keys and values: zeros where keys had none."""
    joined = dict(tensors)
    for name in [name for name in tensors if name.endswith("qv_bias.q")]:
        attention = name.removesuffix("qv_bias.q")
        q, v = joined.pop(name), joined.pop(f"{attention}qv_bias.v")
        joined[f"{attention}qkv.bias"] = torch.cat([q, torch.zeros_like(q), v])
    return joined


def _without_layer_scale(weights: ConvertedWeights[ViTConfig]) -> ConvertedWeights[ViTConfig]:
    """The weights with LayerScale multiplied into the matrices before it."""
    if not weights.config.blocks.layer_scale:
        return weights
    tensors = dict(weights.tensors)
    for n in range(weights.config.depth):
        for scale, layer in (("ls1", "attn.proj"), ("ls2", "mlp.fc2")):
            gamma = tensors.pop(f"blocks.{n}.{scale}.gamma")
            tensors[f"blocks.{n}.{layer}.weight"] = gamma[:, None] * tensors[f"blocks.{n}.{layer}.weight"]
            tensors[f"blocks.{n}.{layer}.bias"] = gamma * tensors[f"blocks.{n}.{layer}.bias"]
    return replace(weights, tensors=tensors).with_tensors({}, "LayerScale is multiplied into the matrices before it.")


LUMA = torch.tensor([0.299, 0.587, 0.114])  # ITU-R 601-2, as Pillow turns colour into grey


def _in_colour(weights: ConvertedWeights[Config]) -> ConvertedWeights[Config]:
    """A grey model as one that takes colour and sees its grey, for libraries that only read pictures in colour."""
    if weights.config.channels != 1:
        return weights
    grey, name = weights.preprocess, "patch_embed.proj.weight"
    wider = weights.tensors[name] * LUMA[:, None, None]  # (D, 1, P, P) → (D, 3, P, P)
    preprocess = {**grey.write(), "channels": 3, "mean": grey.mean * 3, "std": grey.std * 3}
    note = (
        "The model was trained on grey pictures. It takes colour here, and its first layer sees the grey in it, "
        "which of colourful pictures it does not round to 8 bits as before (0.0003 of a probability, in noise)."
    )
    config = weights.config.model_copy(update={"channels": 3})
    colour = replace(weights, config=config, preprocess=Preprocess.read(preprocess, "preprocess."))
    return colour.with_tensors({name: wider}, note)


def _safetensors(weights: ConvertedWeights[Any], family: Family, prefix: str = "", bare: tuple[str, ...] = ()) -> bytes:
    """A safetensors file with the family's names, with a prefix before all but those that begin with a word of
    `bare`."""
    heads = weights.config.heads if isinstance(weights.config, ViTConfig) else 0  # which no layout of a Swin asks for
    theirs = renamed_back(weights.tensors, family, heads)
    tensors = {name if name.startswith(bare) else prefix + name: tensor for name, tensor in theirs.items()}
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    return safetensors.torch.save(contiguous, metadata={"format": "pt"})  # transformers asks for this word


def _hf_class(config: ViTConfig) -> str:
    """The model_type of transformers that is nearest to this model."""
    if config.positions.kind == "rotary":
        return "dinov3_vit"
    if config.tokens.kind != "class":
        return {"distilled": "deit", "none": "ijepa"}[config.tokens.kind]
    if config.tokens.registers:
        return "dinov2_with_registers"
    special = config.pool.kind != "class" or config.mlp.kind == "swiglu"
    return "dinov2" if special or (config.blocks.layer_scale and config.head.kind == "none") else "vit"


def _hf(weights: ConvertedWeights[ViTConfig]) -> tuple[Files, ConvertedWeights[ViTConfig]]:
    config, kind = weights.config, _hf_class(weights.config)
    name = huggingface.CLASSES[kind]
    who = f"transformers' {name}"
    holds = PLAIN | huggingface.HOLDS[kind]
    if kind.startswith("dinov2") and not config.classes:
        holds |= {"pool": ("class",)}  # without a head, nothing sees the pooled tokens
    _check(who, config, holds)
    weights = _with_biases(_in_colour(weights), "patch_embed.proj")
    if kind == "dinov3_vit":
        weights = _as_dinov2(weights)
        weights = weights.with_tensors({"mask_token": weights.tensors["mask_token"][None]})
    elif kind.startswith("dinov2"):
        # It resamples positions wherever height and width differ, and takes them for a square.
        _check_square(who, config)
        weights = _as_dinov2(_with_table(weights))
    else:
        weights = _without_layer_scale(_with_table(weights))
    settings = huggingface.write_config(weights.config, kind, weights.class_names)
    family = huggingface.FAMILY_BY_TYPE[f"gated {kind}" if config.mlp.kind == "swiglu" else kind]
    return _for_transformers(weights, settings, family, kind)


def _for_transformers(
    weights: ConvertedWeights[Config], settings: dict[str, Any], family: Family, prefix: str
) -> tuple[Files, ConvertedWeights[Config]]:
    """The files, with these settings in config.json. `prefix` stands before all names but a classifier's, if there is
    one."""
    if weights.target:
        settings = settings | {"problem_type": huggingface.PROBLEM_TYPES[weights.target.kind]}
    before = f"{prefix}." if weights.config.classes else ""
    files: Files = {
        "config.json": _json(settings),
        "preprocessor_config.json": _json(write_processor(weights.preprocess)),
        "model.safetensors": _safetensors(weights, family, before, ("classifier", "cls_classifier", "distillation_")),
    }
    notes = (*weights.notes, *_pixel_notes(weights.preprocess, rounding="down", behind=255))
    return files, replace(weights, notes=notes)


def _as_dinov2(weights: ConvertedWeights[ViTConfig]) -> ConvertedWeights[ViTConfig]:
    """The weights with what every DINOv2 and DINOv3 has: LayerScale, a mask token, and in DINOv2 a head that sees the
    class token and the mean side by side."""
    config, tensors = weights.config, {"mask_token": torch.zeros(1, weights.config.width)}
    if not config.blocks.layer_scale:
        scales = [f"blocks.{n}.{scale}.gamma" for n in range(config.depth) for scale in ("ls1", "ls2")]
        tensors |= {name: torch.ones(config.width) for name in scales}
    if config.classes and config.pool.kind != "class-mean":
        head = weights.tensors["head.weight"]  # (classes, D)
        halves = [head, torch.zeros_like(head)]
        tensors["head.weight"] = torch.cat(halves if config.pool.kind == "class" else halves[::-1], dim=1)
        return weights.with_tensors(tensors, "The head sees more than it did, with weights of zero.")
    return weights.with_tensors(tensors)


def _pixel_notes(preprocess: Preprocess, rounding: Rounding, behind: int | None) -> list[str]:
    """Notes on where another library prepares pictures a little differently; it rounds the centre by `rounding`, and
    has the grey `behind` transparent pixels (None: any colour)."""
    notes = ["Pictures are scaled with Pillow. Scaled as tensors they get slightly other pixels."]
    how = preprocess.resize
    if preprocess.background != behind:
        theirs = "of any colour" if behind is None else f"on {behind}"
        notes.append(f"Transparent pixels are {theirs}, where Vitral puts them on {preprocess.background}.")
    if isinstance(how, Resize):
        notes.append(
            "Pictures that are not square are cut in whole pixels: less than a pixel beside where Vitral cuts."
        )
    if isinstance(how, Pad):
        notes.append(f"What is beside a picture is its mean colour, where Vitral puts {preprocess.background}.")
    is_odd = isinstance(how, Scale) and any(
        (edge - side) % 4 == 3 for edge, side in zip(preprocess.edges(how), preprocess.image_size, strict=True)
    )
    if isinstance(how, Scale) and (how.kind == "shortest" or is_odd) and how.rounding != rounding:
        notes.append("The centre of a picture may begin a pixel beside where Vitral begins it.")
    if preprocess.profile == "srgb":
        notes.append("Colour profiles of files are ignored, where Vitral changes their colours to sRGB.")
    if preprocess.jpeg == "scaled":
        notes.append("Large JPEG files are decoded at full size, where Vitral takes a fast smaller one.")
    return notes


def _timm(weights: ConvertedWeights[ViTConfig]) -> tuple[Files, ConvertedWeights[ViTConfig]]:
    config = weights.config
    if config.positions.kind == "rotary":
        return _timm_dinov3(weights)
    holds: dict[str, Collection[Any]] = {"positions": TABLE, "stem": ("linear", "resnet"), "stem.norm": (False,)}
    holds |= {"pool": ("class", "mean", "map"), "head": ("linear", "none")}
    if config.blocks.norm == "rms":  # which its words for norms cannot say with these
        holds |= {"blocks.norm_eps": (1e-6,), "mlp": PLAIN["mlp"]}
    _check("timm", config, holds)
    if config.tokens.kind == "distilled":
        _check("timm's VisionTransformerDistilled", config, {"tokens.registers": (0,), "pool.norm": ("before",)})
    if config.blocks.first_norm and config.stem.bias:
        raise WeightsError("timm cannot hold this model: with model.blocks.first_norm it has no model.stem.bias.")
    if config.stem.kind == "resnet":
        _check_hybrid(config)
    weights = _with_table(weights, registers=True)
    if not config.blocks.first_norm:
        weights = _with_biases(weights, "patch_embed.proj")
    table = weights.tensors["pos_embed"]
    # Either all tokens before the patches have rows in timm's table, or none has.
    unplaced = config.extra > 0 and config.tokens.kind != "distilled" and not table[:, : config.extra].any()
    if unplaced:
        weights = weights.with_tensors({"pos_embed": table[:, config.extra :].contiguous()})
    arguments = timm.arguments(config, unplaced)
    settings = timm.write_config(
        config,
        arguments,
        weights.preprocess,
        weights.class_names,
        architecture=timm.architecture(config),
        features=config.width,
        first=f"patch_embed.{'backbone.stem.conv' if config.stem.kind == 'resnet' else 'proj'}",
        classifier=list(config.classifiers) if config.tokens.kind == "distilled" else "head",
    )
    return _for_timm(weights, settings, timm.TIMM)


def _for_timm(
    weights: ConvertedWeights[Config], settings: dict[str, Any], family: Family
) -> tuple[Files, ConvertedWeights[Config]]:
    files: Files = {"config.json": _json(settings), "model.safetensors": _safetensors(weights, family)}
    notes = (*weights.notes, *_pixel_notes(weights.preprocess, rounding="even", behind=None))
    return files, replace(weights, notes=notes)


def _check_hybrid(config: ViTConfig) -> None:
    """Refuse a ViT behind a ResNet that no name of timm stands for: its arguments are of the ViT alone."""
    stem = config.stem
    if stem.depths not in timm.HYBRIDS or stem.widths or stem.groups != 32:
        raise WeightsError(
            "timm cannot hold this model: the ResNet in its model.stem would have to be that of "
            f"{' or '.join(timm.HYBRIDS.values())}, blocks, widths and groups."
        )
    holds: dict[str, Collection[Any]] = {"tokens": ("class", "none"), "blocks.norm_eps": (1e-6,), "mlp": PLAIN["mlp"]}
    _check("timm's hybrid", config, holds)


def _timm_dinov3(weights: ConvertedWeights[ViTConfig]) -> tuple[Files, ConvertedWeights[ViTConfig]]:
    config = weights.config
    _check("timm's DINOv3", config, PLAIN | timm.EVA_HOLDS)
    weights = _with_biases(weights, "patch_embed.proj")
    settings = timm.write_config(
        config,
        timm.eva_arguments(config),
        weights.preprocess,
        weights.class_names,
        architecture=timm.architecture(config),
        features=config.width,
    )
    return _for_timm(weights, settings, timm.GATED_DINOV3 if config.mlp.kind == "swiglu" else timm.TIMM_DINOV3)


def _torchvision(weights: ConvertedWeights[ViTConfig]) -> tuple[Files, ConvertedWeights[ViTConfig]]:
    who = "torchvision's VisionTransformer"
    _check(who, weights.config, PLAIN | {"mlp": ("gelu",), "head": ("linear", "mlp"), "channels": (1, 3)})
    weights = _in_colour(weights)
    _check_square(who, weights.config)
    weights = _with_biases(_without_layer_scale(_with_table(weights)), "patch_embed.proj", "attn.qkv")
    files: Files = {
        "model.safetensors": _safetensors(weights, torchvision.TORCHVISION),
        "classifier.py": loading_code("torchvision", weights) + "\n",
    }
    notes = (*weights.notes, *_pixel_notes(weights.preprocess, rounding="even", behind=None))
    return files, replace(weights, notes=notes)


def _npz(weights: ConvertedWeights[ViTConfig]) -> tuple[Files, ConvertedWeights[ViTConfig]]:
    config = weights.config
    pool = {"class": "class", "none": "mean"}.get(config.tokens.kind, "class")
    holds: dict[str, Collection[Any]] = {"tokens": ("class", "none"), "mlp": ("gelu", "gelu-tanh"), "pool": (pool,)}
    holds |= {"stem": ("linear", "resnet"), "stem.groups": (32,)}
    _check("Google's vision_transformer", config, PLAIN | holds | {"head": ("linear", "mlp", "hidden", "none")})
    weights = _with_biases(_without_layer_scale(_with_table(weights)), "patch_embed.proj", "attn.qkv")
    notes = [*weights.notes, AS_IN_ABOUT]
    if config.mlp.kind == "gelu":
        notes.append("Google's code has the GELU by tanh, this model the one by erf: logits differ by about 2e-4.")
    if config.blocks.norm_eps != 1e-6:
        notes.append(f"Google's code adds 1e-6 in its norms, and this model {config.blocks.norm_eps:g}.")
    if config.stem.kind == "resnet":
        notes.append("In its ResNet, Google's code divides filters by their deviation + 1e-5 and adds 1e-6 in norms.")
    files: Files = {"model.npz": _arrays(renamed_back(weights.tensors, google.GOOGLE, config.heads))}
    return files, replace(weights, notes=tuple(notes))


AS_IN_ABOUT = "Pictures are to be prepared as `preprocess` in about.json tells: the weights do not say."


def _arrays(tensors: Tensors) -> bytes:
    file = io.BytesIO()
    np.savez(file, **{name: tensor.contiguous().numpy() for name, tensor in tensors.items()})  # type: ignore[arg-type]
    return file.getvalue()


def _swin_hf(weights: ConvertedWeights[SwinConfig]) -> tuple[Files, ConvertedWeights[SwinConfig]]:
    weights = _in_colour(weights)
    config = swin.for_library(weights.config, "transformers")
    settings = swin.write_config(config, weights.class_names)
    return _for_transformers(weights, settings, swin.TRANSFORMERS, settings["model_type"])


def _swin_timm(weights: ConvertedWeights[SwinConfig]) -> tuple[Files, ConvertedWeights[SwinConfig]]:
    config = swin.for_library(weights.config, "timm")
    settings = timm.write_config(
        config,
        swin.arguments(config),
        weights.preprocess,
        weights.class_names,
        architecture=swin.architecture(config),
        features=config.widths[-1],
        pool="avg",
        classifier="head.fc",
    )
    return _for_timm(weights, settings, swin.TIMM)


def _resnet_hf(weights: ConvertedWeights[ResNetConfig]) -> tuple[Files, ConvertedWeights[ResNetConfig]]:
    config = weights.config
    bit.check_holds("transformers' Bit", config, channels=(3,))
    return _for_transformers(weights, bit.write_config(config, weights.class_names), bit.HUGGINGFACE, "bit")


def _resnet_timm(weights: ConvertedWeights[ResNetConfig]) -> tuple[Files, ConvertedWeights[ResNetConfig]]:
    config = weights.config
    bit.check_holds("timm's ResNetV2", config, depths=tuple(bit.NAMES), groups=(32,))
    settings = timm.write_config(
        config,
        bit.arguments(config),
        weights.preprocess,
        weights.class_names,
        architecture=bit.architecture(config),
        features=config.all_widths[-1],
        pool="avg",
        first="stem.conv",
        classifier="head.fc",
    )
    return _for_timm(weights, settings, bit.TIMM)


def _resnet_npz(weights: ConvertedWeights[ResNetConfig]) -> tuple[Files, ConvertedWeights[ResNetConfig]]:
    config = weights.config
    bit.check_holds("Google's big_transfer", config, groups=(32,), weight_eps=(1e-8, 1e-10))
    notes = [*weights.notes, AS_IN_ABOUT]
    if config.weight_eps != 1e-10:
        notes.append("Google's code adds 1e-10 to the variance of a filter, and this model 1e-8.")
    return {"model.npz": _arrays(renamed_back(weights.tensors, bit.GOOGLE, 0))}, replace(weights, notes=tuple(notes))


Writer = Callable[[ConvertedWeights[Any]], tuple[Files, ConvertedWeights[Any]]]
WRITERS: dict[str, dict[type[ModelConfig], Writer]] = {  # by library, and by what it holds: every ViT is a ViTConfig
    "hf": {ViTConfig: _hf, SwinConfig: _swin_hf, ResNetConfig: _resnet_hf},
    "timm": {ViTConfig: _timm, SwinConfig: _swin_timm, ResNetConfig: _resnet_timm},
    "torchvision": {ViTConfig: _torchvision},
    "npz": {ViTConfig: _npz, ResNetConfig: _resnet_npz},
}


def _writer(config: ModelConfig, to: str) -> Writer:
    """What writes such a model for a library; a `WeightsError` where the library does not hold it."""
    writers = {
        library: write
        for library, by_config in WRITERS.items()
        for held, write in by_config.items()
        if isinstance(config, held)
    }
    if to not in writers:
        raise WeightsError(f"There is no way to write a {config.kind} for {to}: choose {' or '.join(writers)}.")
    return writers[to]


def _about(weights: ConvertedWeights[Any], licence: str) -> dict[str, Any]:
    """The content of about.json: facts that are not in the tensors, for `load_pretrained` and for people."""
    config = weights.config
    about = {
        "written_by": f"vitral {__version__}",
        **_parts_in_words(config),
        "image_size": list(config.height_width),
        "class_names": list(weights.class_names),
        "outputs": weights.target.kind if weights.target else "",
        "mean": list(weights.preprocess.mean),
        "std": list(weights.preprocess.std),
        "interpolation": weights.preprocess.interpolation,
        "preprocess": weights.preprocess.write(),
        "licence": licence,
        "notes": list(weights.notes),
        "trial": asdict(weights.trial),
    }
    return {name: value for name, value in about.items() if value != ""}


def _parts_in_words(config: ViTConfig | SwinConfig | ResNetConfig) -> dict[str, Any]:
    """What the tensors of a model do not tell, and other kinds have not."""
    if isinstance(config, ResNetConfig):
        return {"groups": config.groups, "weight_eps": config.weight_eps}
    mlp = {"mlp": config.mlp.kind} | ({"activation": "quick GELU"} if config.mlp.kind == "gelu-quick" else {})
    if isinstance(config, SwinConfig):
        return mlp | {"window_size": config.window, "pretrained_window_sizes": list(config.trained_windows)}
    return (
        mlp
        | ({"groups": config.stem.groups} if config.stem.kind == "resnet" else {})
        | {
            "heads": config.heads,
            "norm_eps": config.blocks.norm_eps,
            "resample": config.resampling,
            "norm": config.blocks.norm,
        }
    )


def _write_folder(folder: Path, files: Files, words: Callable[[Path], Files]) -> None:
    """Write all files, or no folder: they are written into a temporary folder beside it, which is then renamed.

    `words` are the files that can be written only once the others can be tried.
    """
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    try:
        temporary.mkdir(parents=True)
        for name, content in files.items():
            write_whole(temporary / name, content)
        for name, content in words(temporary).items():
            write_whole(temporary / name, content)
        temporary.rename(folder)  # onto an empty folder at most
    except OSError as error:
        raise WeightsError(f"{folder} cannot be written ({error}).") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _json(values: Mapping[str, Any]) -> str:
    return json.dumps(values, indent=2, ensure_ascii=False) + "\n"
