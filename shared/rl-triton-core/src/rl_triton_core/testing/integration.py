"""What must hold of a differentiable or traced call, whatever it computes: its transforms, and PyTorch's tracers.

`one` is the public function with all but the tensors in question fixed; it returns a tensor or a tuple of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

from rl_triton_core.testing.calls import FlagsAtStarts, as_tuple, assert_obeys_rule, outputs_and_gradients, with_mask


def assert_maps(one: Callable[[Tensor], Any], many: Tensor) -> None:
    """Fail unless vmap over the first axis, nested, and over the last axis, gives what call after call does."""
    expected = [torch.stack(outputs) for outputs in zip(*(as_tuple(one(x)) for x in many), strict=True)]
    mapped = as_tuple(torch.func.vmap(one)(many))
    nested = as_tuple(torch.func.vmap(torch.func.vmap(one))(many.unsqueeze(0)))
    along_last = as_tuple(torch.func.vmap(one, in_dims=-1)(many.movedim(0, -1)))
    for several in (mapped, [x[0] for x in nested], along_last):
        torch.testing.assert_close(list(several), expected)


def assert_gradients_agree(one: Callable[[Tensor], Tensor], x: Tensor) -> None:
    """Fail unless torch.func.grad of the sum is what autograd gives."""
    leaf = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(one(leaf).sum(), leaf)
    torch.testing.assert_close(torch.func.grad(lambda x: one(x).sum())(x), gradient)


def assert_forward_mode_agrees(one: Callable[[Tensor], Tensor], x: Tensor) -> None:
    """Fail unless forward mode is the transpose of reverse mode, by torch.func and by dual tensors."""
    generator = torch.Generator().manual_seed(4)
    vjp: Any = torch.func.vjp(one, x)
    y, pull_back = vjp
    tangent, cotangent = (torch.randn(of.shape, generator=generator, dtype=of.dtype) for of in (x, y))
    forward = torch.func.jvp(one, (x,), (tangent,))[1]
    torch.testing.assert_close((forward * cotangent).sum(), (pull_back(cotangent)[0] * tangent).sum())
    with forward_ad.dual_level():
        y = one(forward_ad.make_dual(x, tangent))  # type: ignore[no-untyped-call]
        torch.testing.assert_close(forward_ad.unpack_dual(y).tangent, forward)  # type: ignore[no-untyped-call]


def assert_jacobians_agree(one: Callable[[Tensor], Tensor], x: Tensor) -> None:
    """Fail unless both Jacobians are equal, and the Hessian of the sum of squares is symmetric and not 0."""
    torch.testing.assert_close(torch.func.jacfwd(one)(x), torch.func.jacrev(one)(x))
    hessian = torch.func.hessian(lambda x: one(x).square().sum())(x)
    axes = x.dim()
    torch.testing.assert_close(hessian, hessian.permute(*range(axes, 2 * axes), *range(axes)))
    assert hessian.abs().max() > 0


def assert_records_where_asked(function: Callable[..., Tensor], given: dict[str, Any], name: str) -> None:
    """Fail unless inference mode and no_grad change no number, and a parameter as `name` is recorded without them."""
    expected = function(**given)
    with torch.inference_mode():
        torch.testing.assert_close(function(**given), expected)
    with_parameter = given | {name: torch.nn.Parameter(given[name])}
    with torch.no_grad():
        detached = function(**with_parameter)
    torch.testing.assert_close(detached, expected)
    assert not detached.requires_grad
    assert function(**with_parameter).requires_grad


def assert_traces(one: Callable[..., Any], tensors: Sequence[Tensor]) -> None:
    """Fail unless fake tensors get the outputs' shapes, dtypes and strides, and a trace serves other numbers too."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    expected = one(*tensors)
    with FakeTensorMode() as mode:
        fakes = one(*(mode.from_tensor(x) for x in tensors))
    for fake, output in zip(as_tuple(fakes), as_tuple(expected), strict=True):
        assert (fake.shape, fake.dtype, fake.stride()) == (output.shape, output.dtype, output.stride())
    traced = make_fx(one, tracing_mode="fake")(*tensors)
    torch.testing.assert_close(traced(*tensors), expected)
    others = [x.flip(0) for x in tensors]
    torch.testing.assert_close(traced(*others), one(*others))


FLAGS = ("terminateds", "truncateds", "dones", "resets", "mask", "next_start", "next_start_truncated")
ROW_VALUES = ("last_value", "seed_values", "initial", "next_start", "next_start_truncated")
WIDE = ("action_probs_target", "next_action_probs_target", "next_q_values_all")


def drawn_by_name(
    names: Sequence[str], steps: int, dtype: torch.dtype = torch.float64, device: str = "cpu", rows: int = 2
) -> dict[str, Tensor]:
    """Arguments for rows of so many steps and 3 actions: flags, actions, and numbers in [0.1, 0.9]."""
    generator = torch.Generator().manual_seed(7)
    given: dict[str, Tensor] = {}
    for name in names:
        shape = (rows,) if name in ROW_VALUES else (rows, steps, 3) if name in WIDE else (rows, steps)
        drawn = torch.rand(shape, generator=generator, dtype=dtype)
        if name in FLAGS:
            given[name] = drawn < (0.6 if name == "mask" else 0.2)
        else:
            given[name] = (drawn * 3).long() if name == "actions" else drawn * 0.8 + 0.1
    # Drawn on the CPU, so that the numbers are the same on every device.
    return {name: x.to(device) for name, x in given.items()}


def assert_is_one_operator(function: Callable[..., Any], names: Sequence[str]) -> None:
    """Fail unless modes see one operator, which passes PyTorch's checks of operators and stays whole in an export."""
    from torch.utils.flop_counter import FlopCounterMode

    tensors = tuple(drawn_by_name(names, 9).values())

    def one(*tensors: Tensor) -> Any:
        return function(**dict(zip(names, tensors, strict=True)))

    expected = one(*tensors)
    with _Recorder() as recorder, FlopCounterMode(display=False):
        torch.testing.assert_close(one(*tensors), expected)
    ((operator, arguments),) = recorder.calls
    for recording in (False, True):
        checked = [x.detach().requires_grad_(recording) if _is_floating(x) else x for x in arguments]
        torch.library.opcheck(operator, tuple(checked))

    class Module(torch.nn.Module):
        def forward(self, *tensors: Tensor) -> Any:
            return one(*tensors)

    exported = torch.export.export(Module(), tensors)
    torch.testing.assert_close(exported.module()(*tensors), expected)
    assert operator in [node.target for node in exported.graph.nodes]


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """What is called of ours, with which arguments."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[tuple[Any, tuple[Any, ...]]] = []

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), others: Any = None) -> Any:
        if function.namespace == "rl_triton":
            self.calls.append((function, arguments))
        return function(*arguments, **(others or {}))


def assert_writes_into_buffers(function: Callable[..., Any], names: Sequence[str]) -> None:
    """Fail unless buffers of any strides get all outputs and nothing beside them."""
    assert_writes_outputs_of(function, drawn_by_name(names, 9))


def assert_writes_outputs_of(function: Callable[..., Any], given: dict[str, Tensor]) -> None:
    """The same for arguments at hand, wherever they are."""
    single = isinstance(function(**given), Tensor)
    expected = as_tuple(function(**given))

    def beside(x: Tensor) -> tuple[Tensor, Tensor]:
        """A buffer in every other place of a larger one."""
        whole = x.new_full((*x.shape[:-1], 2 * x.shape[-1] + 1), -7.0)
        return whole, whole[..., 1::2]

    def across(x: Tensor) -> tuple[Tensor, Tensor]:
        whole = x.new_full((x.shape[-1], *x.shape[:-1], 2), -7.0)
        return whole, whole[..., 0].movedim(0, -1)

    def alone(x: Tensor) -> tuple[Tensor, Tensor]:
        whole = torch.full_like(x, float("nan"))
        return whole, whole

    with torch.no_grad():
        for layout in (alone, beside, across, alone):
            pairs = [layout(y) for y in expected]
            buffers = [buffer for _, buffer in pairs]
            returned = as_tuple(function(**given, out=buffers[0] if single else tuple(buffers)))
            for buffer, one, y, (whole, _) in zip(buffers, returned, expected, pairs, strict=True):
                assert one is buffer
                # Other strides may mean other tiles, and sums in another order.
                tolerance = 0.0 if buffer.stride() == y.stride() else None
                torch.testing.assert_close(buffer, y, rtol=tolerance, atol=tolerance, equal_nan=True)
                assert (whole == -7.0).sum() == whole.numel() - y.numel()


def assert_flags_at_starts_agree(function: Callable[..., Any], names: Sequence[str]) -> None:
    """Fail unless flags at the first steps of episodes give what the same flags at the last steps do, derivatives too.

    `function` takes both conventions; `names` are those of a call with flags at the last steps.
    """
    for steps in (1, 2, 9):
        given = drawn_by_name(names, steps)
        moved, behind = dict(given), {}
        for name, next_name in (("terminateds", "next_start"), ("truncateds", "next_start_truncated")):
            if name in given:
                # What stands at t = 0 is ignored.
                moved[name] = torch.cat([torch.ones_like(given[name][:, :1]), given[name][:, :-1]], 1)
                behind[next_name] = given[name][:, -1]
        at_starts = FlagsAtStarts(function)
        unended = {name: x.clone() for name, x in given.items()}
        for name in behind:
            unended["terminateds" if name == "next_start" else "truncateds"][:, -1] = False
        for ours, theirs in ((moved | behind, given), (moved, unended)):
            results = []
            for one, tensors in ((at_starts, ours), (function, theirs)):
                leaves = {name: x.clone().requires_grad_(_is_floating(x)) for name, x in tensors.items()}
                results.append(outputs_and_gradients(one, leaves))
            torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)


def assert_steps_are_transparent(
    function: Callable[..., Any], oracle: Callable[..., Any], names: Sequence[str]
) -> None:
    """Fail unless what a mask leaves out is passed over on the CPU, by outputs and by derivatives.

    `oracle` is the reference of the same signature; `names` are those of a call without a mask.
    """
    for steps in (1, 2, 7, 40):
        arguments = drawn_by_name(names, steps, torch.float32, rows=10)
        assert_obeys_rule(function, oracle, with_mask(arguments), device="cpu")
    given = with_mask(drawn_by_name(names, 9, rows=10), poisoned=False)
    poisoned = with_mask(drawn_by_name(names, 9, rows=10))
    results = []
    for one, tensors in ((function, poisoned), (oracle, given)):
        leaves = {name: x.clone().requires_grad_(_is_floating(x)) for name, x in tensors.items()}
        results.append((leaves, *outputs_and_gradients(one, leaves)))
    (leaves, outputs, gradients), (_, expected, expected_gradients) = results
    torch.testing.assert_close(outputs, expected)
    assert all(not output[~given["mask"]].any() for output in outputs)
    if gradients:
        torch.testing.assert_close(gradients, expected_gradients)


def assert_compiles_once(function: Callable[..., Any], names: Sequence[str]) -> None:
    """Fail unless one graph without breaks serves 20 lengths, with the outputs and the gradients of the plain call."""
    from torch._dynamo.testing import CompileCounterWithBackend

    def step(**tensors: Tensor) -> tuple[Tensor, ...]:
        # Something on either side of the call, as in a training step.
        given = {name: x.sin().square() if _is_floating(x) else x for name, x in tensors.items()}
        return tuple([output * 2.0 for output in as_tuple(function(**given))])

    torch.compiler.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(step, backend=counter, fullgraph=True, dynamic=True)
    counts = []
    for steps in range(5, 25):
        given = drawn_by_name(names, steps)
        leaves = {name: x.requires_grad_() if _is_floating(x) else x for name, x in given.items()}
        results, expected = (outputs_and_gradients(call, leaves) for call in (compiled, step))
        torch.testing.assert_close(results, expected)
        assert [output.requires_grad for output in results[0]] == [output.requires_grad for output in expected[0]]
        counts.append(counter.frame_count)
    assert counts[0] == counts[-1], f"recompiled: {counts}"


def _is_floating(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()
