"""The affine maps of y -> u + decay * y as the scan kernel sees them: a step is (u, decay, cut), a map is (A, B).

The kernel knows maps only through these functions, so an algorithm whose state is more than one number brings its own
set. The scan carries every map twice, with and without its last leaf (A, B, E, F), so that F arrives as each group's
incoming carry: an exclusive scan without a shift.

A decay may be wider than u: what many steps make of it is then a product of what it was before it was rounded.

Cutting is selection, never multiplication by zero. A step says itself whether it is cut; a composite is cut where its
weight is exactly 0, and then both of its halves are selected, or a NaN weight of a later episode would come through:

    A = where(A_outer == 0 or A_inner == 0, 0, A_outer * A_inner)
    B = where(A_outer == 0, B_outer, B_outer + A_outer * B_inner)

A is held in one of three ways:

* `product_*`: a product of arbitrary decays, in a precision of its own: float64 where float32 products would lose the
  bound (squaring a rounded weight doubles its relative error at every level of the tree);
* `power_*`: the same where all decays are one finite number: a product of such weights needs no selection;
* `log_*`: one finite decay again, A = exp2(L) with L a sum of equal numbers and -inf for a cut. Nothing compounds.
"""

import triton
import triton.language as tl


@triton.jit
def affine_step(step, y):
    """The state after one step."""
    u, decay, cut = step
    return (tl.where(cut, u, u + decay.to(u.dtype) * y[0]),)


@triton.jit
def affine_close(step, at_open_end):
    """The step, cut also where it stands at the open end."""
    u, decay, cut = step
    return u, decay, cut | at_open_end


@triton.jit
def affine_constant(outer):
    """The state after a map, where none comes in."""
    return (outer[1],)


@triton.jit
def product_leaf(step, log2_decay, WEIGHT: tl.constexpr):
    u, decay, cut = step
    return tl.where(cut, 0.0, decay).to(WEIGHT), u


@triton.jit
def product_extend(step, log2_decay, inner):
    """The map of `step` applied after the map `inner`."""
    u, decay, cut = step
    A, B = inner
    return tl.where(cut | (A == 0), 0.0, decay.to(A.dtype) * A), tl.where(cut, u, u + decay.to(u.dtype) * B)


@triton.jit
def product_identity(like, WEIGHT: tl.constexpr):
    zero = tl.zeros_like(like)
    return (zero + 1.0).to(WEIGHT), zero


@triton.jit
def product_after(A, B, y):
    """B + A * y, multiplied in the precision of A: a product of many decays may lie beyond the range of y.

    Beyond the range of A as well, it still makes nothing of a state of 0. Conditions are nested, not combined: for the
    interpreter, a condition on a mere number is none that can be combined.
    """
    total = tl.where(A == 0, B, B + (A * y.to(A.dtype)).to(B.dtype))
    return tl.where(tl.abs(A) == float("inf"), tl.where(y == 0, B, total), total)


@triton.jit
def product_apply(outer, y):
    A, B = outer
    return (product_after(A, B, y[0]),)


@triton.jit
def product_compose(inner_A, inner_B, outer_A, outer_B):
    # Nothing beyond a cut is read, on whichever side it lies: not even by a weight of inf or NaN.
    A = tl.where(outer_A == 0, 0.0, tl.where(inner_A == 0, 0.0, outer_A * inner_A))
    return A, product_after(outer_A, outer_B, inner_B)


@triton.jit
def product_combine(inner_A, inner_B, inner_E, inner_F, outer_A, outer_B, outer_E, outer_F):
    A, B = product_compose(inner_A, inner_B, outer_A, outer_B)
    E, F = product_compose(inner_A, inner_B, outer_E, outer_F)
    return A, B, E, F


@triton.jit
def product_compose_scan(maps, AXIS: tl.constexpr):
    """Every map composed with all that stand before it."""
    return tl.associative_scan((maps[0], maps[1]), AXIS, product_compose)


@triton.jit
def product_scan(folded, identity, AXIS: tl.constexpr):
    """Every map composed with all before it, then the same without the map itself."""
    return tl.associative_scan((folded[0], folded[1], identity[0], identity[1]), AXIS, product_combine)


@triton.jit
def power_compose(inner_A, inner_B, outer_A, outer_B):
    weight = outer_A.to(outer_B.dtype)
    return outer_A * inner_A, tl.where(weight == 0, outer_B, outer_B + weight * inner_B)


@triton.jit
def power_combine(inner_A, inner_B, inner_E, inner_F, outer_A, outer_B, outer_E, outer_F):
    A, B = power_compose(inner_A, inner_B, outer_A, outer_B)
    E, F = power_compose(inner_A, inner_B, outer_E, outer_F)
    return A, B, E, F


@triton.jit
def power_compose_scan(maps, AXIS: tl.constexpr):
    return tl.associative_scan((maps[0], maps[1]), AXIS, power_compose)


@triton.jit
def power_scan(folded, identity, AXIS: tl.constexpr):
    return tl.associative_scan((folded[0], folded[1], identity[0], identity[1]), AXIS, power_combine)


@triton.jit
def log_leaf(step, log2_decay, WEIGHT: tl.constexpr):
    u, decay, cut = step
    return tl.where(cut, float("-inf"), log2_decay), u


@triton.jit
def log_extend(step, log2_decay, inner):
    u, decay, cut = step
    L, B = inner
    return tl.where(cut, float("-inf"), log2_decay + L), tl.where(cut, u, u + decay * B)


@triton.jit
def log_of(decay, log2_decay):
    """The logarithm of a step's decay, where some steps let everything pass."""
    return tl.where(decay == 1.0, 0.0, log2_decay)


@triton.jit
def transparent_log_leaf(step, log2_decay, WEIGHT: tl.constexpr):
    return log_leaf(step, log_of(step[1], log2_decay), WEIGHT)


@triton.jit
def transparent_log_extend(step, log2_decay, inner):
    return log_extend(step, log_of(step[1], log2_decay), inner)


@triton.jit
def log_identity(like, WEIGHT: tl.constexpr):
    zero = tl.zeros_like(like)
    return zero, zero


@triton.jit
def log_apply(outer, y):
    L, B = outer
    weight = tl.exp2(L)
    return (tl.where(weight == 0, B, B + weight * y[0]),)


@triton.jit
def log_compose(inner_L, inner_B, outer_L, outer_B):
    weight = tl.exp2(outer_L)
    return outer_L + inner_L, tl.where(weight == 0, outer_B, outer_B + weight * inner_B)


@triton.jit
def log_combine(inner_L, inner_B, inner_E, inner_F, outer_L, outer_B, outer_E, outer_F):
    L, B = log_compose(inner_L, inner_B, outer_L, outer_B)
    E, F = log_compose(inner_L, inner_B, outer_E, outer_F)
    return L, B, E, F


@triton.jit
def log_compose_scan(maps, AXIS: tl.constexpr):
    return tl.associative_scan((maps[0], maps[1]), AXIS, log_compose)


@triton.jit
def log_scan(folded, identity, AXIS: tl.constexpr):
    return tl.associative_scan((folded[0], folded[1], identity[0], identity[1]), AXIS, log_combine)


_SHARED = {"STEP": affine_step, "CLOSE": affine_close, "CONSTANT": affine_constant}
_SIZES = {"MAP": 2, "STATE": 1}

# The three forms of a weight, as the kernel's arguments, in the order of its signature.
MAPS = {
    "product": {
        **_SHARED,
        "LEAF": product_leaf,
        "EXTEND": product_extend,
        "IDENTITY": product_identity,
        "APPLY": product_apply,
        "SCAN": product_scan,
        "COMPOSE": product_compose,
        "COMPOSE_SCAN": product_compose_scan,
        **_SIZES,
    },
    "power": {
        **_SHARED,
        "LEAF": product_leaf,
        "EXTEND": product_extend,
        "IDENTITY": product_identity,
        "APPLY": product_apply,
        "SCAN": power_scan,
        "COMPOSE": power_compose,
        "COMPOSE_SCAN": power_compose_scan,
        **_SIZES,
    },
    "log": {
        **_SHARED,
        "LEAF": log_leaf,
        "EXTEND": log_extend,
        "IDENTITY": log_identity,
        "APPLY": log_apply,
        "SCAN": log_scan,
        "COMPOSE": log_compose,
        "COMPOSE_SCAN": log_compose_scan,
        **_SIZES,
    },
}

# What takes the place of these where a call has transparent steps, whose decay is 1.
WITH_TRANSPARENT_STEPS = {
    "product": {},
    "power": {},
    "log": {"LEAF": transparent_log_leaf, "EXTEND": transparent_log_extend},
}
