"""scikit-learn's 1,797 handwritten digits of 8×8 pixels (Alpaydin & Kaynak 1998): real, small, and there offline."""

import numpy as np

from vitral.data.sources.official import Official


def digits() -> Official:
    """All of them, split 60/20/20 by class: the same split for every seed."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    bunch = load_digits()
    # 0 to 16 (ink in a block of 4×4 dots) becomes 0 to 255.
    images = np.round(bunch.images * (255 / 16)).astype(np.uint8)  # (1797, 8, 8)
    labels = bunch.target.astype(np.int64)
    train, rest = train_test_split(np.arange(len(labels)), test_size=0.4, stratify=labels, random_state=0)
    validation, test = train_test_split(rest, test_size=0.5, stratify=labels[rest], random_state=0)
    splits = np.full(len(labels), "train", dtype="U10")
    splits[validation], splits[test] = "validation", "test"
    return Official(tuple(str(name) for name in bunch.target_names), images, labels, splits)
