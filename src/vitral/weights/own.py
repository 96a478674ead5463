"""Vitral's own `model.safetensors`: the weights, and all that is needed to use them (docs/schema.md)."""

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import safetensors
import safetensors.torch
import torch
from pydantic import Field, model_validator

from vitral.data.preprocess import Preprocess
from vitral.errors import RecipeError, WeightsError
from vitral.files import parse_table, write_whole
from vitral.model import build, resolve
from vitral.model.config import ModelConfig, ViTConfig
from vitral.model.interface import Model
from vitral.model.kinds import AnyModelConfig
from vitral.plugin import Code, is_plugin, load_stored_plugins
from vitral.settings import FORMAT, Settings, check_format
from vitral.targets import Target, one_class
from vitral.weights.stored import check_finite, check_number, unwrapped

UNTRAINED = "head_untrained"  # in `about`: of a model that learnt without labels
CODE = "code_sha256"  # in `about`: of the file that the model is in, where that is a user's own


@dataclass(frozen=True)
class Weights:
    """A model ready for use: what it is, what it wants to see, and what its answers are called.

    Who trains in a loop of their own makes one: `evaluate`, `probe`, `embed`, `Classifier.load` and `convert` take it,
    and `write_weights` writes it.
    """

    model: Model
    preprocess: Preprocess
    class_names: tuple[str, ...] = field(repr=False)  # there may be a thousand
    about: dict[str, str] = field(default_factory=dict)
    other_targets: tuple[Target, ...] = ()  # what the outputs are, where that is not one class

    @property
    def targets(self) -> tuple[Target, ...]:
        """What the outputs are."""
        return self.other_targets or one_class(self.class_names)

    def __post_init__(self) -> None:
        if isinstance(self.model, Model):
            return
        inside = unwrapped(self.model) if isinstance(self.model, torch.nn.Module) else None
        if not isinstance(inside, Model):
            raise WeightsError(
                f"A {type(self.model).__name__} is no model of Vitral. load_pretrained makes one of it: "
                "Weights(load_pretrained(module).model, preprocess, class_names)."
            )
        object.__setattr__(self, "model", inside)  # out of torch.compile, DataParallel, nn.Sequential

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person should know before believing it."""
        return ()

    def check_head(self, name: str) -> None:
        """Refuse to answer with a head that has learnt nothing."""
        if self.about.get(UNTRAINED):
            raise WeightsError(
                f"{name} learnt without labels, so its head has learnt nothing. Give it one: vitral train FOLDER "
                f"init.weights={name}"
            )


def identity(weights: Weights) -> str:
    """A sha256 of config, preprocessing and weights: the same for the same numbers, whatever file they come from."""
    digest = hashlib.sha256(json.dumps([weights.model.config.write(), weights.preprocess.write()]).encode())
    for name, tensor in weights.model.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.cpu().contiguous().numpy().data)
    return digest.hexdigest()


class Header(Settings):
    """The JSON in the metadata of the file, under the one key `vitral`."""

    format: int = FORMAT
    model: AnyModelConfig
    preprocess: Preprocess
    class_names: tuple[str, ...]
    targets: tuple[Target, ...] = Field(default=(), exclude_if=lambda targets: not targets)  # it came after format 1
    about: dict[str, str] = {}

    @model_validator(mode="after")
    def _one_name_per_class(self) -> Self:
        if len(self.class_names) != self.model.classes:
            raise ValueError(f"It has {len(self.class_names)} class_names for {self.model.classes} classes.")
        if self.targets and sum((target.names for target in self.targets), ()) != self.class_names:
            raise ValueError("Its targets and its class_names do not name the same outputs.")
        if self.preprocess.channels != self.model.channels:
            gives, takes = self.preprocess.channels, self.model.channels
            raise ValueError(f"Its preprocessing gives {gives} channels, and its model takes {takes}.")
        if any(side % self.model.stride for side in self.preprocess.image_size):
            raise ValueError(f"Its preprocessing gives {self.preprocess.image_size}, which its patches do not divide.")
        return self


def write_weights(path: str | Path, weights: Weights) -> Path:
    """Write weights as a file that `vitral predict`, `evaluate`, `look`, `convert` and init.weights take; returns its
    path. It is written whole or not at all. A path without .safetensors is a folder, which gets a model.safetensors.

    >>> from tempfile import mkdtemp
    >>> from vitral import Classifier, Preprocess, ViT, ViTConfig
    >>> model = ViT(ViTConfig(image_size=8, patch_size=4, channels=1, width=16, depth=1, heads=2, classes=2))
    >>> preprocess = Preprocess(image_size=(8, 8), channels=1, mean=(0.5,), std=(0.5,))
    >>> path = write_weights(f"{mkdtemp()}/pets", Weights(model, preprocess, ("cat", "dog")))
    >>> path.name, Classifier.load(path).class_names
    ('model.safetensors', ('cat', 'dog'))
    """
    path = Path(path) if Path(path).suffix == ".safetensors" else Path(path) / "model.safetensors"
    config = weights.model.config
    code = {CODE: config.code_sha256} if is_plugin(config.kind) else {}
    header = Header(
        model=config,
        preprocess=weights.preprocess,
        class_names=weights.class_names,
        targets=weights.other_targets,
        about={**weights.about, **code},
    ).write()
    if not header["about"]:
        del header["about"]
    own = is_plugin(config.kind)
    tensors = {
        name: _storable(tensor, own).clone() if own else _storable(tensor, own)  # two names may share one tensor there
        for name, tensor in weights.model.state_dict().items()
    }
    check_finite(str(path), tensors)  # which nobody could load
    metadata = {"vitral": json.dumps(header, ensure_ascii=False)}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, safetensors.torch.save(tensors, metadata=metadata))
    return path


# As safetensors calls them.
WHOLE_NUMBERS = {torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.uint8: "U8", torch.bool: "BOOL"}


def _storable(tensor: torch.Tensor, own: bool) -> torch.Tensor:
    """In float32; the whole numbers of a user's own model, such as places in a table, stay what they are."""
    whole = own and tensor.dtype in WHOLE_NUMBERS
    return (tensor if whole else tensor.float()).detach().cpu().contiguous()


def read_weights(path: Path, code: Code = ()) -> Weights:
    """Read the file, trusting nothing in it: what it says it is must be what it holds. A model in a file of Python is
    built only if that file is in `code`."""
    if not path.is_file():
        raise WeightsError(
            f"{path} is not a file. A file of weights was expected, such as runs/digits/model.safetensors."
        )
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            check_number(path, len(file.keys()))
            header = _header(path, file.metadata() or {})
            specs = {name: _describe(file.get_slice(name)) for name in file.keys()}  # noqa: SIM118 (not a dict)
        if isinstance(header.model, ViTConfig) and header.model.depth > len(specs):  # each block has several
            raise WeightsError(
                f"{path} contradicts itself: its config describes {header.model.depth} blocks, and it holds "
                f"{len(specs)} tensors."
            )
        # On the meta device a model has shapes and no memory: a header that claims a huge model costs nothing.
        config = _config(path, header, code)
        with torch.device("cpu" if is_plugin(config.kind) else "meta"):  # who knows what a user's own does when built
            model = build(config)
        own = is_plugin(config.kind)
        expected = {
            name: (WHOLE_NUMBERS.get(tensor.dtype, "F32") if own else "F32", tuple(tensor.shape))
            for name, tensor in model.state_dict().items()
        }
        _compare(path, specs, expected)
        model.load_state_dict(safetensors.torch.load_file(path), assign=True)
        check_finite(str(path), model.state_dict())
    except (safetensors.SafetensorError, OSError) as error:
        raise WeightsError(f"{path} is damaged, or is not a safetensors file ({error}).") from None
    return Weights(model.eval(), header.preprocess, header.class_names, header.about, header.targets)


def _config(path: Path, header: Header, code: Code) -> ModelConfig:
    kind = header.model.kind
    digests = {kind: header.about.get(CODE, "")} if is_plugin(kind) else {}
    return resolve(header.model, load_stored_plugins(digests, code, str(path)))


def _header(path: Path, metadata: dict[str, str]) -> Header:
    if "vitral" not in metadata:
        raise WeightsError(f"{path} was not written by Vitral: its metadata has no key `vitral`.")
    try:
        values = parse_table(metadata["vitral"])
        check_format(values.get("format"), str(path), WeightsError)
        return Header.read(values)
    except ValueError as error:
        raise WeightsError(f"{path} is damaged: its metadata is not a table in JSON ({error}).") from None
    except RecipeError as error:
        raise WeightsError(f"{path} describes a model that cannot be. {error}") from None


TensorSpecs = dict[str, tuple[str, tuple[int, ...]]]  # name → (dtype, shape)


def _describe(tensor: object) -> tuple[str, tuple[int, ...]]:
    return tensor.get_dtype(), tuple(tensor.get_shape())  # type: ignore[attr-defined]


def _compare(path: Path, actual: TensorSpecs, expected: TensorSpecs) -> None:
    missing, extra = sorted(expected.keys() - actual.keys()), sorted(actual.keys() - expected.keys())
    if missing or extra:
        what = f"{missing[0]} is missing" if missing else f"{extra[0]} is too many"
        raise WeightsError(
            f"{path} contradicts itself: its config describes {len(expected)} tensors, it holds {len(actual)}; {what}."
        )
    for name, (dtype, shape) in expected.items():
        if actual[name] != (dtype, shape):
            raise WeightsError(
                f"{path} contradicts itself: by its config {name} is {dtype} {shape}, "
                f"in the file it is {actual[name][0]} {actual[name][1]}."
            )
