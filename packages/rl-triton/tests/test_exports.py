"""The meta-package hands out the packages' own functions, all of them, on import."""

from __future__ import annotations

import rl_triton
import rl_triton_core
import rl_triton_gae
import rl_triton_lambda
import rl_triton_prefix
import rl_triton_retrace
import rl_triton_returns
import rl_triton_traces
import rl_triton_vtrace


def test_functions_are_the_packages_own() -> None:
    assert rl_triton.compute_gae is rl_triton_gae.compute_gae
    assert rl_triton.normalize_advantages is rl_triton_gae.normalize_advantages
    assert rl_triton.compute_vtrace is rl_triton_vtrace.compute_vtrace
    assert rl_triton.compute_retrace is rl_triton_retrace.compute_retrace
    assert rl_triton.compute_retrace_continuous is rl_triton_retrace.compute_retrace_continuous
    assert rl_triton.compute_lambda_returns is rl_triton_lambda.compute_lambda_returns
    assert rl_triton.compute_discounted_returns is rl_triton_returns.compute_discounted_returns
    assert rl_triton.compute_n_step_returns is rl_triton_returns.compute_n_step_returns
    assert rl_triton.compute_group_advantages is rl_triton_returns.compute_group_advantages
    assert rl_triton.compute_eligibility_traces is rl_triton_traces.compute_eligibility_traces
    assert rl_triton.compute_episodic_prefix_sum is rl_triton_prefix.compute_episodic_prefix_sum
    assert rl_triton.segmented_scan is rl_triton_core.segmented_scan
    assert rl_triton.warmup is rl_triton_core.warmup


def test_all_names_are_there_on_import() -> None:
    assert len(set(rl_triton.__all__)) == len(rl_triton.__all__)
    assert set(rl_triton.__all__) <= vars(rl_triton).keys()
    assert "__getattr__" not in vars(rl_triton), "names are re-exported eagerly"


def test_star_import_brings_every_function() -> None:
    namespace: dict[str, object] = {}
    exec("from rl_triton import *", namespace)
    assert set(rl_triton.__all__) <= namespace.keys()
