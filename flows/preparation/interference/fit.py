"""Fit the interference model of a GPU class to pairs that ran side by side (gpulets, section 4.4).

One row is one side of one pair: y = latency beside the other / latency alone, explained by the
utilisations of both when alone. Ordinary least squares with an intercept; the rows of a pair, both
directions, stand on one side of the split, else the validation would have seen its answer. Where a
constant predicts no worse, the constant is the model.

Here: arrays in, a report out. Not here: tables (`tables`).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from triton_backend.contract.errors import InputError
from triton_backend.contract.profiles import QUANTILES, InterferenceModel

LEAST_ROWS = 20
TRAINED = 0.7  # of the pairs
FASTER = 0.9  # y below this is odd: a neighbour made it faster
SIGMAS = 5.0  # robust standard deviations from the median of its group
_MAD = 1.4826  # of a normal distribution: standard deviation / median absolute deviation
_HUBER = 1.345  # standard deviations
_ROUNDS = 50

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PairRows:
    """Rows of one class.

    Attributes:
        features: [row, 4] L2 of itself and of the other, DRAM of itself and of the other;
            fractions.
        slowdown: [row] latency beside the other / latency alone.
        pair: [row] number of the pair; both directions have the same.
        group: [row] number of what ran: model, batch, share.
        names: [row] in words, for lists.
    """

    features: Floats
    slowdown: Floats
    pair: NDArray[np.int64]
    group: NDArray[np.int64]
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Relative errors |predicted - y| / y."""

    mean: float
    p90: float
    p95: float
    largest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FitReport:
    """The fit, and its error on pairs held out.

    Attributes:
        refused: the linear model was no better than a constant at the 95th percentile: `model` is
            the constant.
        odd: rows that are suspiciously fast or far from their group, in words; they were used.
    """

    model: InterferenceModel
    refused: bool
    trained: int
    validated: int
    linear: Errors
    constant: Errors
    odd: tuple[str, ...]


def fit(rows: PairRows, seed: int = 0, *, robust: bool = False) -> FitReport:
    """Fit and validate; `robust` weighs rows by Huber.

    Raises:
        InputError: too few rows, or utilisations that do not vary enough to tell the constants
            apart.
    """
    count = len(rows.slowdown)
    if count < LEAST_ROWS:
        raise InputError("pairs", f"{count} rows, at least {LEAST_ROWS} are needed")
    trained = _training_rows(rows.pair, seed)
    design = np.column_stack([rows.features, np.ones(count)])
    if np.linalg.matrix_rank(design[trained]) < design.shape[1]:
        raise InputError("pairs", "utilisations vary too little to tell the constants apart")
    target = rows.slowdown
    constants = _least_squares(design[trained], target[trained], robust=robust)
    level = float(target[trained].mean())
    held = ~trained
    predicted = design[held] @ constants
    linear = _errors(predicted, target[held])
    flat = _errors(np.full(int(held.sum()), level), target[held])
    refused = linear.p95 >= flat.p95
    if refused:
        constants = np.array([0.0, 0.0, 0.0, 0.0, level])
        predicted = np.full(int(held.sum()), level)
    residuals = np.quantile(target[held] / predicted - 1.0, QUANTILES)
    c1, c2, c3, c4, c5 = map(float, constants)
    return FitReport(
        model=InterferenceModel(
            c1_l2_self=c1,
            c2_l2_other=c2,
            c3_dram_self=c3,
            c4_dram_other=c4,
            c5=c5,
            residuals=tuple(map(float, residuals)),
        ),
        refused=refused,
        trained=int(trained.sum()),
        validated=int(held.sum()),
        linear=linear,
        constant=flat,
        odd=_odd(rows),
    )


def _training_rows(pair: NDArray[np.int64], seed: int) -> NDArray[np.bool_]:
    pairs = np.unique(pair)
    if len(pairs) < 2:  # noqa: PLR2004 - one on each side
        raise InputError("pairs", "one pair alone cannot be split into training and validation")
    order = np.random.default_rng(seed).permutation(pairs)
    count = min(max(1, round(TRAINED * len(pairs))), len(pairs) - 1)
    return np.isin(pair, order[:count])


def _least_squares(design: Floats, target: Floats, *, robust: bool) -> Floats:
    constants: Floats = np.linalg.lstsq(design, target, rcond=None)[0]
    for _ in range(_ROUNDS if robust else 0):
        residual = target - design @ constants
        scale = _MAD * float(np.median(np.abs(residual)))
        if scale <= 0:
            break
        weight = np.sqrt(np.minimum(1.0, _HUBER * scale / np.maximum(np.abs(residual), 1e-300)))
        constants = np.linalg.lstsq(design * weight[:, None], target * weight, rcond=None)[0]
    return constants


def _errors(predicted: Floats, measured: Floats) -> Errors:
    error = np.abs(predicted - measured) / measured
    p90, p95 = np.quantile(error, (0.9, 0.95))
    return Errors(
        mean=float(error.mean()), p90=float(p90), p95=float(p95), largest=float(error.max())
    )


def _odd(rows: PairRows) -> tuple[str, ...]:
    far = rows.slowdown < FASTER
    for group in np.unique(rows.group):
        members = rows.group == group
        away = np.abs(rows.slowdown[members] - np.median(rows.slowdown[members]))
        sigma = _MAD * float(np.median(away))
        far[members] |= (away > SIGMAS * sigma) & (sigma > 0)
    return tuple(
        f"{rows.names[row]}: {rows.slowdown[row]:.3f} times its latency alone"
        for row in np.flatnonzero(far).tolist()
    )
