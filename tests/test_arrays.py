"""The example with NumPy's and JAX's arrays: the right numbers, and the same memory on either side."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from rl_triton_gae import compute_gae

np = pytest.importorskip("numpy")

EXAMPLE = runpy.run_path(str(Path(__file__).parents[1] / "docs" / "examples" / "numpy_and_jax.py"))


def arrays() -> list[Any]:
    drawn = np.random.default_rng(0)
    rewards, values = (drawn.normal(size=(3, 5)).astype(np.float32) for _ in range(2))
    return [rewards, values, drawn.random((3, 5)) < 0.3, drawn.normal(size=3).astype(np.float32)]


def expected() -> Any:
    rewards, values, dones, last_value = (torch.tensor(array.tolist()) for array in arrays())
    return compute_gae(rewards, values, dones, last_value=last_value).numpy()


@pytest.fixture
def handed_over(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """The tensors that the example calls compute_gae with, and what it got."""
    seen: list[torch.Tensor] = []

    def recording(*arguments: torch.Tensor, last_value: torch.Tensor) -> torch.Tensor:
        result = compute_gae(*arguments, last_value=last_value)
        seen.extend((*arguments, last_value, result))
        return result

    monkeypatch.setitem(EXAMPLE["main"].__globals__, "compute_gae", recording)
    return seen


def test_numpy_arrays_are_used_in_place(handed_over: list[torch.Tensor]) -> None:
    given = arrays()
    result = EXAMPLE["numpy_advantages"](*given)
    np.testing.assert_allclose(result, expected(), rtol=1e-6)
    assert [x.data_ptr() for x in handed_over] == [array.ctypes.data for array in (*given, result)]


def test_jax_arrays_are_used_in_place(handed_over: list[torch.Tensor]) -> None:
    jnp = pytest.importorskip("jax.numpy")
    given = [jnp.asarray(array) for array in arrays()]
    result = EXAMPLE["jax_advantages"](*given)
    np.testing.assert_allclose(np.asarray(result), expected(), rtol=1e-6)
    assert [x.data_ptr() for x in handed_over] == [array.unsafe_buffer_pointer() for array in (*given, result)]


def test_either_half_prints_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("jax")
    EXAMPLE["main"]()
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 4
    assert printed[:2] == printed[2:]
    # 0.99 * 2 after the last step; nothing beyond the step that ends an episode.
    assert printed[0].split() == ["[[1.9405", "1.", "3.80269", "2.98", "]"]
