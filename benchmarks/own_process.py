"""One call of a compiled baseline in a process that compiles nothing else.

Objects of `torch.compile` that are used for one shape after another have returned wrong results. The request is a line
of JSON on the standard input, the answer the last line of the standard output.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, fields
from typing import Any

import torch
import torch._dynamo.utils

from benchmarks import oracle
from benchmarks.baselines import BY_OPTION
from benchmarks.registry import Algorithm, Configuration, Measure, dtype_name, entries
from benchmarks.timing import Timing, measure

LONGEST = 300.0


def ask(
    option: str,
    algorithm: Algorithm,
    configuration: Configuration,
    device: torch.device,
    measures: tuple[Measure, ...],
) -> dict[str, Any]:
    """The answer of a fresh process: the error, seconds of the first call and whether its code came from the compiler's
    cache, and a timing per measure.

    Raises:
        RuntimeError: the process failed or the result is wrong; the message says how.
    """
    request = {
        "option": option,
        "algorithm": algorithm.name,
        "configuration": encoded(configuration),
        "device": str(device),
        "measures": measures,
    }
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    # Several of these processes may run at a time, and by default each compiles on every core.
    environment.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "4")
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.own_process"],
        input=json.dumps(request),
        env=environment,
        capture_output=True,
        text=True,
        timeout=LONGEST,
        check=False,
    )
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        said = done.stderr.strip().splitlines() or ["no message"]
        raise RuntimeError(f"its process ended with {done.returncode}: {said[-1]}")
    answer: dict[str, Any] = json.loads(lines[-1])
    if "problem" in answer:
        raise RuntimeError(answer["problem"])
    answer["timings"] = {name: Timing(*numbers) for name, numbers in answer["timings"].items()}
    return answer


def encoded(configuration: Configuration) -> dict[str, Any]:
    return {
        name: dtype_name(value) if isinstance(value, torch.dtype) else value
        for name, value in asdict(configuration).items()
    }


def decoded(content: dict[str, Any]) -> Configuration:
    dtypes = {entry.name for entry in fields(Configuration) if isinstance(entry.default, torch.dtype)}
    return Configuration(**{name: getattr(torch, x) if name in dtypes else x for name, x in content.items()})


def answer_to(request: dict[str, Any]) -> dict[str, Any]:
    """Compile, compare and time."""
    algorithm, configuration = entries()[request["algorithm"]], decoded(request["configuration"])
    device = torch.device(request["device"])
    arguments = algorithm.arguments(configuration, device)
    try:
        call = BY_OPTION[request["option"]].make(algorithm, arguments)
        begin = time.perf_counter()
        outputs = call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        first_call = time.perf_counter() - begin
        expected = oracle.expected_outputs(algorithm, configuration, arguments)
        error = oracle.check(algorithm, configuration, outputs, expected)
        # Once more, so that what a second call takes other ways for is looked at too.
        oracle.check(algorithm, configuration, call(), expected)
        timings = {name: measure(name, call) for name in request["measures"]}
    except Exception as problem:  # whatever it is, the asking process writes it beside the figure
        first_line = (str(problem).strip() or "no message").splitlines()[0]
        return {"problem": f"{type(problem).__name__}: {first_line}"}
    hits = torch._dynamo.utils.counters["inductor"]["fxgraph_cache_hit"]
    return {"error": error, "first_call": first_call, "from_cache": hits > 0, "timings": timings}


if __name__ == "__main__":
    print(json.dumps(answer_to(json.loads(sys.stdin.readline()))))
