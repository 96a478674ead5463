"""Packs: decoded once, the same for ever, whoever is killed and however often."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

import vitral.data.pack as packs
from vitral import DataError, Preprocess
from vitral.data.config import Data, Resize
from vitral.data.pack import Pack, mean_and_std, pack, packing
from vitral.data.sources import Index, Pixels, open_source

SMALL = Preprocess(image_size=(16, 16), channels=3, mean=(0.0,) * 3, std=(1.0,) * 3)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two classes of 20 textured pictures, 60 × 48."""
    random = np.random.default_rng(0)
    for number in range(40):
        path = tmp_path / "pictures" / ("cats", "dogs")[number % 2] / f"{number:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (48, 60, 3), np.uint8)).save(path)
    return tmp_path / "pictures"


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs, "CHUNK", 3 * 16 * 16 * 4)  # 4 pictures: 10 chunks


def opened(folder: Path) -> Index:
    return open_source(Data(source=str(folder)))


def only_pack(directory: Path) -> Path:
    (found,) = (path for path in (directory / "packs").iterdir() if path.is_dir())
    return found


def written(directory: Path) -> list[Path]:
    return sorted(path for path in only_pack(directory).iterdir())


def test_a_pack_is_what_the_preprocessing_gives(folder: Path, tmp_path: Path) -> None:
    index = opened(folder)
    made = pack(index, SMALL, tmp_path)
    for number in range(40):
        assert np.array_equal(made.images[number], SMALL.resized(folder / index.samples[number]))
    assert {path.name for path in written(tmp_path)} == {"pixels.bin", "pack.json"}


class Counted:
    """A storage that counts how often it is read."""

    def __init__(self, index: Index) -> None:
        self.storage, self.reads = index.storage, 0

    def read(self, number: int) -> bytes | NDArray[np.uint8]:
        self.reads += 1
        return self.storage.read(number)

    def stamp(self, number: int) -> str:
        return self.storage.stamp(number)


def counted(folder: Path, directory: Path, preprocess: Preprocess = SMALL) -> tuple[int, Pack]:
    """How many pictures were read to get the pack."""
    index = opened(folder)
    storage = Counted(index)
    made = pack(Index(**{**vars(index), "storage": storage}), preprocess, directory)
    return storage.reads, made


def test_pictures_are_decoded_once(folder: Path, tmp_path: Path) -> None:
    reads, first = counted(folder, tmp_path)
    assert reads == 40
    reads, again = counted(folder, tmp_path)
    assert reads == 0
    assert np.array_equal(first.images, again.images) and first.sha256 == again.sha256
    # Another crop of the same stored picture, another mean: the same pack. Another size: another.
    assert counted(folder, tmp_path, SMALL.model_copy(update={"mean": (0.5,) * 3}))[0] == 0
    assert (
        counted(folder, tmp_path, SMALL.model_copy(update={"image_size": (12, 12), "resize": Resize(share=0.75)}))[0]
        == 0
    )
    assert counted(folder, tmp_path, SMALL.model_copy(update={"image_size": (12, 12)}))[0] == 40


def test_a_copied_folder_is_the_same_set_and_a_changed_picture_is_not(folder: Path, tmp_path: Path) -> None:
    one = pack(opened(folder), SMALL, tmp_path)
    shutil.copytree(folder, tmp_path / "elsewhere" / "again", copy_function=shutil.copy)  # new times
    assert pack(opened(tmp_path / "elsewhere" / "again"), SMALL, tmp_path).sha256 == one.sha256
    picture = folder / "cats" / "00.png"
    Image.fromarray(255 - np.asarray(Image.open(picture))).save(picture)
    changed = pack(opened(folder), SMALL, tmp_path)
    assert changed.sha256 != one.sha256
    assert np.array_equal(changed.images[0], SMALL.resized(picture))


def flip_a_byte(pixels: Path) -> None:
    with pixels.open("r+b") as file:
        file.seek(5000)
        byte = file.read(1)
        file.seek(5000)
        file.write(bytes([byte[0] ^ 1]))


@pytest.mark.parametrize("damage", ["a flipped bit", "cut", "gone", "no json", "half a json"])
def test_a_torn_pack_is_noticed_and_only_what_is_torn_is_made_anew(folder: Path, tmp_path: Path, damage: str) -> None:
    first = np.array(pack(opened(folder), SMALL, tmp_path).images)
    pixels, done = only_pack(tmp_path) / "pixels.bin", only_pack(tmp_path) / "pack.json"
    match damage:
        case "a flipped bit":
            flip_a_byte(pixels)
        case "cut":
            os.truncate(pixels, pixels.stat().st_size - 1000)
        case "gone":
            pixels.unlink()
        case "no json":
            done.unlink()
        case "half a json":
            done.write_text(done.read_text()[:500])
    reads, again = counted(folder, tmp_path)
    assert np.array_equal(again.images, first)
    assert reads == (4 if damage in ("a flipped bit", "cut") else 40)
    assert counted(folder, tmp_path)[0] == 0


def test_who_stops_goes_on_from_there(folder: Path, tmp_path: Path) -> None:
    steps = packing(opened(folder), SMALL, tmp_path)
    for told in steps:
        if told.done >= 16:
            break
    steps.close()  # as Ctrl-C does
    reads, made = counted(folder, tmp_path)
    assert 0 < reads <= 24
    assert np.array_equal(made.images[39], SMALL.resized(folder / made.index.samples[39]))


PACKER = """
import sys
import vitral.data.pack as packs
from vitral import Preprocess
from vitral.data.config import Data
from vitral.data.sources import open_source
packs.CHUNK = 3 * 16 * 16 * 4
from pathlib import Path
steps = packs.packing(
    open_source(Data(source=sys.argv[1])), Preprocess(image_size=(16, 16), channels=3, mean=(0.0,) * 3, std=(1.0,) * 3),
    Path(sys.argv[2]),
)
while True:
    try:
        told = next(steps)
    except StopIteration as end:
        print("sha256", end.value.sha256)
        break
    print(told.done, told.waiting, flush=True)
    sys.stdin.readline()  # until it may go on
"""


def packer(folder: Path, directory: Path) -> "subprocess.Popen[str]":
    """It waits for a line after each of its own."""
    command = [sys.executable, "-c", PACKER, str(folder), str(directory)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def next_line(child: "subprocess.Popen[str]") -> list[str]:
    assert child.stdin is not None and child.stdout is not None
    line = child.stdout.readline().split()
    child.stdin.write("\n")
    child.stdin.flush()
    return line


def let_go(child: "subprocess.Popen[str]") -> None:
    """It needs no more lines."""
    assert child.stdin is not None
    child.stdin.close()
    child.stdin = None


def test_a_killed_process_loses_nothing_that_was_done(folder: Path, tmp_path: Path) -> None:
    child = packer(folder, tmp_path)
    while int(next_line(child)[0]) < 12:
        pass
    child.kill()
    child.communicate()
    assert not (only_pack(tmp_path) / "pack.json").exists()
    reads, made = counted(folder, tmp_path)
    assert 0 < reads <= 28
    assert made.sha256 == pack(opened(folder), SMALL, tmp_path / "another").sha256


@pytest.mark.slow
def test_two_processes_at_once_do_no_harm(folder: Path, tmp_path: Path) -> None:
    children = [packer(folder, tmp_path) for _ in range(2)]
    assert sorted(next_line(child)[1] for child in children) == ["False", "True"]  # one packs, one waits
    for child in children:
        let_go(child)
    told = [child.communicate()[0].splitlines() for child in children]
    assert told[0][-1] == told[1][-1] == f"sha256 {pack(opened(folder), SMALL, tmp_path / 'another').sha256}"
    assert counted(folder, tmp_path)[0] == 0


def test_who_comes_second_waits_and_says_so(folder: Path, tmp_path: Path) -> None:
    first = packer(folder, tmp_path)
    assert first.stdout is not None
    first.stdout.readline()
    steps = packing(opened(folder), SMALL, tmp_path)
    assert next(steps).waiting
    first.kill()  # the lock goes with the process
    first.communicate()
    assert sum(not told.waiting for told in steps) >= 9


def test_a_full_disk_is_a_sentence_and_not_the_end_of_the_process(folder: Path, tmp_path: Path) -> None:
    code = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (8000, 8000))\n{PACKER}"
    child = subprocess.run([sys.executable, "-c", code, str(folder), str(tmp_path)], capture_output=True, text=True)
    assert child.returncode == 1
    assert "DataError: The pictures cannot be packed into" in child.stderr
    assert "data.directory" in child.stderr
    assert counted(folder, tmp_path)[1].left_out == {}  # and with room it goes on


def test_what_cannot_be_read_is_named_and_left_out(folder: Path, tmp_path: Path) -> None:
    (folder / "cats" / "00.png").write_bytes(b"no picture")
    made = pack(opened(folder), SMALL, tmp_path)
    assert list(made.left_out_rows()) == [
        ("cats/00.png", "cats", str(made.index.splits[0]), made.left_out[0]),
    ]
    assert "cats/00.png is not a picture that Vitral reads" in made.left_out[0]
    assert "1 of 40 pictures cannot be read" in made.notes[-1]
    assert sum(len(made.of(split)) for split in ("train", "validation", "test")) == len(list(made.rows())) == 39
    for number in range(12):
        (folder / "dogs" / f"{2 * number + 1:02}.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match="13 of 40 pictures cannot be read .* That is too many: `vitral check"):
        pack(opened(folder), SMALL, tmp_path)


def test_pixels_stay_in_memory_and_are_the_same(tmp_path: Path) -> None:
    index = open_source(Data(source="digits"))
    assert isinstance(index.storage, Pixels)
    grey = Preprocess(image_size=(8, 8), channels=1, mean=(0.0,), std=(1.0,))
    made = pack(index, grey, tmp_path)
    assert np.array_equal(made.images[:, 0], index.storage.images)
    larger = grey.model_copy(update={"image_size": (12, 12)})
    assert np.array_equal(pack(index, larger, tmp_path).images[5], larger.resized(index.storage.images[5]))
    assert list(tmp_path.iterdir()) == []


def test_mean_and_std_are_those_of_numpy(folder: Path, tmp_path: Path) -> None:
    made = pack(opened(folder), SMALL, tmp_path)
    chosen = made.of("train")
    mean, std = mean_and_std(made, chosen)
    pixels = made.images[chosen] / 255
    np.testing.assert_allclose(mean, pixels.mean(axis=(0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(std, pixels.std(axis=(0, 2, 3)), rtol=1e-9)
    for path in folder.rglob("*.png"):
        Image.new("RGB", (16, 16), (0, 51, 255)).save(path)
    assert mean_and_std(pack(opened(folder), SMALL, tmp_path), chosen) == ((0.0, 0.2, 1.0), (1.0, 1.0, 1.0))


def test_other_bytes_of_the_same_name_size_and_time_are_noticed(tmp_path: Path) -> None:
    """As archives that are made to be reproducible leave them."""
    for place, level in (("one", 10), ("two", 200)):
        for name in ("a/1.bmp", "a/2.bmp", "b/1.bmp", "b/2.bmp"):
            path = tmp_path / place / name
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (16, 16), (level,) * 3).save(path)
            os.utime(path, (0, 0))
    one, two = (pack(opened(tmp_path / place), SMALL, tmp_path) for place in ("one", "two"))
    assert one.images[0, 0, 0, 0] == 10 and two.images[0, 0, 0, 0] == 200
    assert one.sha256 != two.sha256


def test_a_picture_that_was_out_of_reach_for_a_moment_comes_back(folder: Path, tmp_path: Path) -> None:
    class Moody(Counted):
        def read(self, number: int) -> bytes | NDArray[np.uint8]:
            if number == 7:
                raise DataError("07 cannot be read (Input/output error).")
            return super().read(number)

    index = opened(folder)
    assert list(pack(Index(**{**vars(index), "storage": Moody(index)}), SMALL, tmp_path).left_out) == [7]
    reads, again = counted(folder, tmp_path)
    assert again.left_out == {} and 5 <= reads < 10  # tried again, and its chunk made anew
    assert np.array_equal(again.images[7], SMALL.resized(folder / again.index.samples[7]))


def test_a_finished_pack_can_be_used_where_nothing_may_be_written(folder: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else")
    code = f"import os; os.setegid(65534); os.seteuid(65534)\n{PACKER}"
    # Not in tmp_path: every pytest that starts closes the folder above it to others.
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)
        shutil.copytree(folder, f"{place}/pictures")
        pack(opened(Path(f"{place}/pictures")), SMALL, Path(f"{place}/data"))
        needed = "vitral.data.pack, vitral.data.sources.folder, vitral.data.sources.named, threadpoolctl, torch"
        code = code.replace("os.setegid", f"import {needed}; os.setegid")  # nobody may not look into the home of root
        arguments = [f"{place}/pictures", f"{place}/data"]
        done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    assert done.stdout.startswith("sha256"), done.stderr


# Scaled decoding


@pytest.fixture(scope="module")
def photo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real photograph, 640 × 427, as a large JPEG."""
    from sklearn.datasets import load_sample_image

    path = tmp_path_factory.mktemp("photo") / "china.jpg"
    Image.fromarray(load_sample_image("china.jpg")).resize((2560, 1708)).save(path, quality=92)
    return path


def test_scaled_decoding_gives_nearly_the_same_and_is_part_of_the_preprocessing(photo: Path) -> None:
    full = SMALL.model_copy(update={"image_size": (64, 64)})
    scaled = full.model_copy(update={"jpeg": "scaled"})
    difference = np.abs(full.resized(photo).astype(int) - scaled.resized(photo).astype(int))
    assert 0 < difference.mean() < 2  # of 255
    assert full.stage != scaled.stage
    assert Preprocess.read(scaled.write()) == scaled


@pytest.mark.parametrize("orientation", [1, 6])
def test_scaled_decoding_never_goes_below_twice_the_size(photo: Path, tmp_path: Path, orientation: int) -> None:
    from vitral.data.decode import decode

    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.open(photo).resize((1600, 400)).save(tmp_path / "wide.jpg", exif=exif)
    at_least = (100, 400) if orientation == 1 else (400, 100)
    decoded = decode(tmp_path / "wide.jpg", at_least=at_least)
    assert isinstance(decoded, Image.Image)
    assert decoded.size == ((400, 100) if orientation == 1 else (100, 400))
    one_more = decode(tmp_path / "wide.jpg", at_least=(at_least[0] + 1, at_least[1]))
    assert isinstance(one_more, Image.Image)
    assert min(one_more.size) == 200
