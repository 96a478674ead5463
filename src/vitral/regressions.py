"""Regressions of all outputs at once, from rows of numbers: of pixels, or of what a frozen model sees in them."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Values = NDArray[Any]
Regression = Callable[[Values], Values]  # (n, F) → (n, outputs)


def logistic(x: Values, y: Values, strength: float, most: int, go_on: Callable[[], bool] = lambda: True) -> Regression:
    """Logistic regression, one against the rest for each output, of y in 0 and 1: a function to probabilities.

    `strength` is the inverse of its penalty (scikit-learn's C). It ends after `most` steps, or where `go_on` says no.

    >>> says = logistic(np.array([[-1.0], [1.0]]), np.array([[0, 1], [1, 1]]), strength=100.0, most=100)
    >>> says(np.array([[-1.0], [1.0]])).round().astype(int).tolist()
    [[0, 1], [1, 1]]
    """
    from scipy.optimize import minimize
    from scipy.special import expit

    y = y.astype(np.float32)  # (n, outputs)
    shape = (x.shape[1] + 1, y.shape[1])

    def loss(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:  # and its gradient
        weight, bias = np.split(flat.reshape(shape).astype(np.float32), [-1])
        logits = x @ weight + bias
        off = strength * (expit(logits) - y)
        gradient = np.concatenate([x.T @ off + weight, off.sum(axis=0, keepdims=True)])
        value = strength * (np.logaddexp(0, logits) - y * logits).sum() + 0.5 * (weight**2).sum()
        return float(value), gradient.ravel().astype(np.float64)

    def stop(_: object) -> None:
        if not go_on():
            raise StopIteration

    options = {"maxiter": most}
    fitted = minimize(loss, np.zeros(shape).ravel(), jac=True, method="L-BFGS-B", callback=stop, options=options).x
    weight, bias = np.split(fitted.reshape(shape), [-1])
    return lambda some: expit(some @ weight + bias)


def ridge(x: Values, y: Values, penalties: Sequence[float]) -> list[Regression]:
    """Ridge regression with each of these penalties, times the mean variance of a column of x, whose mean is 0.

    >>> (says,) = ridge(np.array([[-1.0], [1.0]]), np.array([[10.0], [30.0]]), [1e-6])
    >>> says(np.array([[0.5]])).round(2).tolist()
    [[25.0]]
    """
    from scipy.linalg import solve

    mean = y.mean()
    few = len(x) < x.shape[1]  # then by rows, (n, n), instead of by columns, (F, F): the same weights
    products = x @ x.T if few else x.T @ x
    typical = products.trace() / x.shape[1] + 1e-9  # blank pictures have none

    def fitted(penalty: float) -> Regression:
        damped = products + penalty * typical * np.eye(len(products), dtype=products.dtype)
        off = y - mean
        weight = x.T @ solve(damped, off, assume_a="pos") if few else solve(damped, x.T @ off, assume_a="pos")
        return lambda some: some @ weight + mean

    return [fitted(penalty) for penalty in penalties]
