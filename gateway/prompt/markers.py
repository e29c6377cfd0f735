"""The names of the control tokens of M3-class checkpoints. Their ids are always read from the checkpoint.

Not here: any sentence of a template, and any id."""

from __future__ import annotations

from typing import Final

THINK_START: Final = "<mm:think>"
THINK_END: Final = "</mm:think>"
NAMESPACE: Final = "]<]minimax[>["
"""Stands before every tag of a tool call; see gateway/parsing/tools.py."""
ROLE_OPEN: Final = "]~b]"
VISION_START: Final = "]<]start of image[>["
VISION_END: Final = "]<]end of image[>["
"""Videos use the image brackets too."""
TIMESTAMP: Final = "]<]{:.1f} seconds[>["
"""Ordinary text before each temporal patch of a video."""
