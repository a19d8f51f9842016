"""Recursions over whole arrays of PyTorch or NumPy, which baselines and the check of long rows are made of.

An algorithm says what u and w are in y[t] = u[t] + w[t] * y[t+1], and a scan computes y: in a logarithmic number of
passes, or in a loop over time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.registry import Arguments

# A torch.Tensor or a numpy.ndarray.
Array = Any
# Takes u, w, the time axis, and whether y comes from the next step instead of the one before.
Scan = Callable[[Array, Array, int, bool], Array]


def namespace(x: Array) -> Any:
    """The module whose functions take x."""
    if isinstance(x, torch.Tensor):
        return torch
    import numpy

    return numpy


def as_numpy(arguments: Arguments) -> Arguments:
    """Arguments on the CPU with arrays of NumPy for tensors."""
    return {name: x.cpu().numpy() if isinstance(x, torch.Tensor) else x for name, x in arguments.items()}


def along(dim: int, index: Any) -> tuple[Any, ...]:
    """What takes `index` of an axis and all of those before it."""
    return (*(slice(None),) * dim, index)


def shifted(x: Array, by: int, dim: int, reverse: bool = True) -> Array:
    """x[t + by], or x[t - by] unless `reverse`, with zeros for what is not there."""
    xp = namespace(x)
    kept = along(dim, slice(by, None) if reverse else slice(None, x.shape[dim] - by))
    absent = xp.zeros_like(x[along(dim, slice(0, by))])
    return xp.concatenate((x[kept], absent) if reverse else (absent, x[kept]), dim)


def scan_by_doubling(u: Array, w: Array, dim: int, reverse: bool = True) -> Array:
    """In pass k each step reaches 2^k steps ahead."""
    reach = 1
    while reach < u.shape[dim]:
        u = u + w * shifted(u, reach, dim, reverse)
        w = w * shifted(w, reach, dim, reverse)
        reach *= 2
    return u


def scan_by_loop(u: Array, w: Array, dim: int, reverse: bool = True) -> Array:
    """One step after the other, each for all rows at once."""
    xp = namespace(u)
    y = xp.empty_like(u)
    steps = range(u.shape[dim])
    state = xp.zeros_like(u[along(dim, 0)])
    for t in reversed(steps) if reverse else steps:
        here = along(dim, t)
        if xp is torch:
            state = torch.addcmul(u[here], w[here], state, out=y[here])
        else:
            state = y[here] = u[here] + w[here] * state
    return y


def positions(x: Array, dim: int) -> Array:
    """The index of every step along `dim`, ready to be broadcast over two axes."""
    steps = x.shape[dim]
    index = torch.arange(steps, device=x.device) if isinstance(x, torch.Tensor) else namespace(x).arange(steps)
    return index.reshape((steps, 1) if dim == 0 else (1, steps))


def per_row(x: Array, dim: int) -> Array:
    """One number per row, ready to be broadcast over its steps."""
    return x[None, :] if dim == 0 else x[:, None]


def take(x: Array, index: Array, dim: int) -> Array:
    """The entries of x that `index` names along an axis."""
    if isinstance(x, torch.Tensor):
        return torch.take_along_dim(x, index, dim)
    return namespace(x).take_along_axis(x, index, dim)


def by_forward_scan(x: Array, decay: Array | float, arguments: Arguments, scan: Scan, ratios: Array = 1.0) -> Array:
    """y[t] = ratios[t] * (x[t] + decay[t] * y[t-1]), cut after a done step; `seed_values` stand before the first."""
    xp, dim, flags = namespace(x), arguments["time_dim"], arguments["dones"] != 0
    cut = flags if arguments.get("boundary") == "starts_at" else shifted(flags, 1, dim, reverse=False)
    w = xp.where(cut, 0.0, xp.zeros_like(x) + decay)
    seed = per_row(arguments["seed_values"], dim)
    u = xp.where(positions(x, dim) == 0, x + w * seed, x)
    return scan(ratios * u, ratios * w, dim, False)


class BackwardWindow:
    """What follows each step of a window, under either convention of flags, with or without a mask.

    Flags may stand at valid steps only, which is where `rollouts` draws them.

    Attributes:
        terminated: whether the episode ended with the step.
        interrupted: whether it goes on outside the window: at truncations, and at the last valid step.
    """

    def __init__(self, arguments: Arguments) -> None:
        self._arguments = arguments
        rewards, self._dim = arguments["rewards"], arguments["time_dim"]
        self._xp = namespace(rewards)
        mask = arguments.get("mask")
        self._valid = None if mask is None else mask != 0
        place = positions(rewards, self._dim)
        steps = rewards.shape[self._dim]
        if self._valid is None:
            is_last = place == steps - 1
        else:
            self._next = shifted(self._next_valid(place, steps) - steps, 1, self._dim) + steps
            is_last = self._next == steps
        self.terminated = self._ended(arguments["terminateds"])
        truncateds = arguments.get("truncateds")
        self._truncated = self.terminated & False if truncateds is None else self._ended(truncateds)
        self.interrupted = is_last | self._truncated

    def _next_valid(self, place: Array, steps: int) -> Array:
        """The first valid step from each one on; the number of steps where there is none."""
        index = self._xp.where(self._valid, place, steps)
        if self._xp is torch:
            return index.flip(self._dim).cummin(self._dim).values.flip(self._dim)
        return self._xp.flip(self._xp.minimum.accumulate(self._xp.flip(index, self._dim), self._dim), self._dim)

    def _ended(self, flags: Array) -> Array:
        is_set = flags != 0
        return shifted(is_set, 1, self._dim) if self._arguments.get("boundary") == "starts_at" else is_set

    def following(self, x: Array) -> Array:
        """x of the next valid step, anything where there is none."""
        if self._valid is None:
            return shifted(x, 1, self._dim)
        return take(x, self._xp.clip(self._next, None, x.shape[self._dim] - 1), self._dim)

    def outside(self) -> Array:
        """The value of what follows where an episode is interrupted, from whichever argument holds it."""
        bootstrap = self._arguments.get("bootstrap_values")
        if bootstrap is None:
            return per_row(self._arguments["last_value"], self._dim)
        if self._valid is None:
            return bootstrap
        # What the last column continues with passes to the last valid step.
        return self._xp.where(self._truncated, bootstrap, bootstrap[along(self._dim, slice(-1, None))])

    def continuation(self, inside: Array, outside: Array) -> Array:
        """The value of what follows: `inside` an episode, `outside` where it is interrupted, 0 after its end."""
        return self._xp.where(self.terminated, 0.0, self._xp.where(self.interrupted, outside, inside))

    def scan(self, u: Array, decay: Array | float, scan: Scan) -> Array:
        """y[t] = u[t] + decay[t] * y of the next valid step, cut after an ended one."""
        xp = self._xp
        w = xp.where(self.terminated | self._truncated, 0.0, xp.zeros_like(u) + decay)
        if self._valid is not None:
            u, w = xp.where(self._valid, u, 0.0), xp.where(self._valid, w, 1.0)
        return scan(u, w, self._dim, True)

    def at_valid(self, *outputs: Array) -> Array | tuple[Array, ...]:
        """Outputs as they are returned: 0 at steps that are passed over, and a tuple only of several."""
        if self._valid is not None:
            outputs = tuple(self._xp.where(self._valid, output, 0.0) for output in outputs)
        return outputs[0] if len(outputs) == 1 else outputs
