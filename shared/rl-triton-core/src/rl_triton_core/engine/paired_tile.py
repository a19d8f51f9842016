"""Two recursions in one pass: affine maps of the same u and cuts, with a decay each.

A step is (u, decay, cut, second_decay), a map (A, B) of the first recursion and then that of the second, a state
(y, second_y). What `affine_tile` says of one of them is done for both.
"""

import triton
import triton.language as tl

from rl_triton_core.engine import affine_tile as one


@triton.jit
def first_of(step):
    u, decay, cut, second_decay = step
    return u, decay, cut


@triton.jit
def second_of(step):
    u, decay, cut, second_decay = step
    return u, second_decay, cut


@triton.jit
def paired_step(step, y):
    """The states after one step."""
    first = one.affine_step(first_of(step), y[:1])
    second = one.affine_step(second_of(step), y[1:])
    return first[0], second[0]


@triton.jit
def paired_close(step, at_open_end):
    """The step, cut also where it stands at the open end."""
    u, decay, cut, second_decay = step
    return u, decay, cut | at_open_end, second_decay


@triton.jit
def paired_constant(outer):
    """The states after a map, where none come in."""
    return outer[1], outer[3]


@triton.jit
def paired_product_leaf(step, log2_decay, WEIGHT: tl.constexpr):
    A, B = one.product_leaf(first_of(step), 0.0, WEIGHT)
    C, D = one.product_leaf(second_of(step), 0.0, WEIGHT)
    return A, B, C, D


@triton.jit
def paired_product_extend(step, log2_decay, inner):
    A, B = one.product_extend(first_of(step), 0.0, inner[:2])
    C, D = one.product_extend(second_of(step), 0.0, inner[2:])
    return A, B, C, D


@triton.jit
def paired_product_identity(like, WEIGHT: tl.constexpr):
    A, B = one.product_identity(like, WEIGHT)
    return A, B, A, B


@triton.jit
def paired_product_apply(outer, y):
    return one.product_after(outer[0], outer[1], y[0]), one.product_after(outer[2], outer[3], y[1])


@triton.jit
def paired_product_compose(A, B, C, D, outer_A, outer_B, outer_C, outer_D):
    A, B = one.product_compose(A, B, outer_A, outer_B)
    C, D = one.product_compose(C, D, outer_C, outer_D)
    return A, B, C, D


@triton.jit
def paired_product_compose_scan(maps, AXIS: tl.constexpr):
    A, B = one.product_compose_scan(maps[:2], AXIS)
    C, D = one.product_compose_scan(maps[2:], AXIS)
    return A, B, C, D


@triton.jit
def paired_product_scan(folded, identity, AXIS: tl.constexpr):
    A, B, E, F = one.product_scan(folded[:2], identity[:2], AXIS)
    C, D, G, H = one.product_scan(folded[2:], identity[2:], AXIS)
    return A, B, C, D, E, F, G, H


@triton.jit
def paired_log_leaf(step, log2_decay, WEIGHT: tl.constexpr):
    L, B = one.log_leaf(first_of(step), log2_decay[0], WEIGHT)
    M, D = one.log_leaf(second_of(step), log2_decay[1], WEIGHT)
    return L, B, M, D


@triton.jit
def paired_log_extend(step, log2_decay, inner):
    L, B = one.log_extend(first_of(step), log2_decay[0], inner[:2])
    M, D = one.log_extend(second_of(step), log2_decay[1], inner[2:])
    return L, B, M, D


@triton.jit
def transparent_paired_log_leaf(step, log2_decay, WEIGHT: tl.constexpr):
    return paired_log_leaf(step, paired_log_of(step, log2_decay), WEIGHT)


@triton.jit
def transparent_paired_log_extend(step, log2_decay, inner):
    return paired_log_extend(step, paired_log_of(step, log2_decay), inner)


@triton.jit
def paired_log_of(step, log2_decay):
    """The logarithms of a step's decays, where some steps let everything pass."""
    return one.log_of(step[1], log2_decay[0]), one.log_of(step[3], log2_decay[1])


@triton.jit
def paired_log_identity(like, WEIGHT: tl.constexpr):
    L, B = one.log_identity(like, WEIGHT)
    return L, B, L, B


@triton.jit
def paired_log_apply(outer, y):
    first = one.log_apply(outer[:2], y[:1])
    second = one.log_apply(outer[2:], y[1:])
    return first[0], second[0]


@triton.jit
def paired_log_compose(L, B, M, D, outer_L, outer_B, outer_M, outer_D):
    L, B = one.log_compose(L, B, outer_L, outer_B)
    M, D = one.log_compose(M, D, outer_M, outer_D)
    return L, B, M, D


@triton.jit
def paired_log_compose_scan(maps, AXIS: tl.constexpr):
    L, B = one.log_compose_scan(maps[:2], AXIS)
    M, D = one.log_compose_scan(maps[2:], AXIS)
    return L, B, M, D


@triton.jit
def paired_log_scan(folded, identity, AXIS: tl.constexpr):
    L, B, E, F = one.log_scan(folded[:2], identity[:2], AXIS)
    M, D, G, H = one.log_scan(folded[2:], identity[2:], AXIS)
    return L, B, M, D, E, F, G, H


_SHARED = {"STEP": paired_step, "CLOSE": paired_close, "CONSTANT": paired_constant}
_SIZES = {"MAP": 4, "STATE": 2}

_PRODUCT = {
    **_SHARED,
    "LEAF": paired_product_leaf,
    "EXTEND": paired_product_extend,
    "IDENTITY": paired_product_identity,
    "APPLY": paired_product_apply,
    "SCAN": paired_product_scan,
    "COMPOSE": paired_product_compose,
    "COMPOSE_SCAN": paired_product_compose_scan,
    **_SIZES,
}
_LOG = {
    **_SHARED,
    "LEAF": paired_log_leaf,
    "EXTEND": paired_log_extend,
    "IDENTITY": paired_log_identity,
    "APPLY": paired_log_apply,
    "SCAN": paired_log_scan,
    "COMPOSE": paired_log_compose,
    "COMPOSE_SCAN": paired_log_compose_scan,
    **_SIZES,
}

# As `affine_tile.MAPS` and what takes their place; a power of two numbers is a product of them.
MAPS = {"product": _PRODUCT, "power": _PRODUCT, "log": _LOG}
WITH_TRANSPARENT_STEPS = {
    "product": {},
    "power": {},
    "log": {"LEAF": transparent_paired_log_leaf, "EXTEND": transparent_paired_log_extend},
}
