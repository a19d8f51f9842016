"""All that must hold of a function inside PyTorch, as one parameter of a test: `check(function, names)`.

CHECKS are for functions that are one operator, CHECKS_OF_COMPOSITES for those that are several of PyTorch's.
"""

from __future__ import annotations

import pytest

from rl_triton_core.testing import gpu, integration

_OF_ALL = (
    integration.assert_compiles_once,
    integration.assert_writes_into_buffers,
    *(
        pytest.param(check, marks=pytest.mark.gpu)
        for check in (
            gpu.assert_captures,
            gpu.assert_warmup_compiles_all,
            gpu.assert_runs_on_any_device,
            gpu.assert_waits_for_nothing,
            gpu.assert_gradients_like_the_cpu,
            gpu.assert_compiles_on_gpu,
            gpu.assert_writes_into_gpu_buffers,
        )
    ),
)
CHECKS = pytest.mark.parametrize("check", (integration.assert_is_one_operator, *_OF_ALL))
CHECKS_OF_COMPOSITES = pytest.mark.parametrize("check", _OF_ALL)
