from rl_triton_gae.normalization.api import normalize_advantages

__all__ = ["normalize_advantages"]
