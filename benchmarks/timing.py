"""How long a call takes: on the device, seen from Python, in a loop, and on the CPU.

    device      replay of a CUDA graph of many calls, divided by the calls; median of several replays in a row
    full call   between events around one Python call, the device idle before it; minimum over five trials of the median
    amortised   wall time of many calls in a row, divided by the calls; minimum over five trials
    wall        wall time of one call on the CPU; minimum over five trials of the median

All in microseconds. What takes long is repeated less often.
Inputs stay where the call before left them, in the cache if they fit there.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

TRIALS = 5
SECONDS_PER_TRIAL = 0.2


class Timing(NamedTuple):
    """A figure in microseconds, with the lowest and highest of the figures that it was taken from."""

    value: float
    low: float
    high: float


def measure(name: str, call: Callable[[], Any]) -> Timing:
    """Time a call in the way of that name."""
    ways: dict[str, Callable[[Callable[[], Any]], Timing]] = {
        "device": device_time,
        "full call": full_call_time,
        "amortised": amortised_time,
        "wall": wall_time,
    }
    return ways[name](call)


def device_time(call: Callable[[], Any], *, calls: int = 50, replays: int = 9) -> Timing:
    """Time on the device alone: no launch, no Python."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    events = [_event() for _ in range(replays + 1)]
    graph.replay()
    torch.cuda.synchronize()
    # The replay in front keeps the device busy, so that no gap between launches of graphs is counted.
    graph.replay()
    for event in events[:-1]:
        event.record()
        graph.replay()
    events[-1].record()
    torch.cuda.synchronize()
    times = [start.elapsed_time(end) * 1e3 / calls for start, end in itertools.pairwise(events)]
    return Timing(statistics.median(times), min(times), max(times))


def full_call_time(call: Callable[[], Any], *, repeats: int = 50) -> Timing:
    """What a caller waits for who calls once and then needs the result."""
    repeats = _affordable(call, repeats, torch.cuda.synchronize)
    start, end = _event(), _event()

    def once() -> float:
        torch.cuda.synchronize()
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        elapsed: float = start.elapsed_time(end)
        return elapsed * 1e3

    return _best_trial([statistics.median(once() for _ in range(repeats)) for _ in range(TRIALS)])


def amortised_time(call: Callable[[], Any], *, calls: int = 400) -> Timing:
    """What one of many calls in a row costs: the host's or the device's time, whichever is longer."""
    calls = _affordable(call, calls, torch.cuda.synchronize)

    def trial() -> float:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
        return (time.perf_counter() - begin) * 1e6 / calls

    return _best_trial([trial() for _ in range(TRIALS)])


def wall_time(call: Callable[[], Any]) -> Timing:
    """What a call takes whose result is on the CPU."""

    def once() -> float:
        begin = time.perf_counter()
        call()
        return (time.perf_counter() - begin) * 1e6

    repeats = _affordable(call, 50)
    return _best_trial([statistics.median(once() for _ in range(repeats)) for _ in range(TRIALS)])


def _affordable(call: Callable[[], Any], most: int, wait: Callable[[], None] = lambda: None) -> int:
    """How often a call can be repeated within a trial, at least three times. It is warm afterwards."""
    call()
    wait()
    begin = time.perf_counter()
    call()
    wait()
    repeats = max(3, min(most, int(SECONDS_PER_TRIAL / max(time.perf_counter() - begin, 1e-9))))
    for _ in range(min(repeats, 8)):
        call()
    return repeats


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _best_trial(times: list[float]) -> Timing:
    return Timing(min(times), min(times), max(times))
