"""Transparent steps on a GPU tile: a second scanned state, which says what each step finds behind it.

A step that the mask leaves out hands on what it has found itself, unless it ends the episode. So every step leaves a
mark, (code, value), for the one before it; marks compose by selection, the nearest one that says anything; and a scan
over the lanes carries them past any number of transparent steps, as the other scan carries states:

    NOTHING      transparent: whatever is behind
    VALID        a step of the episode; its value, for algorithms that read it
    TERMINATED   the episode is over
    CUT_OFF      the episode goes on outside the window, with this value
    OPEN         the end of the row, of which a step itself knows how it continues

The steps of a group are marked from the open end outward; all algorithms with a mask are backward ones.
"""

import triton
import triton.language as tl

NOTHING = tl.constexpr(0)
VALID = tl.constexpr(1)
TERMINATED = tl.constexpr(2)
CUT_OFF = tl.constexpr(3)
OPEN = tl.constexpr(4)


@triton.jit
def mark(valid, value, terminated, truncated, outside, at_open_end, PASSES: tl.constexpr):
    """What a step leaves for the one before it.

    `value` is what that one reads of a valid step, if anything, and `outside` what this one continues with outside the
    window. PASSES: that is known at the open end too, and passes to the last valid step.
    """
    cut_off = at_open_end if PASSES else terminated ^ terminated
    if truncated is not None:
        cut_off = cut_off | truncated
    ended = tl.where(cut_off, CUT_OFF, tl.where(at_open_end, OPEN, NOTHING))
    code = tl.where(valid, VALID, tl.where(terminated, TERMINATED, ended))
    if value is None:
        return code, outside + tl.zeros_like(code).to(outside.dtype)
    else:
        return code, tl.where(valid, value, outside)


@triton.jit
def nearer(code, value, mark):
    """`mark`, or the mark (code, value) where it says nothing."""
    says = mark[0] != NOTHING
    return tl.where(says, mark[0], code), tl.where(says, mark[1], value)


@triton.jit
def compose(inner_code, inner_value, inner_before, inner_before_value, code, value, before, before_value):
    """Both marks of a run of lanes: with its last one, and without it."""
    with_code, with_value = nearer(inner_code, inner_value, (code, value))
    before_code, before_value = nearer(inner_code, inner_value, (before, before_value))
    return with_code, with_value, before_code, before_value


@triton.jit
def compose_one(inner_code, inner_value, code, value):
    return nearer(inner_code, inner_value, (code, value))


@triton.jit
def scan_marks(marks, AXIS: tl.constexpr):
    """Every mark composed with all that stand before it, then the same without the mark itself."""
    nothing = tl.zeros_like(marks[0]), tl.zeros_like(marks[1])
    return tl.associative_scan((marks[0], marks[1], nothing[0], nothing[1]), AXIS, compose)


@triton.jit
def compose_marks(marks, AXIS: tl.constexpr):
    """Every mark composed with all that stand before it."""
    return tl.associative_scan((marks[0], marks[1]), AXIS, compose_one)


@triton.jit
def last_of_group(marks, STEPS: tl.constexpr):
    """What a group's steps leave together."""
    code, value = marks[STEPS - 1]
    for k in tl.static_range(1, STEPS):
        code, value = nearer(code, value, marks[STEPS - 1 - k])
    return code, value


@triton.jit
def behind_each(marks, at_open_end, code, value, STEPS: tl.constexpr):
    """The marks that a group's steps find, in natural order, where (code, value) is behind the group."""
    behind = ()
    for k in tl.static_range(STEPS):
        # What lies beyond the open end belongs to another row.
        behind = ((tl.where(at_open_end[STEPS - 1 - k], OPEN, code), value),) + behind
        code, value = nearer(code, value, marks[STEPS - 1 - k])
    return behind


@triton.jit
def own_flag(terminated, truncated):
    """Whether a step says itself that its episode is over."""
    if truncated is None:
        return terminated
    else:
        return terminated | truncated


@triton.jit
def or_behind(flag, own_flag, behind, CODE: tl.constexpr):
    """A flag of a step, or the one of transparent steps behind it, if the step has none of its own."""
    taken_over = ~own_flag & (behind[0] == CODE)
    if flag is None:
        return taken_over
    else:
        return flag | taken_over


@triton.jit
def is_open(own_flag, at_open_end, behind):
    """Whether nothing follows a step in its row."""
    return at_open_end | (~own_flag & ((behind[0] == OPEN) | (behind[0] == NOTHING)))


@triton.jit
def transparent(step, valid):
    """The step of a recursion, or of two, or the identity where it is left out."""
    u, decay, cut = step[:3]
    here = tl.where(valid, u, 0.0), tl.where(valid, decay, 1.0), cut & valid
    for k in tl.static_range(3, len(step)):
        here = here + (tl.where(valid, step[k], 1.0),)
    return here
