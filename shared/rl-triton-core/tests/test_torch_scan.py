"""The PyTorch scan against the oracle: every strategy, shape, layout and direction, and what a cut hides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from rl_triton_core.engine import torch_scan
from rl_triton_core.engine.torch_scan import Plan, choose_plan, scan_steps
from rl_triton_core.reference import segmented_scan
from rl_triton_core.testing.tolerance import assert_within_rule
from torch import Tensor

PLANS = [Plan("loop"), Plan("doubling"), Plan("blocks", 4), Plan("blocks", 32)]


def oracle(u: Tensor, decay: Tensor | float, cut: Tensor | None, dim: int, reverse: bool, dtype: torch.dtype) -> Tensor:
    decays = decay if isinstance(decay, Tensor) else torch.full_like(u, decay, dtype=torch.float64)
    return segmented_scan(u, decays, resets=cut, reverse=reverse, time_dim=dim, dtype=dtype)


def check(u: Tensor, decay: Tensor | float, cut: Tensor | None, dim: int, reverse: bool) -> float:
    """Scan, compare with the oracle, and see that layout and arguments are as they should be."""
    before = [x.clone() for x in (u, decay, cut) if isinstance(x, Tensor)]
    y = scan_steps(u, decay, cut, dim=dim, reverse=reverse)
    assert y.stride() == torch.empty_like(u).stride()
    for x, copy in zip([x for x in (u, decay, cut) if isinstance(x, Tensor)], before, strict=True):
        assert torch.equal(x.nan_to_num(), copy.nan_to_num())
        assert y.data_ptr() != x.data_ptr()
    references = [oracle(u, decay, cut, dim, reverse, dtype) for dtype in (torch.float64, torch.float32)]
    return assert_within_rule(y, references[0], references[1], u.dtype, time_dim=dim)


def forced(monkeypatch: pytest.MonkeyPatch, plan: Plan) -> None:
    monkeypatch.setattr(torch_scan, "choose_plan", lambda *args, **kwargs: plan)


SHAPES = [
    ((3, 1), 1),
    ((1, 2), 1),
    ((17,), 0),
    ((5, 64), 1),
    ((2, 65), 1),
    ((127, 31), 1),
    ((3, 1000), 1),
    ((63, 9), 0),
]
SHAPES += [((9, 63), 0), ((2, 33, 5), 1), ((2, 3, 40), 2), ((40, 2, 3), 0)]


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: f"{plan.strategy}{plan.block or ''}")
@pytest.mark.parametrize("reverse", [False, True])
def test_every_strategy_on_every_shape(monkeypatch: pytest.MonkeyPatch, plan: Plan, reverse: bool) -> None:
    forced(monkeypatch, plan)
    torch.manual_seed(0)
    for shape, dim in SHAPES:
        u = torch.randn(shape)
        for cut in (None, torch.rand(shape) < 0.1, torch.ones(shape, dtype=torch.bool)):
            for decay in (0.95, 1.0, 0.0, torch.rand(shape) * 1.2 - 0.1):
                check(u, decay, cut, dim, reverse)
                check(u.double(), decay.double() if isinstance(decay, Tensor) else decay, cut, dim, reverse)


@pytest.mark.parametrize("reverse", [False, True])
def test_the_plan_that_is_chosen(reverse: bool) -> None:
    torch.manual_seed(0)
    for shape, dim in [((4096, 16), 1), ((300, 700), 1), ((64, 2100), 1), ((2048, 3), 0), ((3000, 8), 0)]:
        u, cut = torch.randn(shape), torch.rand(shape) < 0.01
        check(u, 0.9405, cut, dim, reverse)
        check(u, torch.rand(shape), cut, dim, reverse)


@pytest.mark.parametrize("steps", [1, 2, 31, 64, 65, 1000])
def test_strided_views(steps: int) -> None:
    torch.manual_seed(0)
    wide = torch.randn(6, 2 * steps, 3)
    for u in (wide[:, ::2, 1], wide[::2, :steps].transpose(0, 2), wide[:1, :steps, 0].expand(4, steps)):
        check(u, 0.9, torch.rand(u.shape) < 0.1, 1, True)
        check(
            u,
            torch.rand(u.shape),
            (torch.rand(u.shape[0:1] + u.shape[2:]) < 0.1).unsqueeze(1).expand(u.shape),
            1,
            False,
        )


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: f"{plan.strategy}{plan.block or ''}")
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("per_step", [False, True])
def test_nan_and_inf_stay_in_their_segment(
    monkeypatch: pytest.MonkeyPatch, plan: Plan, reverse: bool, per_step: bool
) -> None:
    forced(monkeypatch, plan)
    torch.manual_seed(0)
    for trial in range(6):
        shape = (7, 130)
        u, cut = torch.randn(shape), torch.rand(shape) < 0.08
        decay: Tensor | float = 0.95
        u[torch.rand(shape) < 0.01] = (float("nan"), float("inf"), -float("inf"))[trial % 3]
        if per_step:
            decay = 0.9 + 0.1 * torch.rand(shape)
            decay[torch.rand(shape) < 0.01] = float("nan")
        check(u, decay, cut, 1, reverse)


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: f"{plan.strategy}{plan.block or ''}")
def test_an_infinite_decay_stays_in_its_segment(monkeypatch: pytest.MonkeyPatch, plan: Plan) -> None:
    forced(monkeypatch, plan)
    torch.manual_seed(0)
    u, decay, cut = torch.randn(7, 130), 0.9 + 0.1 * torch.rand(7, 130), torch.rand(7, 130) < 0.08
    decay[torch.rand(7, 130) < 0.02] = float("inf")
    y, expected = scan_steps(u, decay, cut, dim=1, reverse=True), oracle(u, decay, cut, 1, True, torch.float64)
    # Inside, inf or NaN: the sum of two infinite parts depends on the order.
    assert torch.equal(y.isfinite(), expected.isfinite())
    finite = expected.isfinite()
    torch.testing.assert_close(y[finite].double(), expected[finite], rtol=1e-5, atol=1e-5)


def test_a_segment_without_nan_does_not_see_the_others() -> None:
    u = torch.ones(1, 8)
    u[0, 5] = float("nan")
    cut = torch.tensor([[0, 0, 1, 0, 0, 0, 0, 0]], dtype=torch.bool)
    y = scan_steps(u, 0.5, cut, dim=1, reverse=True)
    assert y[0].isnan().tolist() == [False, False, False, True, True, True, False, False]
    assert y[0, :3].tolist() == [1.75, 1.5, 1.0]


def test_what_the_open_end_holds_is_not_read() -> None:
    u, decay = torch.ones(2, 4), torch.full((2, 4), 0.5)
    decay[:, -1] = float("nan")
    for plan in PLANS:
        with pytest.MonkeyPatch.context() as monkeypatch:
            forced(monkeypatch, plan)
            y = scan_steps(u, decay, None, dim=1, reverse=True)
            assert y.tolist() == [[1.875, 1.75, 1.5, 1.0]] * 2


KINDS = [f"{decay} {form}" for decay in (0.99, 0.999, 0.9999) for form in ("tensor", "number")] + ["random tensor"]


def decay_near_one(kind: str, steps: int) -> Tensor | float:
    decay, form = kind.split()
    if form == "number":
        return float(decay)
    return 0.99 + 0.01 * torch.rand(1, steps) if decay == "random" else torch.full((1, steps), float(decay))


def plain_loop(u: Tensor, decay: Tensor) -> Tensor:
    """The oracle's reverse recursion without cuts, with the least that 131072 steps of it can cost."""
    y = torch.zeros_like(u[:, 0])
    states = []
    for x, w in zip(reversed(u.unbind(1)), reversed(decay.unbind(1)), strict=True):
        y = x + w * y
        states.append(y)
    return torch.stack(states[::-1], 1)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Small operations by the thousand, whose threads would wait for each other on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("steps", [512, 4097, 131072])
def test_the_error_is_a_loops_near_a_decay_of_one(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    torch.manual_seed(steps)
    u = torch.randn(1, steps) + 0.5
    decays = [decay_near_one(kind, steps) for kind in KINDS]
    # All kinds as rows of one loop, which is what takes the time.
    rows = torch.cat([torch.ones(1, steps, dtype=torch.float64) * decay for decay in decays])
    references = [
        segmented_scan(u.expand_as(rows), rows, reverse=True, dtype=d) for d in (torch.float64, torch.float32)
    ]
    for i, decay in enumerate(decays):
        one_decay = not isinstance(decay, Tensor)
        for plan in (choose_plan(1, steps, time_major=False, one_decay=one_decay, readable=True), *PLANS[1:]):
            forced(monkeypatch, plan)
            y = scan_steps(u, decay, None, dim=1, reverse=True)
            assert_within_rule(y, references[0][i : i + 1], references[1][i : i + 1], torch.float32)


def test_empty_tensors() -> None:
    for shape in ((0, 5), (3, 0), (0, 0)):
        assert scan_steps(torch.empty(shape), 0.5, None, dim=1, reverse=True).shape == shape


def test_bitwise_the_same_from_run_to_run() -> None:
    torch.manual_seed(0)
    u, cut = torch.randn(64, 4096), torch.rand(64, 4096) < 0.01
    first, second = (scan_steps(u, 0.99, cut, dim=1, reverse=True) for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize(
    ("arguments", "strategy"),
    [
        ({"rows": 4096, "steps": 128, "time_major": True, "one_decay": True, "readable": True}, "loop"),
        ({"rows": 4096, "steps": 128, "time_major": False, "one_decay": False, "readable": True}, "loop"),
        ({"rows": 128, "steps": 4096, "time_major": True, "one_decay": True, "readable": True}, "blocks"),
        ({"rows": 64, "steps": 512, "time_major": False, "one_decay": True, "readable": True}, "doubling"),
        ({"rows": 64, "steps": 512, "time_major": False, "one_decay": False, "readable": True}, "blocks"),
        ({"rows": 64, "steps": 32768, "time_major": False, "one_decay": True, "readable": True}, "blocks"),
        ({"rows": 4096, "steps": 128, "time_major": True, "one_decay": True, "readable": False}, "doubling"),
    ],
)
def test_plans(arguments: dict[str, Any], strategy: str) -> None:
    assert choose_plan(**arguments).strategy == strategy
