"""What flags mean, as Triton device functions: what a step continues with, and where a forward scan is cut."""

import triton
import triton.language as tl


@triton.jit
def continuation(following, truncated, at_open_end, bootstrap, next_value, last_value):
    """V(s_{t+1}) after a step that did not terminate; `following` is the value stored for the next step.

    A truncated step and the last column continue with the bootstrap value; the last column also with the last value;
    next values, where given, serve every step. What is absent is None, and nothing given continues with 0.
    """
    if next_value is not None:
        return next_value
    elif bootstrap is not None:
        if truncated is not None:
            return tl.where(truncated | at_open_end, bootstrap, following)
        else:
            return tl.where(at_open_end, bootstrap, following)
    else:
        inside = following
        if truncated is not None:
            inside = tl.where(truncated, 0.0, following)
        if last_value is not None:
            return tl.where(at_open_end, last_value, inside)
        else:
            return tl.where(at_open_end, 0.0, inside)


@triton.jit
def residual(reward, value, terminated, gamma, following):
    """r + gamma * following - V, of which a termination hides what follows."""
    immediate = reward - value
    return tl.where(terminated, immediate, immediate + gamma * following)


@triton.jit
def ended(terminated, truncated):
    """Whether the episode is over after a step."""
    if truncated is None:
        return terminated
    else:
        return terminated | truncated


@triton.jit
def interrupted(truncated, at_open_end):
    """Whether the episode goes on outside the window after a step, unless it terminated."""
    if truncated is None:
        return at_open_end
    else:
        return truncated | at_open_end


@triton.jit
def cut_before(flag, neighbour_flag, STARTS_AT: tl.constexpr):
    """Whether a forward recursion is cut before a step: by its own flag, or by that of the step before it."""
    if STARTS_AT:
        return flag
    else:
        return neighbour_flag
