"""Named weights are downloaded, as named sets are; a pickle among them becomes safetensors."""

import json
from pathlib import Path

from vitral.data.fetch import Fetched, Progress, Tell, check_sha256, fetch_file, fetching
from vitral.errors import DataError
from vitral.files import write_whole
from vitral.weights.catalogue import NamedWeights


def fetch_weights(weights: NamedWeights, directory: Path, *, progress: Progress, tell: Tell) -> tuple[Fetched, ...]:
    """Download weights into weights/NAME of the data directory, unless they are there. Returns what was fetched.

    A pickle is opened only if its sha256 is the published one, and then for its tensors alone.
    """
    if weights.is_here(directory):
        return ()
    file, path = weights.file, directory / weights.file.path
    if weights.is_pickle and not file.sha256:
        raise DataError(f"{file.url} is a pickle, and no sha256 is published by which to know it: it is not fetched.")
    with fetching(weights.name, directory, tell):
        if weights.is_here(directory):  # we may have waited for another
            return ()
        about = {"name": weights.name, "licence": weights.licence, "source": file.url, **weights.about}
        path.parent.mkdir(parents=True, exist_ok=True)
        # First: whoever finds the weights, finds what they do not tell of themselves.
        write_whole(path.with_name("about.json"), json.dumps(about, indent=1) + "\n")
        fetched = () if path.is_file() else (fetch_file(weights.name, file, directory, progress, tell),)
        if weights.is_pickle:
            from vitral.weights.pickles import convert_pickle

            check_sha256(file, path, "Delete it, so that it can be fetched.")  # it may have been there before
            convert_pickle(path)
            path.unlink()
        return fetched
