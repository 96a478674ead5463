"""vitral check: what is planted is found, what is clean is left in peace."""

import json
import random
import shutil
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from conftest import Called
from vitral import DataError
from vitral.cli import main
from vitral.data.check import Report, check
from vitral.data.config import Data
from vitral.data.sources import open_source
from vitral.look.check_sheets import _tile


def texture(seed: int, side: int = 96) -> Image.Image:
    """Something like a photograph: noise at all scales, in colour, unlike any other."""
    noise = np.random.default_rng(seed)
    total = np.zeros((side, side, 3))
    for cells in (3, 6, 12, 24, 48):
        layer = Image.fromarray(noise.integers(0, 256, (cells, cells, 3), np.uint8))
        total += np.asarray(layer.resize((side, side), Image.Resampling.BICUBIC), float) / cells**0.5
    total -= total.min()
    return Image.fromarray((total * 255 / total.max()).astype(np.uint8))


@pytest.fixture
def clean(tmp_path: Path) -> Path:
    """Two classes in train and test, 60 and 20 pictures each."""
    for number in range(160):
        split = "train" if number < 120 else "test"
        path = tmp_path / "clean" / split / ("oak", "elm")[number % 2] / f"{number:03}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        texture(number).save(path, quality=90)
    return tmp_path / "clean"


def report(folder: Path) -> Report:
    return check(open_source(Data(source=str(folder), validation=0)))


def kinds(found: Report) -> dict[str, bool]:
    return {finding.kind: finding.serious for finding in found.findings}


def named(found: Report, kind: str) -> set[str]:
    return {
        found.index.samples[number]
        for finding in found.findings
        if finding.kind == kind
        for group in finding.samples
        for number in group
    }


def test_a_clean_set_has_no_findings(clean: Path) -> None:
    found = report(clean)
    assert found.findings == [] and not found.serious and found.compared
    assert found.counts.tolist() == [[60, 0, 20], [60, 0, 20]]


def save(image: Image.Image, path: Path, **how: Any) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, **how)
    return "/".join(path.parts[-3:])


def plant(folder: Path) -> dict[str, set[str]]:
    """One of everything; what is planted, by the finding that should name it."""
    planted: dict[str, set[str]] = {}
    train, test = folder / "train", folder / "test"
    (train / "oak" / "cut.jpg").write_bytes((train / "oak" / "000.jpg").read_bytes()[:800])
    (train / "elm" / "text.png").write_text("no picture")
    planted["unreadable"] = {"train/oak/cut.jpg", "train/elm/text.png"}
    shutil.copy(train / "oak" / "002.jpg", test / "oak" / "seen.jpg")
    planted["leak"] = {"train/oak/002.jpg", "test/oak/seen.jpg"}
    shutil.copy(train / "oak" / "004.jpg", train / "elm" / "doubt.jpg")
    planted["two-labels"] = {"train/oak/004.jpg", "train/elm/doubt.jpg"}
    shutil.copy(train / "oak" / "006.jpg", train / "oak" / "twice.jpg")
    planted["copies"] = {"train/oak/006.jpg", "train/oak/twice.jpg"}
    save(Image.open(train / "oak" / "008.jpg").resize((50, 50)), test / "oak" / "smaller.jpg")
    planted["near-leak"] = {"train/oak/008.jpg", "test/oak/smaller.jpg"}
    save(ImageOps.mirror(Image.open(train / "oak" / "010.jpg")), train / "elm" / "mirrored.png")
    planted["near-two-labels"] = {"train/oak/010.jpg", "train/elm/mirrored.png"}
    save(Image.open(train / "oak" / "012.jpg"), train / "oak" / "again.jpg", quality=40)
    planted["near-copies"] = {"train/oak/012.jpg", "train/oak/again.jpg"}
    exif = Image.Exif()
    exif[0x0112] = 6
    planted["rotated"] = {save(texture(1000), train / "oak" / "turned.jpg", exif=exif)}
    deep = np.random.default_rng(0).integers(0, 65536, (64, 64)).astype(np.uint16)
    planted["deep"] = {save(Image.fromarray(deep), train / "oak" / "deep.png")}
    planted["grey"] = planted["deep"]
    planted["tiny"] = {save(texture(1001).resize((4, 4)), train / "oak" / "tiny.jpg")}
    planted["long"] = {save(texture(1002).resize((400, 60)), train / "oak" / "long.jpg")}
    frames = [texture(1003 + i).quantize() for i in range(2)]
    planted["animated"] = {save(frames[0], train / "oak" / "film.gif", save_all=True, append_images=frames[1:])}
    blank = Image.new("RGB", (96, 96), (240, 240, 240))
    blank.paste(texture(1005).resize((30, 30)), (10, 10))
    odd = save(blank, train / "oak" / "blank.jpg")
    planted["odd"] = {odd, *planted["animated"]}
    return planted


def test_one_of_everything_is_found(clean: Path) -> None:
    planted = plant(clean)
    found = report(clean)
    for kind, samples in planted.items():
        assert samples <= named(found, kind), kind
        assert len(named(found, kind)) <= len(samples) + 3, kind
    serious = {kind for kind, is_serious in kinds(found).items() if is_serious}
    assert serious == {"unreadable", "leak", "two-labels", "near-leak"}
    assert all(finding.what.endswith(".") and finding.advice.endswith(".") for finding in found.findings)


def test_among_too_many_to_compare_each_with_each_an_index_finds_the_same(
    clean: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, called: Callable[..., Called]
) -> None:
    pytest.importorskip("usearch", reason="usearch is not installed (pip install 'vitral[test]')")
    plant(clean)
    index = open_source(Data(source=str(clean), validation=0))
    monkeypatch.setattr("vitral.data.check.MOST_COMPARED", 100_000_000)
    each_with_each = check(index)
    monkeypatch.setattr("vitral.data.check.MOST_COMPARED", 100)
    by_index = check(index, directory=tmp_path / "data")
    assert by_index.findings == each_with_each.findings and by_index.compared
    assert not [
        path for path in (tmp_path / "data").iterdir() if path.is_file()
    ]  # thumbnails lay there, without a name
    (tmp_path / "a file").touch()
    with pytest.raises(DataError, match="GB for thumbnails cannot be had in"):
        check(index, directory=tmp_path / "a file")
    monkeypatch.setattr("vitral.data.check.HAS_INDEX", False)
    told = called("check", "clean", cwd=tmp_path).stdout
    assert "Near copies were not looked for" in told and "pip install 'vitral[near]'" in told.replace("\n", " ")


def test_raw_pictures_of_a_camera_are_not_passed_over_in_silence(clean: Path) -> None:
    for number in range(3):
        path = clean / "train" / "ash" / f"IMG_{number}.DNG"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"II*\0")
    found = report(clean)
    assert kinds(found)["unread"] is True and "3 .dng" in found.findings[0].what


def test_what_is_wrong_with_the_classes(clean: Path, tmp_path: Path) -> None:
    save(texture(1), clean / "test" / "ash" / "1.png")
    found = kinds(report(clean))
    assert found["not-in-train"] is True
    for number in range(3):
        save(texture(2000 + number), clean / "train" / "ash" / f"{number}.png")
        save(texture(3000 + number), clean / "train" / "Oak" / f"{number}.png")
    found = kinds(report(clean))
    assert (found["few"], found["imbalance"], found["names"], found["not-in-split"]) == (False, False, True, False)
    advice = {one.kind: one.advice for one in report(clean).findings}
    assert "how well that class is recognised" in advice["not-in-split"]
    assert "look at each class's figures, not at the accuracy alone" in advice["imbalance"]
    save(texture(1), tmp_path / "one" / "ash" / "1.png")
    assert kinds(report(tmp_path / "one"))["one-class"] is True


def test_icons_that_differ_only_in_what_is_transparent_are_no_copies(tmp_path: Path) -> None:
    random_shapes = np.random.default_rng(0)
    for number in range(40):
        shape = Image.fromarray(random_shapes.integers(0, 2, (6, 6), np.uint8) * 255).resize(
            (48, 48), Image.Resampling.NEAREST
        )
        icon = Image.new("RGBA", (48, 48))
        icon.putalpha(shape)
        save(
            icon, tmp_path / "icons" / ("train", "test")[number % 4 == 0] / ("on", "off")[number % 2] / f"{number}.png"
        )
    found = report(tmp_path / "icons")
    assert {kind for kind in kinds(found) if "leak" in kind or "copies" in kind or "labels" in kind} == set()
    assert len(named(found, "transparent")) == 40


def test_what_check_calls_readable_can_be_packed(tmp_path: Path) -> None:
    """Bands that are three, without a word on colours: as microscopes and satellites write them."""
    import tifffile

    from vitral import Preprocess
    from vitral.data.pack import pack

    for number in range(8):
        path = tmp_path / "bands" / "ab"[number % 2] / f"{number}.tif"
        path.parent.mkdir(parents=True, exist_ok=True)
        values = np.asarray(texture(number, 32))
        tifffile.imwrite(path, values, photometric="minisblack", planarconfig="contig")
    index = open_source(Data(source=str(tmp_path / "bands")))
    assert not check(index).serious and index.channels == 3
    grey = Preprocess(image_size=(16, 16), channels=3, mean=(0.0,) * 3, std=(1.0,) * 3)
    assert pack(index, grey, tmp_path / "data").left_out == {}


# 50 of each in a real set

DEFECTS: dict[str, tuple[float, Callable[[Image.Image, random.Random], Image.Image]]] = {
    "resized": (0.95, lambda image, draw: image.resize([round(side * draw.uniform(0.3, 0.8)) for side in image.size])),
    "recompressed": (0.95, lambda image, draw: recompressed(image, draw.randint(30, 70))),
    "flipped": (0.95, lambda image, _: ImageOps.mirror(image)),
    "cropped": (0.80, lambda image, draw: cropped(image, draw)),
}


def recompressed(image: Image.Image, quality: int) -> Image.Image:
    buffer = BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return Image.open(buffer)


def cropped(image: Image.Image, draw: random.Random) -> Image.Image:
    """5 % of the width and of the height are gone, at random sides."""
    width, height = round(0.95 * image.width), round(0.95 * image.height)
    left, top = draw.randint(0, image.width - width), draw.randint(0, image.height - height)
    return image.crop((left, top, left + width, top + height))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["imagenette-mini", "food", "ants-bees"])
def test_fifty_of_each_defect_in_a_real_set(large_data: Callable[[str], Path], tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    shutil.copytree(large_data(name), folder)
    before = report(folder)
    draw = random.Random(0)
    originals = sorted(path for path in (folder / "train").rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    pairs: dict[str, list[tuple[str, str]]] = {}
    for defect, (_, change) in DEFECTS.items():
        for original in draw.sample(originals, 50):
            copy = folder / "val" / original.parent.name / f"{defect}-{original.stem}.jpg"
            if not (folder / "val").exists():
                copy = folder / "test" / original.parent.name / copy.name
            copy.parent.mkdir(parents=True, exist_ok=True)
            change(Image.open(original).convert("RGB"), draw).save(copy, quality=95)
            pairs.setdefault(defect, []).append(tuple("/".join(p.parts[-3:]) for p in (original, copy)))  # type: ignore[arg-type]
    for number, original in enumerate(draw.sample(originals, 50)):
        content = original.read_bytes()
        (original.parent / f"cut-{number}.jpg").write_bytes(content[: len(content) // 2])
        shutil.copy(original, original.parent / f"same-{number}{original.suffix}")
    found = report(folder)
    together = {
        frozenset((found.index.samples[a], found.index.samples[b]))
        for finding in found.findings
        if finding.kind.startswith("near-")
        for a, b in finding.samples
    }
    for defect, (least, _) in DEFECTS.items():
        recall = np.mean([frozenset(pair) in together for pair in pairs[defect]])
        print(f"{name}: {defect} {recall:.0%} of 50")
        assert recall >= least, defect
    assert len([sample for sample in named(found, "unreadable") if "/cut-" in sample]) == 50
    assert len([sample for sample in named(found, "copies") if "/same-" in sample]) == 50
    flagged = {sample for kind in ("near-leak", "near-two-labels", "near-copies") for sample in named(before, kind)}
    print(f"{name}: {len(flagged)} of {len(before.checks)} clean pictures flagged")
    assert len(flagged) <= 0.01 * len(before.checks)


@pytest.mark.slow
def test_the_placeholder_among_the_ants_is_named(large_data: Callable[[str], Path]) -> None:
    found = report(large_data("ants-bees"))
    assert "train/ants/imageNotFound.gif" in named(found, "odd")
    assert not found.serious


# The command


def test_the_command_draws_sheets_and_tells_by_its_exit_code(
    clean: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    main(["check", "clean"])
    assert "160 pictures looked at: nothing was found." in capsys.readouterr().out
    assert not (tmp_path / "checks" / "clean" / "findings.png").exists()
    plant(clean)
    (clean / "train" / "<script>").mkdir()
    save(texture(77), clean / "train" / "<script>" / "name\nwith a line.png")
    with pytest.raises(SystemExit) as stopped:
        main(["check", "clean", "--json", "--augment", "digits", "--out", "sheets"])
    assert stopped.value.code == 1
    told = json.loads(capsys.readouterr().out)
    assert told["serious"] and {"leak", "unreadable"} <= {finding["kind"] for finding in told["findings"]}
    drawn = {str(path.relative_to(tmp_path / "sheets")) for path in (tmp_path / "sheets").rglob("*") if path.is_file()}
    assert {"overview.png", "sizes.png", "findings.png", "findings.csv", "augmented.png"} <= drawn
    assert {"classes/000-_script_.png", "classes/001-elm.png", "classes/002-oak.png"} <= drawn
    for name in drawn - {"findings.csv"}:
        with Image.open(tmp_path / "sheets" / name) as image:
            assert image.width > 900 and np.asarray(image.convert("L")).std() > 5
    mended = ["check", str(tmp_path / "clean" / "train"), "--out", "sheets"]
    shutil.rmtree(clean / "train")
    for number in range(8):
        save(texture(500 + number), clean / "train" / "ab"[number % 2] / f"{number}.png")
    main(mended)
    assert not (tmp_path / "sheets" / "findings.png").exists()  # nothing old is taken for new


def test_a_mistake_is_told_before_the_pictures_are_looked_at(clean: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for args, sentence in (
        (["--augment", "nope"], "There is no recipe or folder nope. `vitral ls` lists the recipes"),
        (["train.epochs=7"], "train.epochs is no setting of the pictures"),
        (["--out", "/proc/nowhere"], "cannot be written"),
    ):
        with pytest.raises(SystemExit):
            main(["check", str(clean), *args])
        assert sentence in capsys.readouterr().err


def test_a_large_picture_is_not_kept_whole_for_a_sheet(clean: Path) -> None:
    texture(999).resize((3000, 2000)).save(clean / "train" / "elm" / "large.png")
    found = report(clean)
    image = _tile(found, list(found.index.samples).index("train/elm/large.png")).image
    assert image is not None and max(image.size) < 500
