"""Baselines: each is held to the oracle, and the compiled one runs by itself."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch

from benchmarks import baselines, oracle, own_process
from benchmarks.baselines import BASELINES, BY_OPTION
from benchmarks.registry import Algorithm, Configuration, entries
from benchmarks.suites import is_compared, is_variant, units_of

CPU = torch.device("cpu")
GPU = torch.device("cuda", 0)


@pytest.mark.parametrize("algorithm", entries().values(), ids=list(entries()))
@pytest.mark.parametrize("option", ["loop", "numpy", "numpy_via_gpu"])
@pytest.mark.parametrize("time_major", [False, True])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_baselines_pass_the_gate(algorithm: Algorithm, option: str, time_major: bool, device: str) -> None:
    pytest.importorskip("numpy")
    configuration = Configuration(8, 33, truncated=True, time_major=time_major)
    arguments = algorithm.arguments(configuration, torch.device(device))
    call = BY_OPTION[option].make(algorithm, arguments)
    expected = oracle.expected_outputs(algorithm, configuration, arguments)
    oracle.check(algorithm, configuration, call(), expected)


def test_half_precision_is_computed_in_float32() -> None:
    algorithm, configuration = entries()["gae"], Configuration(8, 64, torch.bfloat16)
    arguments = algorithm.arguments(configuration, CPU)
    call = BY_OPTION["loop"].make(algorithm, arguments)
    (advantages,) = call()
    assert advantages.dtype == torch.bfloat16
    oracle.check(algorithm, configuration, advantages, oracle.expected_outputs(algorithm, configuration, arguments))


@pytest.mark.parametrize("name", ["gae", "lambda", "vtrace"])
@pytest.mark.parametrize("time_major", [False, True])
@pytest.mark.parametrize("truncated", [False, True])
def test_torchrl_passes_the_gate(name: str, time_major: bool, truncated: bool) -> None:
    pytest.importorskip("torchrl")
    algorithm, configuration = entries()[name], Configuration(6, 40, time_major=time_major, truncated=truncated)
    arguments = algorithm.arguments(configuration, CPU)
    call = BY_OPTION["torchrl"].make(algorithm, arguments)
    oracle.check(algorithm, configuration, call(), oracle.expected_outputs(algorithm, configuration, arguments))


def test_what_torchrl_has_not_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baselines, "is_installed", lambda module: True)
    covered = {
        name for name, entry in entries().items() if BY_OPTION["torchrl"].covers(entry, Configuration(2, 3), CPU)
    }
    assert covered == {"gae", "lambda", "vtrace"}
    monkeypatch.setattr(baselines, "is_installed", lambda module: False)
    assert not BY_OPTION["torchrl"].covers(entries()["gae"], Configuration(2, 3), CPU)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("algorithm", entries().values(), ids=list(entries()))
def test_the_compiled_baseline_passes_the_gate(algorithm: Algorithm) -> None:
    answer = own_process.ask("compile", algorithm, Configuration(64, 65, truncated=True), GPU, ())
    assert 0 <= answer["error"] < 1e-6


@pytest.mark.slow
def test_a_compiled_baseline_runs_in_a_process_of_its_own() -> None:
    configuration = Configuration(4, 16, truncated=True)
    answer = own_process.ask("compile", entries()["gae"], configuration, CPU, ("wall",))
    assert 0 <= answer["error"] < 1e-6
    assert answer["first_call"] > 0
    assert answer["timings"]["wall"].value > 0


def test_a_process_that_fails_says_why() -> None:
    with pytest.raises(RuntimeError, match="nothing"):
        own_process.ask("loop", entries()["gae"], Configuration(4, 16), torch.device("cpu"), ("nothing",))  # type: ignore[arg-type]


def test_a_process_that_ends_early_is_told_apart() -> None:
    unknown = replace(entries()["gae"], name="nothing")
    with pytest.raises(RuntimeError, match="its process ended with 1: KeyError: 'nothing'"):
        own_process.ask("loop", unknown, Configuration(4, 16), CPU, ())


def test_the_answer_is_checked() -> None:
    request = {
        "option": "loop",
        "algorithm": "gae",
        "configuration": own_process.encoded(Configuration(4, 16, time_major=True)),
        "device": "cpu",
        "measures": [],
    }
    assert set(own_process.answer_to(request)) == {"error", "first_call", "from_cache", "timings"}


@pytest.mark.parametrize(
    "configuration", [Configuration(4, 16), Configuration(2, 3, torch.bfloat16, torch.float32, True, True, 4)]
)
def test_configurations_survive_the_way(configuration: Configuration) -> None:
    assert own_process.decoded(own_process.encoded(configuration)) == configuration


@pytest.mark.parametrize("algorithm", entries().values(), ids=list(entries()))
def test_every_suite_compares_something(algorithm: Algorithm) -> None:
    units = partial(units_of, algorithm, device=GPU, baselines=[baseline.option for baseline in BASELINES])
    compiled = [unit for unit in units(suite="release") if unit.what == "torch.compile"]
    assert len(compiled) >= (1 if is_variant(algorithm) else 12)
    assert len({unit.id for unit in units(suite="release")}) == len(units(suite="release"))
    if algorithm.safeguards:
        assert [unit.what for unit in units(suite="safeguard")].count("torch.compile") == 1


def test_what_is_compared() -> None:
    gae = entries()["gae"]
    assert is_compared(gae, "release", Configuration(16384, 512, truncated=True))
    assert not is_compared(gae, "release", Configuration(512, 512, truncated=True))
    assert not is_compared(gae, "release", Configuration(16384, 512, time_major=True))
    assert not is_compared(gae, "safeguard", Configuration(16384, 512))


def test_the_release_suite_has_the_shapes_it_promises() -> None:
    units = units_of(entries()["vtrace"], "release", GPU, [])
    sizes = {unit.configuration.size for unit in units if unit.configuration}
    assert {"64x512", "16384x512", "38400x80", "16384x16", "32768x8", "4096x64", "1x1048576"} <= sizes
    inputs = {(unit.configuration.layout, unit.configuration.inputs) for unit in units if unit.configuration}
    assert ("time-major", "float32, bool flags") in inputs
    assert ("row-major", "bfloat16, bool flags") in inputs
    assert ("row-major", "float32, bool flags, truncations") in inputs
    assert not any("truncations" in unit.id for unit in units_of(entries()["prefix"], "release", GPU, []))
