"""A model that several processes share out: when they do, what they write, and what goes wrong."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import nn

from conftest import quick_digits
from many import run, torchrun
from test_parallel import PLAIN, SHARD, told
from test_resume import assert_same
from vitral import Run, Started, ViT, ViTConfig, events
from vitral.errors import RecipeError
from vitral.processes import Processes
from vitral.training.checkpoint import read_checkpoint
from vitral.training.objectives.make import objective_class
from vitral.training.parallel import check_parallel
from vitral.training.shards import check_model

# `vitral` on a machine where so many processes share the memory, and where one of them cannot write so many bytes.
MACHINE = """
    import os, resource, sys
    from vitral.cli import main

    os.environ["LOCAL_WORLD_SIZE"] = sys.argv[1]
    if os.environ["RANK"] == "1":
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
    main(sys.argv[3:])
"""
Command = Callable[..., list[str]]


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Command:
    """Two processes that train a small model for a few steps, and write a checkpoint after each."""
    place = tmp_path_factory.mktemp("machine")
    (place / "machine.py").write_text(dedent(MACHINE))
    settings: dict[str, Any] = {"train.budget": "6steps", "train.ema": 0.9}
    (place / "recipe.toml").write_text(quick_digits().changed(PLAIN | settings).to_toml())

    def words(folder: Path, *more: object, processes: int = 2, most: int = 2**30) -> list[str]:
        vitral = ["train", place / "recipe.toml", *more, "--out", folder, "--resume", "--save-every", 0]
        return torchrun(place / "machine.py", processes, most, *vitral)

    return words


@pytest.fixture(scope="module")
def shared(command: Command, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, str]:
    """A run in which each process had a share, since there was no memory for more; and what was said."""
    folder = tmp_path_factory.mktemp("shared") / "run"
    done = run(command(folder, processes=200_000))
    assert done.returncode == 0, done.stderr
    return Run.load(folder), done.stdout


@pytest.mark.slow
def test_they_share_a_model_out_that_would_not_fit_and_say_so(shared: tuple[Run, str]) -> None:
    made, words = shared
    assert made.record.choices.parallel == "shard" and made.recipe.train.parallel == "auto"
    told = " ".join(words.split())
    assert "A step with the whole model would take" in told and "a share of the model each" in told


@pytest.mark.slow
def test_every_file_is_text_or_safetensors_with_tensors_alone(shared: tuple[Run, str]) -> None:
    """Given plain numbers torch's writer puts a pickle into such a file: these can then not be opened."""
    files = [path for path in shared[0].folder.rglob("*") if path.is_file() and path.name != ".lock"]
    assert {path.suffix for path in files} <= {".safetensors", ".json", ".jsonl", ".toml", ".csv", ".html", ".png"}
    tensors = [path for path in files if path.suffix == ".safetensors"]
    assert len(tensors) == 2 + 2 * 2  # weights, calibration, and two checkpoints of two processes
    for path in tensors:
        with safe_open(path, "pt") as file:
            assert all(isinstance(file.get_tensor(name), torch.Tensor) for name in file.keys())  # noqa: SIM118
    for path in files:
        if path.suffix == ".json":
            assert isinstance(json.loads(path.read_text()), dict)


@pytest.mark.slow
def test_the_weights_are_a_plain_file_and_those_of_the_checkpoint(shared: tuple[Run, str]) -> None:
    made, _ = shared
    _, stored, damaged = read_checkpoint(made.checkpoints) or pytest.fail("there is none")
    weights = made.weights().model.state_dict()
    room = {name: torch.empty(size) for name, size in stored.sizes.items()}
    stored.read_into(room)
    assert damaged == [] and stored.of("average").keys() == weights.keys()
    for name, tensor in weights.items():
        assert torch.equal(room[f"average.{name}"], tensor), name


def killed(run: Run, folder: Path) -> Path:
    """The run as a kill would have left it after its last checkpoint."""
    shutil.copytree(run.folder, folder, ignore=shutil.ignore_patterns(".lock"))
    record = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(record | {"state": "running"}))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["flipped", "cut", "gone", "no list"])
def test_a_damaged_share_is_passed_over(shared: tuple[Run, str], tmp_path: Path, damage: str) -> None:
    folder = killed(shared[0], tmp_path / "run")
    older, newest = sorted((folder / "checkpoints").iterdir())
    share = max(newest.rglob("*.safetensors"))
    content = share.read_bytes()
    if damage == "flipped":
        share.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
    elif damage == "cut":
        share.write_bytes(content[:-9])
    else:
        (share if damage == "gone" else newest / "files.json").unlink()
    heard = events(out=folder, resume=True)
    started = next(event for event in heard if isinstance(event, Started))
    heard.close()
    assert started.step == 5 == int(older.name.removeprefix("step-"))
    assert damage == "no list" or any(newest.name in note and "damaged" in note for note in started.notes)
    assert "what each of them holds was a share of the model" in " ".join(started.notes)


@pytest.mark.slow
def test_a_disk_that_is_full_for_one_is_told_once_and_nothing_is_lost(
    command: Command, shared: tuple[Run, str], tmp_path: Path
) -> None:
    folder = killed(shared[0], tmp_path / "run")
    shutil.rmtree(max((folder / "checkpoints").iterdir()))
    assert "cannot be written" in told(run(command(folder, most=10_000)))
    progress, _, damaged = read_checkpoint(folder / "checkpoints") or pytest.fail("there is none")
    assert (progress.step, damaged) == (5, [])
    done = run(command(folder))
    assert done.returncode == 0, done.stderr
    assert_same(Run.load(folder), shared[0])


class Tied(ViT):
    """Its two blocks have an MLP in common."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__(config)
        self.blocks[1].mlp = self.blocks[0].mlp


class Scaled(ViT):
    """One number beside the others."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__(config)
        self.scale = nn.Parameter(torch.ones(()))


@pytest.mark.parametrize(("kind", "sentence"), [(Tied, "belongs to two blocks"), (Scaled, "scale is one number")])
def test_weights_that_cannot_be_cut_are_refused(kind: type[ViT], sentence: str) -> None:
    config = ViTConfig(image_size=8, patch_size=4, width=8, depth=2, heads=2, classes=2)
    check_model(ViT(config))
    with pytest.raises(RecipeError, match=sentence):
        check_model(kind(config))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"train.objective": "dino"}, "train.objective dino follows the weights"),
        ({"train.compile": "yes"}, "train.compile=yes is for a model that is whole"),
    ],
)
def test_what_needs_the_whole_model_is_refused(settings: dict[str, Any], sentence: str) -> None:
    recipe = quick_digits().changed(PLAIN | {"model.head": "none", "data.augment": {}} | SHARD | settings)
    with pytest.raises(RecipeError, match=f"{sentence}.* Set train.parallel=replicate"):
        check_parallel(recipe, Processes(0, 2), objective_class(recipe.train, {}))


def test_one_process_has_nobody_to_share_with(tmp_path: Path) -> None:
    made = Run.load(_trained(tmp_path / "run", SHARD | {"train.budget": "2steps"}))
    assert made.record.choices.parallel == "replicate" and made.recipe.train.parallel == "shard"


def _trained(folder: Path, settings: dict[str, Any]) -> Path:
    for _ in events(quick_digits().changed(PLAIN | settings), out=folder):
        pass
    return folder
