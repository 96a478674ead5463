"""Few labels: as if nobody had said of the other pictures what they are."""

from dataclasses import replace

import numpy as np

from vitral.data.sources import Index
from vitral.data.sources.splits import held_out, strata
from vitral.targets import is_one_class


def only_labelled(index: Index, share: float, seed: int) -> Index:
    """An Index without those pictures of train and validation whose labels are not to be known. Who is in is drawn as
    the splits are: those with a smaller share have their labels with a larger one, too. Test pictures stay as they are.

    >>> from vitral.data.config import Data
    >>> from vitral.data.sources import open_source
    >>> [len(open_source(Data(source="digits", labelled=share)).of("train")) for share in (1.0, 0.1)]
    [1078, 109]
    """
    parted, _ = strata(index.targets, index.labels)
    kept, one = [index.of("test")], is_one_class(index.targets)
    for split in ("train", "validation"):
        rows = index.of(split)
        if len(rows):
            kept.append(held_out(rows, share, parted[rows], index.samples, index.groups, "labelled", seed))
        if split == "train":  # a class of one picture is not drawn, and should be learnt too
            first = index.first_of_each(rows)
            kept.append(first[~np.isin(index.labels[first], index.labels[kept[-1]])] if one else first)
    few = index.only(np.unique(np.concatenate(kept)))
    counts = " and ".join(
        f"{len(few.of(split)):,} of {len(index.of(split)):,} {words}"
        for split, words in (("train", "pictures to learn from"), ("validation", "to validate"))
        if len(index.of(split))
    )
    return replace(few, notes=(*index.notes, f"Labels are known of {counts} (data.labelled={share:g})."))
