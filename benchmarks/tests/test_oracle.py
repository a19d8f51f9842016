"""The gate: what is right passes, what is not does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from benchmarks import oracle
from benchmarks.registry import Algorithm, Configuration, entries

CPU = torch.device("cpu")


@pytest.fixture
def gae() -> Algorithm:
    return entries()["gae"]


def check(algorithm: Algorithm, configuration: Configuration, *, sequential: bool = True) -> float:
    """Call the function and compare."""
    arguments = algorithm.arguments(configuration, CPU)
    outputs = oracle.poisoned_call(partial(algorithm.function(), **arguments), arguments)
    expected = oracle.expected_outputs(algorithm, configuration, arguments, sequential=sequential)
    return oracle.check(algorithm, configuration, outputs, expected)


@pytest.mark.parametrize("algorithm", entries().values(), ids=list(entries()))
@pytest.mark.parametrize("sequential", [False, True])
def test_every_entry_passes(algorithm: Algorithm, sequential: bool) -> None:
    assert 0 <= check(algorithm, Configuration(16, 40), sequential=sequential) < 1e-6


@pytest.mark.parametrize("time_major", [False, True])
def test_right_results_pass(gae: Algorithm, time_major: bool) -> None:
    assert 0 <= check(gae, Configuration(6, 40, time_major=time_major)) < 1e-6


@pytest.mark.parametrize("sequential", [False, True])
@pytest.mark.parametrize("damage", [lambda y: y * (1 + 1e-5), lambda y: y.fill_(torch.nan), lambda y: y[:, 1:]])
def test_wrong_results_do_not_pass(gae: Algorithm, damage: Callable[[Any], Any], sequential: bool) -> None:
    def damaged(**arguments: Any) -> torch.Tensor:
        result: torch.Tensor = damage(entries()["gae"].function()(**arguments))
        return result

    wrong = replace(gae, function=lambda: damaged)
    with pytest.raises(oracle.WrongResultError, match="wrong result"):
        check(wrong, Configuration(6, 40), sequential=sequential)
