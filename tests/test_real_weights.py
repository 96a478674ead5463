"""A real model on real photographs: what the parts give together."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from vitral import Preprocess, ViT, ViTConfig
from vitral.data.config import Resize
from vitral.weights.imagenet import imagenet_classes

# WordNet id of the folder → index among ImageNet's 1,000 classes.
CLASSES = {
    "n01440764": 0,
    "n02102040": 217,
    "n02979186": 482,
    "n03000684": 491,
    "n03028079": 497,
    "n03394916": 566,
    "n03417042": 569,
    "n03425413": 571,
    "n03445777": 574,
    "n03888257": 701,
}


def test_the_classes_of_imagenet_are_in_their_usual_order() -> None:
    names = imagenet_classes()
    assert len(names) == len(set(names.values())) == 1000
    assert list(names) == sorted(names)  # WordNet's numbers rise
    assert {wordnet: list(names).index(wordnet) for wordnet in CLASSES} == CLASSES


@pytest.mark.slow
@torch.inference_mode()
def test_vit_tiny_recognises_photographs_as_it_is_known_to(large_data: Callable[[str], Path]) -> None:
    """Golden, from the data's own README: 71.5 % top-1, 92 % top-5 among 1,000 classes, 99 % among the ten."""
    tensors = load_file(large_data("weights") / "vit_tiny_patch16_224" / "model.safetensors")
    model = ViT(ViTConfig.named("Ti/16")).eval()
    model.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
    files = sorted((large_data("imagenette-mini") / "val").rglob("*.*"))
    labels = torch.tensor([CLASSES[file.parent.name] for file in files])
    logits = torch.cat([model(as_it_was_trained(file)[None]) for file in files])  # (200, 1000)
    right = logits.topk(5).indices == labels[:, None]  # (200, 5)
    assert right[:, 0].sum() == 143
    assert right.any(dim=1).sum() == 184
    ten = torch.tensor(sorted(CLASSES.values()))
    assert (ten[logits[:, ten].argmax(dim=1)] == labels).sum() == 198


def as_it_was_trained(file: Path) -> torch.Tensor:
    """To 248 pixels, then the 224 in the middle, as its about.json says."""
    resize = Resize(share=224 / 248)
    return Preprocess(image_size=(224, 224), channels=3, resize=resize, mean=(0.5,) * 3, std=(0.5,) * 3)(file)


@pytest.mark.slow
def test_the_command_gives_the_same_from_the_weights_alone(large_data: Callable[[str], Path]) -> None:
    """`vitral predict WEIGHTS FOLDER`: the model, its preprocessing and its head are all found out from the folder."""
    command = [sys.executable, "-m", "vitral", "predict", str(large_data("weights") / "vit_tiny_patch16_224")]
    pictures = large_data("imagenette-mini") / "val"
    done = subprocess.run([*command, str(pictures), "--top", "5", "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    five = {Path(one["path"]): [row["label"] for row in one["probabilities"]] for one in json.loads(done.stdout)}
    names = imagenet_classes()
    right = [said.index(name) for path, said in five.items() if (name := names[path.parent.name]) in said]
    assert (len(five), right.count(0), len(right)) == (200, 143, 184)
