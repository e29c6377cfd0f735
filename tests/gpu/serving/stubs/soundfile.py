"""Stand-in: imported by SGLang's speech routes only."""

__version__ = "0.13.1"


class SoundFile: ...


def read(*args: object, **kwargs: object) -> None:
    raise RuntimeError("soundfile is a stand-in here")


write = info = read
