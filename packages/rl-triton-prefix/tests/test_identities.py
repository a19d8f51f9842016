"""What holds of episodic prefix sums whatever the inputs."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from rl_triton_core.boundaries import FLAG_CONVENTIONS
from rl_triton_prefix import compute_episodic_prefix_sum
from torch import Tensor

sizes = st.tuples(st.integers(1, 6), st.integers(2, 70), st.integers(0, 2**31))
boundaries = st.sampled_from(FLAG_CONVENTIONS)


def drawn(size: tuple[int, int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, dones and seed_values, in float64."""
    rows, steps, seed = size
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(rows, steps, generator=generator, dtype=torch.float64)
    dones = torch.rand(rows, steps, generator=generator) < 0.1
    return inputs, dones, torch.randn(rows, generator=generator, dtype=torch.float64)


@given(sizes, boundaries)
def test_without_boundaries_it_is_the_cumulative_sum(size: tuple[int, int, int], boundary: str) -> None:
    inputs, dones, seed_values = drawn(size)
    none = torch.zeros_like(dones)
    torch.testing.assert_close(compute_episodic_prefix_sum(inputs, none, boundary=boundary), inputs.cumsum(1))
    seeded = compute_episodic_prefix_sum(inputs, none, seed_values, boundary)
    torch.testing.assert_close(seeded, inputs.cumsum(1) + seed_values[:, None])


@given(sizes, boundaries)
def test_with_a_boundary_at_every_step_it_is_the_input(size: tuple[int, int, int], boundary: str) -> None:
    inputs, dones, seed_values = drawn(size)
    every = torch.ones_like(dones)
    prefix_sums = compute_episodic_prefix_sum(inputs, every, seed_values, boundary)
    assert torch.equal(prefix_sums[:, 1:], inputs[:, 1:])
    assert torch.equal(prefix_sums[:, 0], inputs[:, 0] if boundary == "starts_at" else inputs[:, 0] + seed_values)


@given(sizes)
def test_shifted_flags_of_one_convention_are_those_of_the_other(size: tuple[int, int, int]) -> None:
    inputs, ends, seed_values = drawn(size)
    starts = torch.cat([torch.zeros_like(ends[:, :1]), ends[:, :-1]], 1)
    by_ends = compute_episodic_prefix_sum(inputs, ends, seed_values, "ends_at")
    by_starts = compute_episodic_prefix_sum(inputs, starts, seed_values, "starts_at")
    assert torch.equal(by_starts, by_ends)
    # A flag at the first step hides the seed.
    starts[:, 0] = True
    unseeded = compute_episodic_prefix_sum(inputs, ends, None, "ends_at")
    assert torch.equal(compute_episodic_prefix_sum(inputs, starts, seed_values, "starts_at"), unseeded)


@given(sizes)
def test_ones_count_the_steps_of_an_episode(size: tuple[int, int, int]) -> None:
    inputs, dones, _ = drawn(size)
    counts = compute_episodic_prefix_sum(torch.ones_like(inputs), dones)
    steps = torch.arange(inputs.shape[1]).expand_as(inputs)
    first = torch.where(torch.nn.functional.pad(dones[:, :-1], (1, 0)), steps, 0).cummax(1).values
    assert torch.equal(counts, (steps - first + 1).double())


@given(sizes, boundaries, st.data())
def test_a_boundary_separates(size: tuple[int, int, int], boundary: str, data: st.DataObject) -> None:
    inputs, dones, seed_values = drawn(size)
    end = data.draw(st.integers(1, inputs.shape[1] - 1))
    dones[:, end if boundary == "starts_at" else end - 1] = True
    together = compute_episodic_prefix_sum(inputs, dones, seed_values, boundary)
    before = compute_episodic_prefix_sum(inputs[:, :end], dones[:, :end], seed_values, boundary)
    after = compute_episodic_prefix_sum(inputs[:, end:], dones[:, end:], None, boundary)
    torch.testing.assert_close(together, torch.cat([before, after], 1))


@given(sizes, boundaries, st.data())
def test_the_last_sum_seeds_the_next_window(size: tuple[int, int, int], boundary: str, data: st.DataObject) -> None:
    inputs, dones, seed_values = drawn(size)
    end = data.draw(st.integers(1, inputs.shape[1] - 1))
    if boundary == "ends_at":
        # The first window alone knows of a boundary between the two; with "starts_at" it is the second.
        dones[:, end - 1] = False
    together = compute_episodic_prefix_sum(inputs, dones, seed_values, boundary)
    before = compute_episodic_prefix_sum(inputs[:, :end], dones[:, :end], seed_values, boundary)
    after = compute_episodic_prefix_sum(inputs[:, end:], dones[:, end:], before[:, -1], boundary)
    torch.testing.assert_close(together, torch.cat([before, after], 1))


@given(sizes, boundaries)
def test_rows_are_independent(size: tuple[int, int, int], boundary: str) -> None:
    inputs, dones, seed_values = drawn(size)
    order = torch.randperm(inputs.shape[0], generator=torch.Generator().manual_seed(size[2]))
    straight = compute_episodic_prefix_sum(inputs, dones, seed_values, boundary)
    shuffled = compute_episodic_prefix_sum(inputs[order], dones[order], seed_values[order], boundary)
    torch.testing.assert_close(shuffled, straight[order])


@given(sizes, boundaries)
def test_time_major_is_env_major(size: tuple[int, int, int], boundary: str) -> None:
    inputs, dones, seed_values = drawn(size)
    straight = compute_episodic_prefix_sum(inputs, dones, seed_values, boundary)
    for x, flags in ((inputs.t(), dones.t()), (inputs.t().contiguous(), dones.t().contiguous())):
        turned = compute_episodic_prefix_sum(x, flags, seed_values, boundary, time_dim=0)
        torch.testing.assert_close(turned.t(), straight)
