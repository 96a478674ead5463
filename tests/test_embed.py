"""Vectors: the right ones, in the right rows, whatever happens on the way."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from filelock import FileLock
from numpy.typing import NDArray
from PIL import Image
from sklearn.metrics.pairwise import cosine_similarity

from conftest import FIXTURES
from vitral import Run, load_pretrained
from vitral.cli import vitral
from vitral.data.sources.layout import arrange
from vitral.errors import RunError
from vitral.evaluation import embed as module
from vitral.evaluation.embed import LOOKING, SHARD, Embeddings, embed, on_a_plane
from vitral.look.embedding_map import _free_cells, draw_map
from vitral.progress import Progress
from vitral.targets import Target
from vitral.weights.own import identity

WEIGHTS = FIXTURES / "timm_vit"

MAPPED = 100  # t-SNE of all the digits takes longer than all these tests

COMMAND = f"""
import os, signal, sys
from vitral.cli import main
from vitral.evaluation import embed as module

module.MOST_ON_MAP = {MAPPED}
"""

KILLED_AT_THE_SECOND_SHARD = """

whole, written = module.write_whole, []

def write_whole(path, content):
    whole(path, content)
    written.append(path)
    if len(written) == 2:
        os.kill(os.getpid(), signal.SIGKILL)

module.write_whole = write_whole
"""

MAIN = "main(sys.argv[1:])"


@pytest.fixture(scope="module", autouse=True)
def _small_maps() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MOST_ON_MAP", MAPPED)
        yield


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Embeddings:
    return embed(WEIGHTS, "digits", tmp_path_factory.mktemp("embedded") / "digits")


def test_a_vector_is_what_the_head_sees(digits: Embeddings, seven: NDArray[np.uint8]) -> None:
    pretrained = load_pretrained(WEIGHTS)
    row = int(np.flatnonzero(digits.labels == 7)[0])
    with torch.inference_mode():
        expected = pretrained.model.pool(pretrained.model.features(pretrained.preprocess(seven)[None]))[0]
    np.testing.assert_allclose(digits.vectors[row], expected.numpy(), atol=1e-5)


def test_the_file_holds_all_that_belongs_together(digits: Embeddings) -> None:
    with np.load(digits.folder / "embeddings.npz", allow_pickle=False) as told:
        assert set(told) == {"samples", "labels", "class_names", "splits", "vectors"}
        assert told["vectors"].dtype == np.float32 and told["vectors"].shape == (1_797, 32)
        np.testing.assert_array_equal(told["vectors"], digits.vectors)
        assert told["samples"].tolist() == digits.samples
        assert told["class_names"][told["labels"]].tolist() == [digits.class_names[label] for label in digits.labels]
        assert (told["splits"] == "test").sum() == 360


def test_the_nearest_are_those_of_a_plain_comparison(digits: Embeddings, seven: NDArray[np.uint8]) -> None:
    row = int(np.flatnonzero(digits.labels == 7)[0])
    expected = cosine_similarity(np.asarray(digits.vectors))[row]
    found = digits.nearest(seven, 20)
    assert found[0].number == row and found[0].similarity == pytest.approx(1, abs=1e-5)
    np.testing.assert_allclose([one.similarity for one in found], np.sort(expected)[::-1][:20], atol=1e-5)
    assert all(one.label == digits.class_names[digits.labels[one.number]] for one in found)


@pytest.mark.slow
def test_killed_and_gone_on_is_the_same_as_never_killed(digits: Embeddings, tmp_path: Path) -> None:
    arguments = ["embed", str(WEIGHTS), "digits", "--out", str(tmp_path / "killed")]
    script = COMMAND + KILLED_AT_THE_SECOND_SHARD + MAIN
    killed = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    state = json.loads((tmp_path / "killed" / "embedding.json").read_text())
    assert state["done"] == 2 * SHARD
    assert not (tmp_path / "killed" / "embeddings.npz").exists()
    gone_on = subprocess.run([sys.executable, "-c", COMMAND + MAIN, *arguments], capture_output=True, text=True)
    assert gone_on.returncode == 0, gone_on.stderr
    assert f"looking at pictures: {2 * SHARD:,} of 1,797 were done before" in gone_on.stderr
    for name in ("vectors.npy", "embedding.json", "map.png"):
        assert (tmp_path / "killed" / name).read_bytes() == (digits.folder / name).read_bytes(), name


@pytest.mark.slow
def test_what_is_done_is_not_done_again_and_other_weights_begin_anew(tmp_path: Path) -> None:
    stages: list[Progress] = []
    embed(WEIGHTS, "digits", tmp_path)
    embed(WEIGHTS, "digits", tmp_path, tell=stages.append)
    assert [stage for stage in stages if "packing" not in stage.doing] == [Progress(1_797, 1_797, LOOKING)]
    stages.clear()
    other = embed(FIXTURES / "timm_vit_gap", "digits", tmp_path, tell=stages.append)
    assert Progress(0, 1_797, LOOKING) in stages
    with np.load(tmp_path / "embeddings.npz") as written:
        np.testing.assert_array_equal(written["vectors"], other.vectors)


def test_two_do_not_write_into_one_folder(tmp_path: Path) -> None:
    with FileLock(tmp_path / ".lock"), pytest.raises(RunError, match="Another process is writing"):
        embed(WEIGHTS, "digits", tmp_path)


def test_the_identity_of_weights_is_their_numbers(trained: Run) -> None:
    one = load_pretrained(trained.folder)
    assert identity(one) == identity(load_pretrained(trained.folder / "model.safetensors"))
    with torch.no_grad():
        next(one.model.parameters()).add_(1e-3)
    assert identity(one) != identity(load_pretrained(trained.folder))


def test_a_run_is_embedded_and_asked_for_what_is_alike(trained: Run, seven: NDArray[np.uint8], tmp_path: Path) -> None:
    picture = tmp_path / "seven.png"
    Image.fromarray(seven).save(picture)
    common = ["embed", str(trained.folder), "digits", "--out", str(tmp_path / "out"), "--nearest", str(picture)]
    result = CliRunner().invoke(vitral, [*common, "-k", "3"])
    assert result.exit_code == 0, result.output
    assert "1,797 pictures, 16 numbers each." in result.output
    assert "embeddings.npz, map.png, nearest.png" in result.output
    told = json.loads(CliRunner().invoke(vitral, [*common, "-k", "3", "--json"]).stdout)
    assert told["shape"] == [1_797, 16] and len(told["nearest"]) == 3
    assert told["nearest"][0]["label"] == "7" and told["nearest"][0]["similarity"] == pytest.approx(1, abs=1e-5)
    with Image.open(tmp_path / "out" / "nearest.png") as drawn:
        assert drawn.width > 500


@pytest.mark.parametrize("count", [3, 6])
def test_pictures_need_not_be_sorted(count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAL_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shoebox").mkdir()
    for number in range(count):
        pixels = np.random.default_rng(number).integers(0, 255, (32, 32, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / "shoebox" / f"{number}.png")
    asked = ["embed", str(WEIGHTS), "shoebox", "--nearest", "shoebox/1.png", "-k", "1"]
    result = CliRunner().invoke(vitral, asked)
    assert result.exit_code == 0, result.output
    assert f"{count} pictures, 32 numbers each." in result.output and "shoebox" in result.output
    assert ("too few for a map" in result.output) == (count == 3)
    with np.load(tmp_path / "embeddings" / "shoebox" / "timm_vit" / "embeddings.npz") as file:
        assert file["class_names"].tolist() == ["unsorted"] and len(file["vectors"]) == count
    refused = CliRunner().invoke(vitral, ["probe", str(WEIGHTS), "shoebox"])
    assert "no class folders" in str(refused.exception)


@pytest.mark.parametrize(
    "names",
    [
        ["train/1.png", "train/2.png", "train/3.png"],
        ["test/1.png", "test/2.png", "test/3.png"],
        ["1.png", "2.png", "kept/3.png"],
    ],
)
def test_pictures_that_are_sorted_in_part_are_all_taken(names: list[str]) -> None:
    layout = arrange(names, "box", unsorted=True)
    assert layout.paths == names and set(layout.classes) == {"unsorted"}
    sorted_ones = ["cat/1.png", "dog/2.png"]
    assert arrange(sorted_ones, "box", unsorted=True) == arrange(sorted_ones, "box")


def test_groups_stay_together_on_the_plane() -> None:
    random = np.random.default_rng(0)
    labels = np.arange(120) % 3
    vectors = (np.eye(3, 20)[labels] * 5 + random.normal(size=(120, 20)) * 0.3).astype(np.float32)
    places = on_a_plane(vectors)
    apart = np.linalg.norm(places[:, None] - places[None], axis=2)
    np.fill_diagonal(apart, np.inf)
    assert (labels[apart.argmin(axis=1)] == labels).mean() > 0.95


def test_every_picture_of_the_map_has_a_cell_of_its_own() -> None:
    wanted = np.zeros((50, 2))  # all want the same
    cells = _free_cells(wanted, 12, 9)
    assert len({tuple(cell) for cell in cells}) == 50
    assert cells.sum(axis=1).max() <= 11  # none is farther than needed


@pytest.mark.parametrize(("pictures", "classes"), [(5, 1), (300, 40)])
def test_a_map_can_have_few_pictures_and_many_classes(pictures: int, classes: int, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    labels = np.arange(pictures) % classes
    target = Target(names=tuple(f"class $ {number}" for number in range(classes)))

    def images(rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        return random.integers(0, 256, (len(rows), 1, 8, 8), np.uint8)

    draw_map(tmp_path / "map.png", random.normal(size=(pictures, 2)), target, np.eye(classes)[labels], images, pictures)
    with Image.open(tmp_path / "map.png") as drawn:
        assert drawn.width > 1_000


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="asks Linux for the memory")
def test_memory_does_not_grow_with_the_pictures(large_data: Callable[[str], Path], tmp_path: Path) -> None:
    """60,000 pictures of CIFAR-10; the vectors alone are 7.7 MB, and what each batch leaves behind would be more."""
    large_data("cifar-10-batches-bin")
    used: dict[int, int] = {}

    def tell(progress: Progress) -> None:
        if progress.doing == LOOKING and progress.done % 10_240 == 0:
            status = Path(f"/proc/{os.getpid()}/status").read_text()
            used[progress.done] = int(status.split("RssAnon:")[1].split()[0])  # kB, without what files are mapped to

    embed(WEIGHTS, "cifar10", tmp_path, tell=tell)
    assert len(used) >= 5
    grown = max(size for done, size in used.items() if done > 10_240) - used[10_240]
    assert grown < 4_000, used


def test_tokens_of_patches_are_those_of_the_model(tmp_path: Path) -> None:
    """In half precision, in the order of the vectors."""
    (tmp_path / "box").mkdir()
    for number in range(4):
        pixels = np.random.default_rng(number).integers(0, 255, (16, 16, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / "box" / f"{number}.png")
    weights = load_pretrained(WEIGHTS)
    embeddings = embed(weights, tmp_path / "box", tmp_path / "out", patches=True)
    with torch.no_grad():
        images = weights.preprocess.normalise(torch.from_numpy(embeddings.images(np.arange(4))))
        expected = weights.model.patch_tokens(weights.model.features(images))
    with np.load(tmp_path / "out" / "patches.npz") as file:
        assert file["grid"].tolist() == [4, 4] and file["samples"].tolist() == embeddings.samples
        tokens = torch.from_numpy(file["tokens"].astype(np.float32))
    torch.testing.assert_close(tokens, expected, rtol=2e-3, atol=2e-3)
    assert not list((tmp_path / "out").glob("*.part"))
