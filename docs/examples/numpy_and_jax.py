"""Advantages of arrays that are not PyTorch's: handed over and back in place, by DLPack, without a copy.

Arrays on a GPU stay there; whoever takes one over waits for the work that is still queued on it. JAX's arrays are
immutable, so tensors made of them are only to be read, which is all that the estimators do. Under `jax.jit` there are
no arrays to hand over: call from outside of it.
"""

from typing import Any

import numpy as np
import torch
from rl_triton_gae import compute_gae


def numpy_advantages(rewards: np.ndarray, values: np.ndarray, dones: np.ndarray, last_value: np.ndarray) -> np.ndarray:
    tensors = (torch.from_numpy(array) for array in (rewards, values, dones))
    return compute_gae(*tensors, last_value=torch.from_numpy(last_value)).numpy()


def jax_advantages(rewards: Any, values: Any, dones: Any, last_value: Any) -> Any:
    import jax

    tensors = (torch.from_dlpack(array) for array in (rewards, values, dones))
    return jax.dlpack.from_dlpack(compute_gae(*tensors, last_value=torch.from_dlpack(last_value)))


def main() -> None:
    rewards, values = np.ones((2, 4), np.float32), np.zeros((2, 4), np.float32)
    dones, last_value = np.zeros((2, 4), bool), np.full(2, 2.0, np.float32)
    dones[0, 1] = True
    arrays = (rewards, values, dones, last_value)
    print(numpy_advantages(*arrays))
    try:
        import jax.numpy as jnp
    except ModuleNotFoundError:
        print("For the other half: pip install jax")
        return
    print(jax_advantages(*map(jnp.asarray, arrays)))


if __name__ == "__main__":
    main()
