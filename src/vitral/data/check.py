"""What is wrong with these pictures: each is decoded, checked and compared with all others, before anyone trains."""

import hashlib
import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitral.data.decode import Decoded, PictureFacts, decode_with_facts
from vitral.data.findings import Finding, PictureCheck, findings
from vitral.data.pack import key_of
from vitral.data.similar import HAS_INDEX, SIDE, near_duplicates, thumbnail
from vitral.data.sources import SPLITS, Index, digest_of
from vitral.data.threads import one_core_each
from vitral.errors import DataError
from vitral.files import as_csv
from vitral.processes import Processes
from vitral.progress import Tell, silent
from vitral.rounds import Rounds, Rows, place_of
from vitral.settings import FORMAT
from vitral.targets import Target, columns

BLOCK = 64  # pictures between two looks at the clock: a million would also fill the memory
LOOKING = "looking at pictures"
MOST_COMPARED = 200_000  # pictures, each with each; above, an index says which are near
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
        """(outputs, splits): pictures of each class or label; of a number all of them."""
        return np.stack([self.index.counts(self.index.of(split)) for split in SPLITS], axis=1)

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
        parts, several = list(zip(index.targets, columns(index.targets), strict=True)), len(index.targets) > 1
        quantiles = (0, 25, 50, 75, 100)
        return {
            "format": FORMAT,
            "source": index.source,
            "serious": self.serious,
            "pictures": len(index.samples),
            "channels": index.channels,
            "notes": list(index.notes),
            "classes": [
                {"name": name, **({"target": target.name} if several else {}), **dict(zip(SPLITS, row, strict=True))}
                for target, part in parts
                for name, row in zip(target.names, counts[part].tolist(), strict=True)
                if target.kind != "number"
            ],
            **(
                {"numbers": numbers}
                if (numbers := [self._spans(*one) for one in parts if one[0].kind == "number"])
                else {}
            ),
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

    def _spans(self, target: Target, part: slice) -> dict[str, Any]:
        """The least number of each split, its median and the largest."""
        numbers = {split: self.index.labels[self.index.of(split), part] for split in SPLITS}
        return {"name": target.name} | {
            split: dict(zip(("least", "median", "most"), np.percentile(some, (0, 50, 100)).tolist(), strict=True))
            for split, some in numbers.items()
            if len(some)
        }

    def as_csv(self) -> str:
        """As findings.csv has it: a line per picture of each finding; pictures that are alike share a number."""
        return as_csv(("finding", "serious", "group", "sample", "label", "split", "reason"), self._rows())

    def _rows(self) -> Iterator[tuple[object, ...]]:
        index = self.index
        for finding in self.findings:
            for group, numbers in enumerate(finding.samples, start=1):
                for number in numbers:
                    label, split = index.label_of(number), index.splits[number]
                    kind = (finding.kind, "yes" if finding.serious else "no", group)
                    yield (*kind, index.samples[number], label, split, self.checks[number].error)


class Inspection:
    """A check of each picture of a source; pictures that are decoded for something else can be added too. Thumbnails of
    very many lie in the data `directory`, if there is one."""

    def __init__(self, index: Index, directory: Path | None = None) -> None:
        count = len(index.samples)
        self.index, self.by_index = index, count > MOST_COMPARED
        self.compared = HAS_INDEX or not self.by_index
        self.checks: dict[int, PictureCheck] = {}
        shape = (count if self.compared else 0, 3, SIDE, SIDE)
        in_file = self.by_index and self.compared and directory
        self.thumbnails = _in_file(shape, directory) if in_file and directory else np.zeros(shape, np.uint8)

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

    def rows(self, numbers: range) -> Rows:
        """The checks of these pictures, as arrays."""
        words = [_as_json(self.checks[number]) for number in numbers]
        return {"checks": np.array(words, np.str_), "thumbnails": self.thumbnails[numbers.start : numbers.stop]}

    def put(self, start: int, rows: Rows) -> int:
        """Add what another process, or an earlier one, has seen of the pictures from `start` on; returns their end."""
        end = start + len(rows["checks"])
        self.checks |= {start + place: _from_json(words) for place, words in enumerate(rows["checks"])}
        self.thumbnails[start:end] = rows["thumbnails"]
        return end


def check(
    index: Index,
    tell: Tell = silent,
    inspection: Inspection | None = None,
    processes: Processes | None = None,
    directory: Path | None = None,
) -> Report:
    """Look at every picture of a source, and compare them. `tell` is called with the progress.

    Pictures that are in `inspection` already are not opened again. Of several `processes` each looks at a share, and
    all have the same Report. With the data `directory` what was seen is kept there until the end: after an interruption
    the same call goes on.
    """
    processes, total = processes or Processes(), len(index.samples)
    inspection = inspection or Inspection(index, directory)
    processes.agree({"pictures": hashlib.sha256("\n".join(index.samples).encode("utf-8", "replace")).hexdigest()})
    rounds = Rounds(processes, tell, place_of(directory, "check", key_of(index)) if directory else None)
    with one_core_each() as pool:

        def look(rows: range) -> Rows:
            list(pool.map(inspection.look, (number for number in rows if number not in inspection.checks)))
            return inspection.rows(rows)

        done = 0
        for rows in rounds.of(total, BLOCK, look, LOOKING):
            done = inspection.put(done, rows)
    checks = [inspection.checks[number] for number in range(total)]
    readable = np.array([number for number, one in enumerate(checks) if not one.error], np.int64)
    pairs: list[tuple[int, int]] = []
    if inspection.compared:
        seen, by_index = inspection.thumbnails, inspection.by_index
        near = processes.decide(
            lambda: [(one.first, one.second) for one in near_duplicates(seen, tell, readable, by_index)]
        )
        pairs = [(first, second) for first, second in near]
    rounds.forget()
    return Report(index, checks, list(findings(index, checks, pairs)), inspection.compared)


def _in_file(shape: tuple[int, ...], directory: Path) -> NDArray[np.uint8]:
    """An array in a file without a name, which is gone with the process. It has all its room before it is written to:
    a full disk would end the process then."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory) as file:
            if hasattr(os, "posix_fallocate"):  # not on macOS
                os.posix_fallocate(file.fileno(), 0, int(np.prod(shape)))
            else:
                file.truncate(int(np.prod(shape)))
            return np.memmap(file, np.uint8, "r+", shape=shape)
    except OSError as error:
        raise DataError(
            f"{np.prod(shape) / 1e9:.1f} GB for thumbnails cannot be had in {directory} ({error.strerror or error}). "
            "Make room, or choose another place with data.directory=… or VITRAL_DATA."
        ) from None


def _picture(decoded: Decoded) -> Image.Image:
    """A picture to look at; of bands, the first three or the first."""
    if isinstance(decoded, Image.Image):
        return decoded
    return Image.fromarray(np.ascontiguousarray(decoded[:, :, :3] if decoded.shape[2] >= 3 else decoded[:, :, 0]))


def _as_json(check: PictureCheck) -> str:
    facts = asdict(check.facts) if check.facts else None
    return json.dumps({**check._asdict(), "digest": check.digest.hex(), "facts": facts})


def _from_json(words: str) -> PictureCheck:
    values = json.loads(words)
    facts = PictureFacts(**values["facts"]) if values["facts"] else None
    return PictureCheck(**{**values, "digest": bytes.fromhex(values["digest"]), "facts": facts})
