"""What is measured: every entry, its inputs and its whole-array form."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from benchmarks.registry import TIMES, Algorithm, Configuration, as_tuple, entries
from benchmarks.whole_arrays import Scan, as_numpy, scan_by_doubling, scan_by_loop

np = pytest.importorskip("numpy")
CPU = torch.device("cpu")
COPY_BANDWIDTH = 4.08e12

every_entry = pytest.mark.parametrize("algorithm", entries().values(), ids=list(entries()))


@every_entry
def test_targets_are_complete(algorithm: Algorithm) -> None:
    for target in (*algorithm.targets, *algorithm.cpu_targets, *algorithm.safeguards):
        ways = (target.bound, target.of_add, target.of_copy)
        assert sum(way is not None for way in ways) <= 1
        assert target.measure in TIMES
    assert all(target.measure == "wall" for target in algorithm.cpu_targets)
    assert all(target.measure != "wall" for target in (*algorithm.targets, *algorithm.safeguards))
    assert all(target.of_add is not None or target.of_copy is not None for target in algorithm.safeguards)
    for several in (algorithm.targets, algorithm.cpu_targets):
        assert any(target.quick for target in several)
        assert len({(target.configuration, target.measure) for target in several}) == len(several)


def test_every_public_function_has_an_entry() -> None:
    import rl_triton

    names = {name for name in rl_triton.__all__ if name.startswith("compute_")}
    assert names == {algorithm.function().__name__ for algorithm in entries().values()}


@every_entry
@pytest.mark.parametrize("time_major", [False, True])
@pytest.mark.parametrize("truncated", [False, True])
@pytest.mark.parametrize("steps", [1, 2, 7, 64, 100])
def test_the_whole_array_form_agrees_with_the_definition(
    algorithm: Algorithm, steps: int, truncated: bool, time_major: bool
) -> None:
    configuration = Configuration(5, steps, torch.float64, truncated=truncated, time_major=time_major)
    arguments = algorithm.arguments(configuration, CPU)
    torch.testing.assert_close(algorithm.whole(arguments, scan_by_doubling), algorithm.reference()(**arguments))


@every_entry
@pytest.mark.parametrize("time_major", [False, True])
@pytest.mark.parametrize("scan", [scan_by_doubling, scan_by_loop])
def test_numpy_and_loops_agree_with_doubling(algorithm: Algorithm, scan: Scan, time_major: bool) -> None:
    configuration = Configuration(4, 33, torch.float64, truncated=True, time_major=time_major)
    arguments = algorithm.arguments(configuration, CPU)
    expected = as_tuple(algorithm.whole(arguments, scan_by_doubling))
    outputs = as_tuple(algorithm.whole(arguments, scan))
    arrays = as_tuple(algorithm.whole(as_numpy(arguments), scan))
    for output, array, values in zip(outputs, arrays, expected, strict=True):
        torch.testing.assert_close(output, values)
        np.testing.assert_allclose(array, values.numpy())


@every_entry
def test_float32_arrays_stay_float32(algorithm: Algorithm) -> None:
    arguments = algorithm.arguments(Configuration(3, 9, truncated=True), CPU)
    arrays = as_tuple(algorithm.whole(as_numpy(arguments), scan_by_loop))
    assert {array.dtype for array in arrays} == {np.dtype("float32")}
    assert {output.dtype for output in as_tuple(algorithm.whole(arguments, scan_by_loop))} == {torch.float32}


@pytest.mark.parametrize("name", ["gae", "gae-mask", "returns-mask", "vtrace-starts_at"])
def test_variants_draw_what_they_are_named_for(name: str) -> None:
    algorithm = entries()[name]
    arguments = algorithm.arguments(Configuration(64, 64, flags=torch.float32), CPU)
    assert arguments.get("boundary") == ("starts_at" if name.endswith("starts_at") else None)
    assert ("mask" in arguments) == name.endswith("mask")
    if "mask" in arguments:
        assert 0.7 < float(arguments["mask"].mean()) < 0.8
        assert not bool((arguments["terminateds"] * (arguments["mask"] == 0)).any())
        assert arguments["terminateds"].dtype == torch.float32


@pytest.mark.parametrize(
    ("inputs", "microseconds"),
    [
        ({"flags": torch.float32}, 32.9),
        ({}, 26.7),
        ({"dtype": torch.bfloat16}, 14.4),
    ],
)
def test_bytes_at_copy_bandwidth(inputs: dict[str, Any], microseconds: float) -> None:
    gae = entries()["gae"]
    arguments = gae.arguments(Configuration(16384, 512, **inputs), CPU)
    moved = gae.bytes_moved(arguments, (torch.empty_like(arguments["rewards"]),))
    assert moved / COPY_BANDWIDTH * 1e6 == pytest.approx(microseconds, rel=0.01)


def test_arguments_have_the_configuration() -> None:
    configuration = Configuration(3, 8, torch.bfloat16, torch.float32, time_major=True, truncated=True)
    arguments = entries()["gae"].arguments(configuration, CPU)
    assert arguments["rewards"].shape == (8, 3)
    assert arguments["rewards"].dtype == torch.bfloat16
    assert arguments["truncateds"].dtype == torch.float32
    assert arguments["time_dim"] == 0
