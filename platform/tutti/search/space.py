"""From a search space to Optuna's distributions."""

from __future__ import annotations

from decimal import Decimal

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from tutti.config.space import Categorical, Distribution, Int, LogUniform, SearchSpace


def distributions(space: SearchSpace) -> dict[str, BaseDistribution]:
    """One Optuna distribution for each training key, in the order of the file; none for an empty space."""
    return {key: _distribution(given) for key, given in space.root.items()}


def _distribution(given: Distribution) -> BaseDistribution:
    if isinstance(given, Categorical):
        return CategoricalDistribution(given.choices)
    if isinstance(given, LogUniform):
        return FloatDistribution(given.low, given.high, log=True)
    if isinstance(given, Int):
        return IntDistribution(
            given.low, given.high - (given.high - given.low) % given.step, log=given.log, step=given.step
        )
    if given.step is None:
        return FloatDistribution(given.low, given.high)
    return FloatDistribution(given.low, _last_step(given.low, given.high, given.step), step=given.step)


def _last_step(low: float, high: float, step: float) -> float:
    """The highest of ``low, low + step, ...`` that is not above ``high``.

    Reckoned in decimals, as Optuna does: in binary floats 0.3 is less than three steps of 0.1.
    """
    exact_low, exact_step = Decimal(str(low)), Decimal(str(step))
    return float(exact_low + (Decimal(str(high)) - exact_low) // exact_step * exact_step)
