"""Stand-in: see the package's head. Run with --sampling-backend pytorch."""


def _absent(*args: object, **kwargs: object) -> None:
    raise RuntimeError("flashinfer is a stand-in here; --sampling-backend pytorch needs none of it")


min_p_sampling_from_probs = top_k_top_p_sampling_from_probs = _absent
top_k_renorm_probs = top_p_renorm_probs = _absent
