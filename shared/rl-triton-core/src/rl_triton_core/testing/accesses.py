"""Where kernels read, in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

from torch import Tensor


@contextmanager
def reads_only(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Fail if a kernel called inside the block reads an address that lies in none of the tensors."""
    import numpy as np
    from triton.runtime.interpreter import InterpreterBuilder

    load = InterpreterBuilder.create_masked_load
    spans = [(x.data_ptr(), x.data_ptr() + _extent_in_bytes(x)) for x in tensors if x.numel()]
    read, stray = 0, 0

    def recorded(self: Any, pointers: Any, mask: Any, *others: Any) -> Any:
        nonlocal read, stray
        addresses = pointers.data[np.broadcast_to(mask.data, pointers.data.shape).astype(bool)].astype(np.int64)
        is_known = np.zeros(addresses.shape, dtype=bool)
        for first, end in spans:
            is_known |= (addresses >= first) & (addresses < end)
        read, stray = read + addresses.size, stray + int((~is_known).sum())
        return load(self, pointers, mask, *others)

    with mock.patch.object(InterpreterBuilder, "create_masked_load", recorded):
        yield
    assert read > 0, "no kernel was interpreted"
    assert stray == 0, f"{stray} of {read} reads lie outside the tensors"


def _extent_in_bytes(x: Tensor) -> int:
    return (sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True)) + 1) * x.element_size()
