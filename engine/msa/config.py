"""The numbers that define block-sparse attention (MSA), and nothing else. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MsaConfig:
    """Defaults are MiniMax-M3's.

    block_size    tokens in a key block; blocks are anchored to position 0 of the sequence. Also the page size.
    topk_blocks   most blocks a (query, group) attends to, forced ones included
    init_blocks   the first blocks of the sequence, always chosen (M3: none)
    local_blocks  blocks ending with the one that holds the query, always chosen (M3: that block only)
    """

    block_size: int = 128
    topk_blocks: int = 16
    init_blocks: int = 0
    local_blocks: int = 1

    def __post_init__(self) -> None:
        if self.block_size < 1:
            raise ValueError(f"block_size is {self.block_size}; it must be at least 1")
        if self.local_blocks < 1:
            raise ValueError(f"local_blocks is {self.local_blocks}; a query always sees its own block, so at least 1")
        if self.init_blocks < 0:
            raise ValueError(f"init_blocks is {self.init_blocks}; it must not be negative")
        if self.init_blocks + self.local_blocks > self.topk_blocks:
            forced = f"{self.init_blocks} init + {self.local_blocks} local blocks"
            raise ValueError(f"{forced} are forced, but topk_blocks is {self.topk_blocks}")
