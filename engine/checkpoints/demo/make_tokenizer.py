"""Train and save the demo tokenizer: python -m engine.checkpoints.demo.make_tokenizer OUT.json"""

from __future__ import annotations

import re
import sys

from .batches import corpus
from .tokenizer import SPECIAL, build


def main(out: str) -> None:
    cut = re.compile("|".join(re.escape(s) for s in SPECIAL))
    build(piece for text in corpus(0, 24_000) for piece in cut.split(text)).save(out)


if __name__ == "__main__":
    main(sys.argv[1])
