"""Weights of any library become a model: `load_pretrained`."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from vitral.data.decode import ENDINGS
from vitral.data.preprocess import Preprocess
from vitral.data.sources.named import NAMED, data_directory
from vitral.errors import RecipeError, WeightsError
from vitral.files import path_of
from vitral.model import build
from vitral.model.cifar_resnet import is_cifar_resnet
from vitral.model.config import ModelConfig, Resample
from vitral.model.interface import Model
from vitral.model.resnet import Conv
from vitral.model.swin_config import SwinConfig
from vitral.model.vit import ViT
from vitral.plugin import Code
from vitral.targets import Target, one_class, same
from vitral.weights import bit, google, huggingface, swin, timm, torchvision
from vitral.weights.catalogue import KNOWN, NAMED_WEIGHTS
from vitral.weights.describe import describe
from vitral.weights.facts import ModelFacts, facts_from, facts_of
from vitral.weights.foreign import foreign
from vitral.weights.guard import CLOSE, NotComparable, compare
from vitral.weights.imagenet import imagenet_classes
from vitral.weights.names import Family, Tensors, family_of, renamed
from vitral.weights.own import Weights, read_weights
from vitral.weights.processors import read_processor, read_timm
from vitral.weights.stored import RawWeights, check_finite, of_module, read_raw_weights, unwrapped, without_prefix

FAMILIES = (
    *bit.FAMILIES,
    *swin.FAMILIES,
    *huggingface.FAMILIES,
    *torchvision.FAMILIES,
    *google.FAMILIES,
    *timm.FAMILIES,
)
DESCRIBERS: dict[str, Callable[[Tensors, Family, ModelFacts], tuple[ModelConfig, ModelFacts]]]
DESCRIBERS = {"vit": describe, "swin": swin.describe, "resnet": bit.describe}  # by the kind of a family
WORTH_A_NOTE = ("new", "left over", "unchecked")  # rows of a report that a person should know of
NOUNS = {"vit": "ViT", "swin": "Swin", "resnet": "ResNet"}
HALF = ((0.5,), (0.5,))
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  # mean and std


@dataclass(frozen=True)
class LoadReport:
    """What became of each tensor, and where the facts come from that tensors do not tell."""

    family: str
    rows: tuple[tuple[str, str], ...]  # (loaded, new, left over, compared, …; what)
    facts: tuple[tuple[str, str], ...]  # (heads = 3; config.json)

    def __str__(self) -> str:
        lines = [f"{self.family}:", *(f"  {what:10} {words}" for what, words in self.rows)]
        return "\n".join([*lines, *(f"  {fact:10} {who}" for fact, who in self.facts)])


@dataclass(frozen=True)
class Pretrained(Weights):
    """A model that was trained elsewhere, ready for use, and how it was loaded."""

    loaded: LoadReport | None = None  # None: Vitral's own weights, which fit as they are
    folder: Path | None = None  # of Vitral's own weights: where they lie, with what was measured beside them

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person should know before believing it: what was left out, is new, or had to be guessed."""
        if self.loaded is None:
            return ()
        rows = [f"Of the weights, {what}: {words}." for what, words in self.loaded.rows if what in WORTH_A_NOTE]
        guessed = [fact for fact, who in self.loaded.facts if who.startswith("as is usual")]
        note = f"No file beside the weights tells, so as is usual for {self.loaded.family}: {', '.join(guessed)}."
        return (*rows, note) if guessed else tuple(rows)


def load_pretrained(
    source: str | Path | nn.Module,
    *,
    heads: int | None = None,
    norm_eps: float | None = None,
    mlp: Literal["gelu", "gelu-tanh", "gelu-quick"] | None = None,
    resample: Resample | None = None,
    classes: int | Sequence[str] | None = None,
    image_size: int | tuple[int, int] | None = None,
    channels: int | None = None,
    code: Code = (),
) -> Pretrained:
    """Load weights of timm, DeiT, DINO, DINOv2, MAE, Hugging Face transformers, torchvision, Google or Vitral.

    `source` is a file (safetensors, npz), a folder (config.json, model.safetensors), a run, `hf:org/model`, or a model
    of one of those libraries that is in memory. Which family it is, its names tell. What they cannot tell (`heads`,
    `norm_eps`, `mlp`, `resample`: how positions are brought to another grid) comes from config.json or about.json
    beside the weights, or from here; else it is what all known models with such tensors have, and `loaded` says so.
    Where these differ, it is asked for. A model in memory is run beside ours, and other outputs are an error.

    `classes` gives it a new head, unless it has these already; `image_size` resamples its positions; `channels` adapts
    its first layer. `code`: files of Python that may be run, for Vitral's own weights of a model that is in one.

    >>> pretrained = load_pretrained("weights/vit_tiny_patch16_224", classes=("ant", "bee"))  # doctest: +SKIP
    >>> pretrained.model.config.classes  # doctest: +SKIP
    2
    """
    if isinstance(source, nn.Module) and isinstance(unwrapped(source), Model):
        raise WeightsError("This is a model of Vitral already: there is nothing to load.")
    raw = raw_weights_of(source)
    if "vitral" in raw.metadata:
        if (heads, norm_eps, mlp, resample) != (None, None, None, None):
            raise WeightsError(f"{raw.where} tells all of itself: leave heads, norm_eps, mlp and resample out.")
        assert raw.path is not None  # metadata is of a file
        own = read_weights(raw.path, code)
        pretrained = Pretrained(**vars(own), folder=raw.path.parent)
    else:
        _check_architecture(raw)
        given = facts_from("given", heads=heads, norm_eps=norm_eps, mlp=mlp, resample=resample)
        facts = given.then(facts_of(raw))
        if facts.image_size is None and image_size is not None:
            facts = facts.then(facts_from("given", image_size=_pair(image_size)))
        pretrained = _translate(raw, facts)
        if isinstance(source, nn.Module):
            # As it was given, as what is around it may change its outputs; but nothing is compiled for one picture.
            pretrained = _check_outputs(pretrained, getattr(source, "_orig_mod", source), raw.where, facts)
    return adapt(pretrained, classes=classes, image_size=image_size, channels=channels)


def _check_outputs(pretrained: Pretrained, module: nn.Module, where: str, facts: ModelFacts) -> Pretrained:
    """Refuse a module whose outputs ours would not be; at its own size, and at another where it takes one. There the
    rule for positions is the one that gives the same, unless somebody named one."""
    model = pretrained.model
    own, step = model.config.height_width, model.config.cell
    if isinstance(model.config, SwinConfig):
        step = 1  # one of transformers that has once seen a map smaller than a window keeps that window for ever
    other = (max(step, own[0] - step), own[1] + step)  # some rules differ only where a side grows, or shrinks
    sizes, size = [own], own
    try:
        difference, place = compare(module, model, own)
    except NotComparable as reason:
        return _with_row(pretrained, model, ("unchecked", f"whether outputs are the same, as {reason}"))
    usual = model.config.resampling  # "" where no table is resampled
    rules = dict.fromkeys([usual, *get_args(Resample)] if usual else [usual])
    for rule in rules if difference <= CLOSE and facts.resample is None else {}:
        try:
            model = model if rule == model.config.resampling else _with_rule(model, rule)
            (difference, place), size = compare(module, model, other), other
        except NotComparable:  # it takes its own size alone
            break
        if difference <= CLOSE:
            sizes.append(other)
            break
    if not difference <= CLOSE:
        raise WeightsError(
            f"{where} gives other outputs than its weights would give here: on a random picture of {size[0]}×{size[1]} "
            f"they differ by {difference:.1e} of the largest number, {place}. A part of it is none that a "
            f"{NOUNS.get(model.config.kind, 'ViT')} here has."
        )
    words = " and ".join(f"{down}×{across}" for down, across in sizes)
    if other in sizes and usual and (loaded := pretrained.loaded):
        rest = [row for row in loaded.facts if not row[0].startswith("resample = ")]
        rule = (f"resample = {model.config.resampling}", "the module")
        pretrained = replace(pretrained, loaded=replace(loaded, facts=(*rest, rule)))
    return _with_row(pretrained, model, ("compared", f"with the module, on a picture of {words}: the same outputs"))


def _with_rule(model: Model, rule: str) -> Model:
    """The model, with another rule for positions at other sizes."""
    assert isinstance(model, ViT)  # no other has a rule
    positions = model.config.positions.model_copy(update={"resample": rule})
    return _build_with(model.config.model_copy(update={"positions": positions}), model.state_dict())


def with_resampling(pretrained: Pretrained, rule: str) -> Pretrained:
    """Loaded weights, with another rule for positions at other sizes; a model without any as it is."""
    model = pretrained.model
    if not isinstance(model, ViT) or model.config.resampling in (rule, ""):
        return pretrained
    return replace(pretrained, model=_with_rule(model, rule))


def with_task_tokens(pretrained: Pretrained, outputs: tuple[int, ...]) -> Pretrained:
    """Loaded weights with a copy of their class token, and of its position, for each of several tasks, which have so
    many outputs each; a model without a class token, or with task tokens, as it is."""
    model, state = pretrained.model, pretrained.model.state_dict()
    if not isinstance(model, ViT) or model.config.tokens.kind != "class":
        return pretrained
    config, tasks = model.config, len(outputs)
    tokens = {"kind": "tasks", "outputs": outputs, "registers": config.tokens.registers}
    changed = type(config).read({**config.write(), "tokens": tokens}, "model.")
    copies = {"cls_token": state["cls_token"].repeat(1, tasks, 1)}
    if "pos_embed" in state and config.positions.class_token:
        rows = 2 if config.positions.kind == "learned-2d" else 1  # of the class token
        own, others = state["pos_embed"].tensor_split([rows], dim=1)
        copies["pos_embed"] = torch.cat([own.repeat(1, tasks, 1), others], dim=1)
    row = ("adapted", f"the class token, a copy for each of {tasks} tasks")
    return _with_row(pretrained, _build_with(changed, state | copies), row)


def without_head(pretrained: Pretrained) -> Pretrained:
    """Loaded weights without what stands above the trunk; a model that has nothing there, or always has, as it is."""
    model = pretrained.model
    if not isinstance(model, ViT) or model.config.head.kind == "none":
        return pretrained
    config = type(model.config).read({**model.config.write(), "classes": 0, "head": "none"}, "model.")
    trunk = _build_with(config, {name: model.state_dict()[name] for name in _shapes(config)})
    return _with_row(pretrained, trunk, ("left out", "the head"), class_names=(), other_targets=())


def adapt(
    pretrained: Pretrained,
    *,
    classes: int | Sequence[str] | None = None,
    image_size: int | tuple[int, int] | None = None,
    channels: int | None = None,
    targets: tuple[Target, ...] = (),
) -> Pretrained:
    """Loaded weights with a new head, for another image size, for other channels; what is None stays as it is.

    `targets` say what the outputs of the head are, where `classes` are not classes of which a picture has one."""
    if channels is not None:
        pretrained = _with_channels(pretrained, channels)
    if image_size is not None:
        pretrained = _at_size(pretrained, _pair(image_size))
    if classes is not None and classes != pretrained.model.config.classes:
        names = _numbered(classes) if isinstance(classes, int) else tuple(classes)
        pretrained = _with_classes(pretrained, names, targets)
    return pretrained


def raw_weights_of(source: str | Path | nn.Module) -> RawWeights:
    """The weights of a file, a folder, a run, the Hub or a module, as they are there."""
    if isinstance(source, nn.Module):
        return without_prefix(of_module(source))
    if str(source).startswith("hf:"):
        return replace(raw_weights_of(from_hub(str(source).removeprefix("hf:"))), where=str(source))
    path, directory = path_of(source, WeightsError), data_directory("auto")
    if not path.exists() and (named := NAMED_WEIGHTS.get(str(source))) and not named.is_here(directory):
        hub = f" Or name them as they are on the Hub: {named.hub}." if named.hub else ""
        raise WeightsError(
            f"The weights {named.name} are not in the data directory {directory}. Fetch them "
            f"({named.megabytes:.0f} MB): VITRAL_DATA={directory} vitral fetch {named.name}.{hub}"
        )
    if not path.exists() and (directory / "weights" / path).exists():
        path = directory / "weights" / path
    if not path.exists():
        raise WeightsError(f"There is no run and no file of weights {source}. {_suggestion(path)}")
    if path.suffix.lower() in ENDINGS:
        raise WeightsError(f"{source} is a picture, and a run or weights were expected: the model comes first.")
    return without_prefix(read_raw_weights(path))


def _suggestion(path: Path) -> str:
    """A sentence on what may be meant by a name that is not there."""
    places = [Path("runs"), path.parent]
    runs = [str(one) for place in places if place.is_dir() for one in place.iterdir() if one.is_dir()]
    weights = data_directory("auto") / "weights"
    here = [one.name for one in weights.iterdir()] if weights.is_dir() else []
    hub = [one.where for one in KNOWN if re.search(rf"/{re.escape(path.name)}\b", one.where)]
    if (
        near := hub
        or get_close_matches(str(path), [*runs, *here], n=1)
        or [name for name in runs if Path(name).name == path.name]
    ):
        return f"Did you mean {near[0]}?"
    if str(path) in NAMED:
        return "That is a set of pictures: the model comes first."
    return "`vitral ls` lists the runs here, `vitral ls weights` weights worth having."


def from_hub(name: str) -> Path:
    """The folder of a repository of the Hugging Face Hub; from its cache when that is all there is."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise WeightsError(f"hf:{name} needs huggingface_hub: pip install 'vitral[hub]'") from None
    patterns = ["*.json", "*.safetensors", "*.npz"]  # no pickle is even fetched
    try:
        return Path(snapshot_download(name, allow_patterns=patterns))
    except Exception as error:  # the library's, or those of whatever carries its bytes
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise WeightsError(
            f"hf:{name} could not be fetched, and is not in the cache ({reason}). Without a network here: bring the "
            f"*.json and *.safetensors of {name} on the Hub from elsewhere, and give their folder instead of hf:{name}."
        ) from None


def _translate(raw: RawWeights, facts: ModelFacts) -> Pretrained:
    family, numbers = _family(raw), _numbers(raw)
    left_over: list[str] = []
    try:
        tensors, left_over = renamed(numbers, family)
        if not tensors.keys() - {"head.weight", "head.bias"}:
            raise WeightsError(f"A {NOUNS[family.kind]} is only a part of it: load that part by itself.")
        config, facts = DESCRIBERS[family.kind](tensors, family, facts)
    except WeightsError as error:
        strange = [name for name in left_over if _of_the_trunk(name)]
        unplaced = f" Nothing here is called {_some(strange)}." if strange else ""
        raise WeightsError(
            f"{raw.where} looks like weights of {family.name}, but cannot be used. {error}{unplaced}"
        ) from None
    except (IndexError, RuntimeError, ValueError) as error:
        raise WeightsError(
            f"{raw.where} has tensors of shapes that no {NOUNS[family.kind]} of {family.name} has ({error})."
        ) from None
    with torch.device("meta"):
        model = build(config)
    expected = model.state_dict()
    for name in tensors.keys() & expected.keys():
        if tensors[name].shape != expected[name].shape:
            actual, needed = ("×".join(map(str, one.shape)) for one in (tensors[name], expected[name]))
            raise WeightsError(f"{raw.where}: {name} is {actual}, and the other tensors ask for {needed}.")
    new = sorted(expected.keys() - tensors.keys())
    trunk = {name for layer in model.layers() if layer.part == "trunk" for name in layer.parameters}
    if missing := [name for name in new if name in trunk]:
        raise WeightsError(
            f"{raw.where} has not all that a {family.name} {NOUNS[family.kind]} of this shape needs: {_some(missing)} "
            + ("is missing." if len(missing) == 1 else "are missing.")
        )
    state = {name: tensors[name] for name in expected if name in tensors}
    # What is missing starts at zero, as biases and heads do: nothing is drawn at random, so nothing is by luck.
    state |= {name: torch.zeros(expected[name].shape) for name in new}
    model.load_state_dict(state, assign=True)
    left_over += sorted(tensors.keys() - expected.keys())
    if strange := [name for name in left_over if _of_the_trunk(name)]:
        raise WeightsError(
            f"{raw.where} looks like weights of {family.name}, but {_some(strange)} would be left out: "
            "it is another architecture, and its outputs would be others."
        )
    count = sum(tensors[name].numel() for name in expected if name in tensors)
    kinds = {str(tensor.dtype).removeprefix("torch.") for tensor in raw.tensors.values()} - {"float32"}
    rows = [
        ("loaded", f"{len(expected) - len(new)} tensors, {count:,} numbers" + "".join(f", from {k}" for k in kinds))
    ]
    rows += [("prefix", f"{raw.prefix} was taken off all names")] if raw.prefix else []
    rows += [("new", _some(new))] if new else []
    rows += [("left over", _some(left_over))] if left_over else []
    preprocess, who = _preprocess(raw, config, family)
    if preprocess.channels != config.channels:
        raise WeightsError(
            f"{raw.where}: pictures are prepared in {preprocess.channels} channels, "
            f"and the model takes {config.channels}."
        )
    names = facts.class_names if facts.class_names and len(facts.class_names) == config.classes else None
    sources = [(f"{name} = {getattr(facts, name)}", by) for name, by in facts.sources.items() if name in SHOWN]
    sources.append((f"pixels = {preprocess.resize.kind}, mean {preprocess.mean}, std {preprocess.std}", who))
    if names is None and config.classes == len(imagenet_classes()):
        names = tuple(imagenet_classes().values())
        sources.append(("class names = those of ImageNet", "as is usual for 1,000 classes"))
    licence = str(raw.about.get("licence") or next((one.licence for one in KNOWN if one.where == raw.where), ""))
    names = names or _numbered(config.classes)
    return Pretrained(
        model.eval().requires_grad_(True),
        preprocess,
        names,
        {"family": family.name} | ({"licence": licence} if licence else {}),
        other_targets=_targets(facts.outputs, names),
        loaded=LoadReport(family.name, tuple(rows), tuple(sources)),
    )


def _targets(outputs: str | None, names: tuple[str, ...]) -> tuple[Target, ...]:
    """What the outputs of another library's model are, where that is not one class; numbers come in their units."""
    if outputs == "labels" and names:
        return (Target(name="labels", kind="labels", names=names),)
    return tuple(Target(name=name, kind="number", names=(name,)) for name in names) if outputs == "number" else ()


# Of the facts: what changes the outputs.
SHOWN = ("heads", "norm_eps", "resample", "base", "mlp", "pool", "window", "trained_windows") + ("groups", "weight_eps")


def _check_architecture(raw: RawWeights) -> None:
    """Refuse what is known and is not ours."""
    if any(name.startswith("to_patch_embedding.") for name in raw.tensors):
        raise WeightsError(
            f"{raw.where} has the names of vit-pytorch, whose ViT has norms around its patch layer and heads of any "
            "size. No checkpoints of it are in use, so ours has no such parts (docs/decisions/0011)."
        )
    if is_cifar_resnet(raw.tensors):
        raise WeightsError(f"{raw.where} is a CNN for CIFAR: it can teach a model, with teacher.source.")
    if words := foreign(raw):
        raise WeightsError(
            f"{raw.where} holds weights of {words}, which Vitral does not have yet: it is another architecture, and "
            "its outputs would be others. `vitral ls weights` lists weights that can be loaded."
        )
    bit.check_architecture(raw)
    huggingface.check_outputs(raw)


def _family(raw: RawWeights) -> Family:
    family = family_of(raw.tensors, FAMILIES)
    if family is None:
        known = ", ".join(dict.fromkeys(one.name for one in FAMILIES))
        names = f"its tensors are called {_some(sorted(raw.tensors))}" if raw.tensors else "it holds no tensor"
        raise WeightsError(f"{raw.where} is no model of a family that is known here ({known}): {names}.")
    return timm.DINO if family is timm.TIMM and raw.about.get("family") == "DINO" else family


def _of_the_trunk(name: str) -> bool:
    """Whether a tensor that we have no place for takes part in what the model sees."""
    inside = re.search(
        r"(^|\.)(blocks\w*|patch_embed|attn_pool|MAPHead_\d+|rope|layers?|embeddings|encoder|stem|stages)[./]", name
    )
    beside = re.search(r"mask_token$|(^|\.)decoder|position_ids$|num_batches_tracked$", name)
    made = re.search(r"relative_position_index$|relative_coords_table$|attn_mask$", name)  # of a Swin, anew each time
    return bool(inside) and not beside and not made


COUNTS = ("num_batches_tracked", "position_ids", "relative_position_index")  # whole numbers, and no weights


def _numbers(raw: RawWeights) -> Tensors:
    """The tensors in float32; a `WeightsError` unless all are finite."""
    for name, tensor in raw.tensors.items():
        if not tensor.is_floating_point() and not name.endswith(COUNTS):
            kind = str(tensor.dtype).removeprefix("torch.")
            raise WeightsError(f"{raw.where}: {name} holds {kind}, and weights are fractions.")
    tensors = {name: tensor.float() for name, tensor in raw.tensors.items()}
    check_finite(raw.where, tensors)
    return tensors


def _preprocess(raw: RawWeights, config: ModelConfig, family: Family) -> tuple[Preprocess, str]:
    """The preprocessing that stands beside the weights, and in which file; else what is usual for the family."""
    try:
        if settings := raw.about.get("preprocess"):  # we wrote it
            return Preprocess.read(settings, "preprocess."), "about.json"
        if raw.processor:
            return read_processor(raw.processor, config.height_width), "preprocessor_config.json"
        if timms := raw.config.get("pretrained_cfg"):
            if raw.path is None:  # a module may have been made for another size than its name stands for
                timms = {**timms, "input_size": (config.channels, *config.height_width)}
            return read_timm(timms, config.channels), "config.json" if raw.path else raw.about_from
        about = raw.about
        usual = HALF if family.half or config.channels != 3 else IMAGENET
        mean, std = (
            tuple(about.get(name, one))[: config.channels] for name, one in zip(("mean", "std"), usual, strict=True)
        )
        mean, std = (numbers * config.channels if len(numbers) == 1 else numbers for numbers in (mean, std))
        who = "about.json" if "mean" in about else f"as is usual for {family.name}"
        resize: Any = "crop"
        if edge := about.get("resize"):  # pixels of the shorter side, as timm and torchvision say it
            resize = {"kind": "shortest", "share": min(config.height_width) / edge, "rounding": "even"}
        interpolation: Any = about.get("interpolation", "bicubic")
        return Preprocess(
            image_size=config.height_width,
            channels=config.channels,
            resize=resize,
            interpolation=interpolation,
            mean=mean,
            std=std,
        ), who
    except (RecipeError, TypeError, ValueError) as error:
        raise WeightsError(
            f"What stands beside {raw.where} on how pictures are prepared cannot be used. {error}"
        ) from None


def _with_classes(pretrained: Pretrained, names: tuple[str, ...], targets: tuple[Target, ...] = ()) -> Pretrained:
    """With a new head, which starts at zero; unless the old one is for the same classes, in whatever order, or for the
    same other targets."""
    model, config, state = pretrained.model, pretrained.model.config, pretrained.model.state_dict()
    same_targets = same(pretrained.targets, targets or one_class(names))
    if names == pretrained.class_names and same_targets:
        return pretrained
    if targets or pretrained.other_targets:
        return _with_new_head(pretrained, names, targets)
    heads = {name: p for layer in model.layers() if layer.part == "head" for name, p in layer.parameters.items()}
    one_row_each = all(len(parameter) == config.classes for parameter in heads.values())
    if sorted(names) == sorted(pretrained.class_names) and one_row_each:
        rows = torch.tensor([pretrained.class_names.index(name) for name in names])
        turned = {name: state[name][rows] for name in heads}
        row = ("adapted", "the order of the classes")
        return _with_row(pretrained, _build_with(config, state | turned), row, class_names=names)
    return _with_new_head(pretrained, names, targets)


def _with_new_head(pretrained: Pretrained, names: tuple[str, ...], targets: tuple[Target, ...]) -> Pretrained:
    model, config, state = pretrained.model, pretrained.model.config, pretrained.model.state_dict()
    above = {name for layer in model.layers() if layer.part != "trunk" for name in layer.parameters}
    changed = config.with_classes(len(names))
    trunk = {name: tensor for name, tensor in state.items() if name not in above}
    new = {name: torch.zeros(one.shape) for name, one in _shapes(changed).items() if name not in trunk}
    words = f"a head for {len(names)} {'outputs' if targets else 'classes'}"
    row = ("new", words + (f" in place of {config.classes}" if config.classes else ""))
    return _with_row(pretrained, _build_with(changed, trunk | new), row, class_names=names, other_targets=targets)


def _with_channels(pretrained: Pretrained, channels: int) -> Pretrained:
    """With a first layer for other channels.

    Grey is the sum over colours, so that a grey picture gives what it gave; more are the same again, and weaker.
    """
    model, had = pretrained.model, pretrained.model.config.channels
    if had == channels:
        return pretrained
    state = model.state_dict()
    name, first = next((one for one in model.named_modules() if isinstance(one[1], nn.Conv2d)), ("", None))
    if first is None or first.in_channels != had:
        raise WeightsError(f"The first layer of this model cannot be brought from {had} to {channels} channels.")
    name = f"{name}.weight"  # (D, C, P, P)
    changed = type(model.config).read({**model.config.write(), "channels": channels}, "model.")
    if channels == 1:
        adapted = state[name].sum(dim=1, keepdim=True)
    else:
        repeats = -(-channels // had)
        adapted = state[name].repeat(1, repeats, 1, 1)[:, :channels] * (had / channels)
    old = pretrained.preprocess
    mean, std = (_for_channels(numbers, channels) for numbers in (old.mean, old.std))
    preprocess = Preprocess.read({**old.write(), "channels": channels, "mean": mean, "std": std}, "preprocess.")
    words = f"the first layer from {had} to {channels} channels"
    if isinstance(first, Conv):
        words += ", whose filters are standardised anew: also grey pictures give something else than before"
    return _with_row(
        pretrained, _build_with(changed, state | {name: adapted}), ("adapted", words), preprocess=preprocess
    )


def _for_channels(numbers: tuple[float, ...], channels: int) -> list[float]:
    return [sum(numbers) / len(numbers)] if channels == 1 else [numbers[n % len(numbers)] for n in range(channels)]


def _at_size(pretrained: Pretrained, image_size: tuple[int, int]) -> Pretrained:
    model = pretrained.model
    if model.config.height_width == pretrained.preprocess.image_size == image_size:
        return pretrained
    try:
        changed = model.at(image_size)
    except RecipeError as error:
        raise WeightsError(str(error)) from None
    preprocess = Preprocess.read({**pretrained.preprocess.write(), "image_size": image_size}, "preprocess.")
    before, after = (_grid(one) for one in (model, changed))
    if after == before:
        return _with_row(pretrained, model, preprocess=preprocess)
    words = f"positions from {before} to {after} patches" + (f", {how}" if (how := model.config.resampling) else "")
    return _with_row(pretrained, changed, ("resampled", words), preprocess=preprocess)


def _with_row(pretrained: Pretrained, model: Model, row: tuple[str, str] | None = None, **changes: Any) -> Pretrained:
    loaded = pretrained.loaded or LoadReport("Vitral", (), ())
    rows = (*loaded.rows, row) if row else loaded.rows
    return replace(pretrained, model=model, loaded=replace(loaded, rows=rows), **changes)


def _grid(model: Model) -> str:
    down, across = model.grid_of(torch.empty(0, model.config.channels, *model.config.height_width))
    return f"{down}×{across}"


def _build_with(config: ModelConfig, state: dict[str, Tensor]) -> Model:
    with torch.device("meta"):
        model = build(config)
    model.load_state_dict(state, assign=True)
    return model.eval().requires_grad_(True)


def _shapes(config: ModelConfig) -> dict[str, Tensor]:
    with torch.device("meta"):
        return build(config).state_dict()


def _numbered(classes: int) -> tuple[str, ...]:
    return tuple(map(str, range(classes)))


def _pair(size: int | tuple[int, int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else size


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
