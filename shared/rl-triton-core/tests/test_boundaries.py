"""What flags mean, on whole tensors."""

from __future__ import annotations

import pytest
import torch
from rl_triton_core.boundaries import check_continuation, cuts_before, episode_ends


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32])
def test_both_flag_conventions(dtype: torch.dtype) -> None:
    ends = torch.tensor([[0, 1, 0, 0, 1]]).to(dtype)
    assert cuts_before(ends, 1, starts_at=False).tolist() == [[False, False, True, False, False]]
    starts = torch.tensor([[1, 0, 1, 0, 0]]).to(dtype)
    assert cuts_before(starts, 1, starts_at=True).tolist() == [[True, False, True, False, False]]
    assert torch.equal(cuts_before(ends.t(), 0, starts_at=False).t(), cuts_before(ends, 1, starts_at=False))
    assert cuts_before(ends[:, :0], 1, starts_at=False).shape == (1, 0)


def test_an_episode_ends_by_either_flag() -> None:
    terminateds, truncateds = torch.tensor([True, False, False, True]), torch.tensor([False, True, False, True])
    assert episode_ends(terminateds, truncateds).tolist() == [True, True, False, True]
    assert episode_ends(terminateds, None) is terminateds


def test_one_continuation_at_most() -> None:
    x = torch.ones(1)
    check_continuation(x, x, None, None)
    check_continuation(None, None, x, None)
    with pytest.raises(ValueError, match="bootstrap_values and next_values: expected at most one"):
        check_continuation(None, x, None, x)
    with pytest.warns(UserWarning, match="pass bootstrap_values"):
        check_continuation(x, None, x, None)
