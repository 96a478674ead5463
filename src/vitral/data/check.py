"""What is wrong with these pictures: each is decoded, checked and compared with all others, before anyone trains."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitral.data.decode import Decoded, PictureFacts, decode_with_facts
from vitral.data.findings import Finding, PictureCheck, findings
from vitral.data.similar import SIDE, near_duplicates, thumbnail
from vitral.data.sources import SPLITS, Index, digest_of
from vitral.data.threads import one_core_each
from vitral.errors import DataError
from vitral.files import as_csv
from vitral.progress import Progress, Tell, silent
from vitral.settings import FORMAT

BLOCK = 64  # pictures between two looks at the clock: a million would also fill the memory
LOOKING = "looking at pictures"
MOST_COMPARED = 200_000  # pictures; the comparison grows with the square
UNASKED = 5_000  # pictures at most that are checked for a report without `vitral check`: some seconds


@dataclass(frozen=True)
class Report:
    """The outcome of `check`: every picture, and the findings about all of them."""

    index: Index
    checks: Sequence[PictureCheck] = field(repr=False)
    findings: list[Finding]
    compared: bool  # whether near copies were searched

    @property
    def serious(self) -> bool:
        """Whether something should be mended before anyone trains."""
        return any(finding.serious for finding in self.findings)

    @property
    def counts(self) -> NDArray[np.int64]:
        """(classes, splits): pictures."""
        counts = np.zeros((len(self.index.class_names), len(SPLITS)), np.int64)
        sides = np.array([SPLITS.index(split) for split in self.index.splits])
        np.add.at(counts, (self.index.labels, sides), 1)
        return counts

    @property
    def sizes(self) -> NDArray[np.int64]:
        """(readable pictures, 2): width and height as one sees them."""
        readable = [picture.facts for picture in self.checks if picture.facts]
        return np.array([(f.height, f.width) if f.orientation >= 5 else (f.width, f.height) for f in readable]).reshape(
            -1, 2
        )

    def tally(self, word: str) -> dict[str, int]:
        """How many pictures have which format, mode, bits, …, the most frequent first."""
        return dict(Counter(str(getattr(one.facts, word)) for one in self.checks if one.facts).most_common())

    def write(self) -> dict[str, Any]:
        """As `--json` prints it."""
        index, sizes, counts = self.index, self.sizes, self.counts
        quantiles = (0, 25, 50, 75, 100)
        return {
            "format": FORMAT,
            "source": index.source,
            "serious": self.serious,
            "pictures": len(index.samples),
            "channels": index.channels,
            "notes": list(index.notes),
            "classes": [
                {"name": name, **dict(zip(SPLITS, map(int, row), strict=True))}
                for name, row in zip(index.class_names, counts, strict=True)
            ],
            "sizes": {
                side: dict(zip(map(str, quantiles), np.percentile(sizes[:, axis], quantiles).tolist(), strict=True))
                for axis, side in enumerate(("width", "height"))
                if len(sizes)
            },
            **{f"{word}s": self.tally(word) for word in ("format", "mode", "orientation")},
            "bits": self.tally("bits"),
            "compared": self.compared,
            "findings": [
                {**asdict(finding), "samples": [[index.samples[i] for i in group] for group in finding.samples]}
                for finding in self.findings
            ],
        }

    def as_csv(self) -> str:
        """As findings.csv has it: a line per picture of each finding; pictures that are alike share a number."""
        return as_csv(("finding", "serious", "group", "sample", "label", "split", "reason"), self._rows())

    def _rows(self) -> Iterator[tuple[object, ...]]:
        index = self.index
        for finding in self.findings:
            for group, numbers in enumerate(finding.samples, start=1):
                for number in numbers:
                    label, split = index.class_names[index.labels[number]], index.splits[number]
                    kind = (finding.kind, "yes" if finding.serious else "no", group)
                    yield (*kind, index.samples[number], label, split, self.checks[number].error)


class Inspection:
    """A check of each picture of a source; pictures that are decoded for something else can be added too."""

    def __init__(self, index: Index) -> None:
        self.index, self.compared = index, len(index.samples) <= MOST_COMPARED
        self.checks: dict[int, PictureCheck] = {}
        self.thumbnails = np.zeros((len(index.samples) if self.compared else 0, 3, SIDE, SIDE), np.uint8)

    def add(self, number: int, digest: bytes, decoded: Decoded, facts: PictureFacts) -> None:
        """Check a picture that was decoded already."""
        picture = _picture(decoded)
        small = thumbnail(picture)
        if self.compared:
            self.thumbnails[number] = small
        colours = (small // 8).reshape(3, -1).astype(np.int32)  # 32 levels: near enough is the same colour
        _, counts = np.unique(colours[0] * 1024 + colours[1] * 32 + colours[2], return_counts=True)
        self.checks[number] = PictureCheck(
            digest, facts, picture.has_transparency_data, float(counts.max() / counts.sum())
        )

    def look(self, number: int) -> None:
        """Read, decode and check a picture."""
        digest = b""
        try:
            content = self.index.storage.read(number)
            digest = digest_of(content)
            self.add(
                number,
                digest,
                *decode_with_facts(content, name=self.index.samples[number], at_least=(2 * SIDE, 2 * SIDE)),
            )
        except DataError as error:
            self.checks[number] = PictureCheck(digest, error=str(error))


def check(index: Index, tell: Tell = silent, inspection: Inspection | None = None) -> Report:
    """Look at every picture of a source, and compare them. `tell` is called with the progress.

    Pictures that are in `inspection` already are not opened again.
    """
    total, inspection = len(index.samples), inspection or Inspection(index)
    tell(Progress(0, total, LOOKING))
    with one_core_each() as pool:
        for start in range(0, total, BLOCK):
            block = range(start, min(start + BLOCK, total))
            list(pool.map(inspection.look, (number for number in block if number not in inspection.checks)))
            tell(Progress(block.stop, total, LOOKING))
    checks = [inspection.checks[number] for number in range(total)]
    readable = np.array([number for number, one in enumerate(checks) if not one.error], np.int64)
    pairs: list[tuple[int, int]] = []
    if inspection.compared and len(readable):
        thumbnails = inspection.thumbnails if len(readable) == total else inspection.thumbnails[readable]
        near = near_duplicates(thumbnails, tell)
        pairs = [(int(readable[pair.first]), int(readable[pair.second])) for pair in near]
    return Report(index, checks, list(findings(index, checks, pairs)), inspection.compared)


def _picture(decoded: Decoded) -> Image.Image:
    """A picture to look at; of bands, the first three or the first."""
    if isinstance(decoded, Image.Image):
        return decoded
    return Image.fromarray(np.ascontiguousarray(decoded[:, :, :3] if decoded.shape[2] >= 3 else decoded[:, :, 0]))
