"""A probe on the tokens of patches: each says what the picture shows, and the mean of what they say is the answer.

A regression learns from some patches of each picture, all with the label of the picture. Where features of the whole
picture were never asked for anything, as after learning without labels by hidden patches, more may stand in its parts.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitral.data.pack import Pack
from vitral.evaluation.embed import map_pictures
from vitral.evaluation.metrics import share
from vitral.evaluation.probe_results import Method
from vitral.evaluation.target_probe import STRENGTHS
from vitral.progress import Progress, Tell
from vitral.weights.own import Weights

SOME = 8  # patches of each picture that are learnt from
MOST, MOST_TO_CHOOSE = 5_000, 1_000  # pictures: their patches are many times as many

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Predict = Callable[[Floats], tuple[Ints, NDArray[np.float64]]]  # (n, D) → the classes, and (n, classes)
Fit = Callable[[Floats, Ints, float], Predict]


@dataclass(frozen=True)
class Patches:
    """Some patches of each picture, and its label."""

    tokens: Floats  # (pictures, patches, D)
    labels: Ints  # (pictures,)

    def only(self, rows: NDArray[np.bool_]) -> "Patches":
        return Patches(self.tokens[rows], self.labels[rows])

    def fit(self, fit: Fit, strength: float) -> Predict:
        return fit(
            self.tokens.reshape(-1, self.tokens.shape[2]), np.repeat(self.labels, self.tokens.shape[1]), strength
        )


def probe_patches(
    pretrained: Weights, packed: Pack, learn: Ints, test: Ints, folds: Ints, fit: Fit, tell: Tell
) -> Method:
    """The strength of the regression is chosen by cross-validation, as that of the others is; the test pictures choose
    nothing. `folds`: of each picture to learn from, -1 where it chooses nothing."""
    rows = np.flatnonzero(folds >= 0)[:MOST]
    known = _some_patches(pretrained, packed, learn[rows], tell)
    choosing = np.arange(len(rows)) < MOST_TO_CHOOSE
    scores = {}
    for number, strength in enumerate(STRENGTHS):
        tell(Progress(number, len(STRENGTHS), "choosing for patches"))
        scores[strength] = _cross_validate(known.only(choosing), folds[rows][choosing], fit, strength)
    strength = max(scores, key=lambda one: scores[one][1])
    predict = known.fit(fit, strength)
    names, right = np.array(packed.index.samples)[test], _ask(pretrained, packed, test, predict, tell)
    count = int(right.sum())
    wrong = tuple(map(str, names[~right]))
    accuracy = share(count, len(right))
    return Method("each patch", f"C = {strength:g}", scores[strength][0], count, accuracy, wrong)


def _some_patches(pretrained: Weights, packed: Pack, numbers: Ints, tell: Tell) -> Patches:
    """Patches of each of these pictures, from other places in each."""
    parts: list[Floats] = []
    done, rng = 0, np.random.default_rng(0)
    for tokens in map_pictures(_extractor(pretrained), packed, numbers, pretrained.preprocess):  # (b, N, D)
        places = rng.permuted(np.tile(np.arange(tokens.shape[1]), (len(tokens), 1)), axis=1)[:, :SOME]
        parts.append(np.take_along_axis(tokens, places[:, :, None], axis=1))
        tell(Progress(done := done + len(tokens), len(numbers), "looking at patches"))
    return Patches(np.concatenate(parts), packed.index.labels[numbers])


def _extractor(pretrained: Weights) -> Callable[[Tensor], Tensor]:  # (B, C, H, W) → (B, N, D)
    model = pretrained.model

    @torch.inference_mode()
    def extract(images: Tensor) -> Tensor:
        return model.patch_tokens(model.features(images)).float()

    return extract


def _cross_validate(known: Patches, folds: Ints, fit: Fit, strength: float) -> tuple[float, float]:
    """Accuracy, and the mean logarithm of the probability of the right class."""
    rights, logarithms = [], []
    for fold in np.unique(folds):
        held_out = known.only(folds == fold)
        classes, answers = _mean_answers(known.only(folds != fold).fit(fit, strength), held_out.tokens)
        is_label = held_out.labels[:, None] == classes  # a class with one picture is in no column
        rights.append(is_label[np.arange(len(answers)), answers.argmax(axis=1)])
        logarithms.append(np.log(np.maximum((answers * is_label).sum(axis=1), 1e-6)))
    return float(np.concatenate(rights).mean()), float(np.concatenate(logarithms).mean())


def _mean_answers(predict: Predict, tokens: Floats) -> tuple[Ints, NDArray[np.float64]]:  # (n, N, D) → (n, classes)
    classes, answers = predict(tokens.reshape(-1, tokens.shape[2]))
    return classes, answers.reshape(*tokens.shape[:2], -1).mean(axis=1)


def _ask(pretrained: Weights, packed: Pack, test: Ints, predict: Predict, tell: Tell) -> NDArray[np.bool_]:
    """Whether the answer of all patches is right, for each test picture; their tokens are not kept."""
    labels, rights, done = packed.index.labels[test], list[NDArray[np.bool_]](), 0
    for tokens in map_pictures(_extractor(pretrained), packed, test, pretrained.preprocess):
        classes, answers = _mean_answers(predict, tokens)
        rights.append(classes[answers.argmax(axis=1)] == labels[done : done + len(tokens)])
        tell(Progress(done := done + len(tokens), len(test), "asking patches"))
    return np.concatenate(rights)
