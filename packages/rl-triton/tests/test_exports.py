"""The meta-package hands out the packages' own functions, all of them, on import."""

from __future__ import annotations

import rl_triton
import rl_triton_core
import rl_triton_gae


def test_functions_are_the_packages_own() -> None:
    assert rl_triton.compute_gae is rl_triton_gae.compute_gae
    assert rl_triton.segmented_scan is rl_triton_core.segmented_scan


def test_all_names_are_there_on_import() -> None:
    assert len(set(rl_triton.__all__)) == len(rl_triton.__all__)
    assert set(rl_triton.__all__) <= vars(rl_triton).keys()
    assert "__getattr__" not in vars(rl_triton), "names are re-exported eagerly"


def test_star_import_brings_every_function() -> None:
    namespace: dict[str, object] = {}
    exec("from rl_triton import *", namespace)
    assert set(rl_triton.__all__) <= namespace.keys()
