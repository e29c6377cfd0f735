"""Stand-in: see the package's head."""


def cudnn_batch_prefill_with_kv_cache(*args: object, **kwargs: object) -> None:
    raise RuntimeError("flashinfer is a stand-in here")
