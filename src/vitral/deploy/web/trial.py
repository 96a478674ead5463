"""Does a page answer as the model that it is from? It is asked in a real Chromium about real pictures, as a person asks
it: the file is opened, and picture after picture is chosen from disk."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitral.data.decode import Picture, decode
from vitral.data.preprocess import Preprocess
from vitral.deploy.web.chromium import Chromium
from vitral.errors import DataError
from vitral.graph import GraphModel
from vitral.predictions import prediction_of
from vitral.progress import Progress, Tell, silent
from vitral.targets import columns

TOLERANCE = 0.01  # of a probability; of a number, in standard deviations
NEAR_TIE = 0.001  # two probabilities that are closer, or one and its threshold, may fall either way
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "AVIF")  # that browsers read
FEW = 3  # examples in a sentence
ANSWER = """self.coming = new Promise((done) => document.addEventListener("answer", ({ detail }) =>
    done({ ...detail, attention: detail.attention && [...detail.attention.values], now: performance.now() / 1000 }),
    { once: true })); null"""


@dataclass(frozen=True)
class PageTrial:
    """How a page answered for real pictures, beside the model that it is from; or why it was not tried."""

    browser: str = ""  # with its version
    pictures: int = 0
    split: str = ""
    difference: float = 0.0  # the largest one of a probability; of a number, in standard deviations
    near_ties: int = 0  # pictures with another answer, where two are as good as equal
    changed: tuple[str, ...] = ()  # pictures with another answer, and both answers
    unread: int = 0  # pictures of a kind that no browser reads
    first: float = 0.0  # seconds from opening the file to the first answer
    seconds: float = 0.0  # of an answer after that: the median
    reason: str = ""  # why it was not tried

    @property
    def is_same(self) -> bool:
        """Whether it answers as the model does, as far as it was tried."""
        return not self.changed and self.difference <= TOLERANCE

    def __str__(self) -> str:
        if self.reason:
            return f"The page itself was not tried in a browser: {self.reason}"
        same, ties = self.pictures - self.near_ties, " but near-ties" if self.near_ties else ""
        unread = f" {self.unread} more are of a kind that browsers do not read." if self.unread else ""
        return (
            f"Tried in {self.browser} on {self.pictures} {self.split} pictures: {self._off}, and {same} of "
            f"{self.pictures} answers are the same{ties}.{unread} From opening it to the first answer {self.first:.1f} "
            f"s, and {self.seconds:.2f} s an answer after that."
        )

    @property
    def faults(self) -> str:
        """What is wrong, in sentences."""
        more = f" and {len(self.changed) - FEW} more" if len(self.changed) > FEW else ""
        words = f" {len(self.changed)} answers changed: {', '.join(self.changed[:FEW])}{more}." if self.changed else ""
        return f"Tried in {self.browser} on {self.pictures} {self.split} pictures: {self._off}.{words}"

    @property
    def _off(self) -> str:
        return f"probabilities differ by at most {self.difference:.2g}"


def try_page(
    browser: Chromium,
    url: str,
    graph: GraphModel,
    preprocess: Preprocess,
    pictures: Mapping[str, Picture],
    split: str,
    tell: Tell = silent,
) -> PageTrial:
    """Ask the page and the graph that is in it about the same pictures, which Python prepares by `preprocess`."""
    off, seconds, changed, near_ties, unread, first = [0.0], [], [], 0, 0, 0.0
    with TemporaryDirectory(prefix="vitral-") as place:
        browser.open(url)
        for number, (name, picture) in enumerate(pictures.items()):
            tell(Progress(number, len(pictures), "trying the page"))
            try:
                pixels = preprocess.resized(picture)
            except DataError:
                continue
            file = _as_file(picture, Path(place))
            browser.evaluate(ANSWER)
            browser.choose("#file", file)
            answer = browser.evaluate("self.coming")
            if "error" in answer:
                if not _is_for_browsers(file):
                    unread += 1
                else:
                    changed.append(f"{name} (the page: {answer['error']})")
                continue
            first = first or answer["now"]
            seconds.append(answer["seconds"])
            ours = _said(*graph.answers(pixels[None]))
            theirs = Said(np.array(answer["values"]), answer["distance"])
            off.append(_difference(graph, ours, theirs))
            lead = _lead(graph, ours, theirs)
            if lead > NEAR_TIE:
                changed.append(f"{name} ({_words(graph, ours)}; the page: {_words(graph, theirs)})")
            near_ties += 0 < lead <= NEAR_TIE
    tell(Progress(len(pictures), len(pictures), "trying the page"))
    if not seconds and not changed:
        raise DataError("None of the pictures could be read by a browser, so the page could not be tried.")
    later = median(seconds[1:] or seconds or [0.0])
    return PageTrial(browser.version, len(seconds), split, max(off), near_ties, tuple(changed), unread, first, later)


@dataclass(frozen=True)
class Said:
    """What a model says of one picture."""

    values: NDArray[np.float64]  # (outputs,)
    distance: float | None


def _said(values: NDArray[np.float32], distances: NDArray[np.float32] | None) -> Said:
    return Said(values[0].astype(np.float64), None if distances is None else float(distances[0]))


def _words(graph: GraphModel, said: Said) -> str:
    return str(prediction_of(said.values, graph.targets, said.distance, graph.thresholds, graph.margins))


def _difference(graph: GraphModel, ours: Said, theirs: Said) -> float:
    """The largest difference of a probability; of a number, in standard deviations. What is no number is far off."""
    scales = np.concatenate([np.full(one.outputs, one.std if one.kind == "number" else 1.0) for one in graph.targets])
    return float(np.nan_to_num(np.abs(ours.values - theirs.values) / scales, nan=np.inf).max())


def _lead(graph: GraphModel, ours: Said, theirs: Said) -> float:
    """By how much the model holds its own answer to be truer than the other one; 0 where both are the same."""
    leads = [0.0]
    for target, mine in zip(graph.targets, columns(graph.targets), strict=True):
        here, there, thresholds = ours.values[mine], theirs.values[mine], graph.thresholds[mine]
        if target.kind == "class":
            leads.append(float(here.max() - here[there.argmax()]))
        elif target.kind == "labels":
            other = (here >= thresholds) != (there >= thresholds)
            leads.append(float(np.abs(here - thresholds)[other].max(initial=0.0)))
    if ours.distance is not None and theirs.distance is not None and (ours.distance > 1) != (theirs.distance > 1):
        leads.append(abs(ours.distance - 1))
    return max(leads)


def _as_file(picture: Picture, folder: Path) -> Path:
    """The picture as it is stored; what is no file becomes one without a loss."""
    if isinstance(picture, str | Path):
        return Path(picture)
    if isinstance(picture, bytes):
        path = folder / "picture"
        path.write_bytes(picture)
        return path
    image, path = decode(picture), folder / "picture.png"
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(path)
    return path


def _is_for_browsers(path: Path) -> bool:
    """Whether it is of a kind that browsers read."""
    try:
        with Image.open(path) as image:
            return image.format in FORMATS
    except OSError:  # what Pillow does not know: an array, a HEIC
        return False


def scaling_cost(graph: GraphModel, pictures: Mapping[str, Picture]) -> str:
    """What decoding in full, as browsers do, costs a model that learnt from JPEGs decoded at a share of their size: a
    sentence, or nothing where the model did not."""
    scaled = graph.preprocess
    if scaled.jpeg == "full":
        return ""
    full, off, changed, tried = scaled.model_copy(update={"jpeg": "full"}), 0.0, 0, 0
    for picture in pictures.values():
        try:
            both = [_said(*graph.answers(each.resized(picture)[None])) for each in (scaled, full)]
        except DataError:
            continue
        off, tried = max(off, _difference(graph, *both)), tried + 1
        changed += _lead(graph, *both) > 0
    return (
        "The model reads large JPEGs at a half, a quarter or an eighth of their size (data.jpeg=scaled), and a browser "
        "in full: "
        + (
            f"by that alone probabilities differ by at most {off:.2g}, and {changed} of {tried} answers change."
            if off
            else f"what that changes is not known, as none of the {tried} pictures is such a JPEG."
        )
    )
