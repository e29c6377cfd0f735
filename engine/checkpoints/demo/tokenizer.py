"""The demo tokenizer: byte-level BPE of 4,096 entries, single digits, MiniMax-M3's control tokens at the end."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from .sizes import SIZES

SPECIAL = (
    "]~!b[", "]~b]", "[e~[", "]!d~[",
    "]<]image[>[", "]<]video[>[", "]<]start of image[>[", "]<]end of image[>[",
    "]<]start of video[>[", "]<]end of video[>[", "]<]vision pad[>[",
    "]<]minimax[>[", "<mm:think>", "</mm:think>", "<tool_call>", "</tool_call>",
)  # fmt: skip
# These survive skip_special_tokens: parsers need them as text.
TEXTUAL = {"]<]minimax[>[", "<mm:think>", "</mm:think>", "<tool_call>", "</tool_call>"}


def build(corpus: Iterable[str]) -> Tokenizer:
    tk = Tokenizer(models.BPE())
    tk.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tk.decoder = decoders.ByteLevel()
    room = SIZES.vocab - len(SPECIAL)
    trainer = trainers.BpeTrainer(
        vocab_size=room, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    tk.train_from_iterator(corpus, trainer)
    short = room - tk.get_vocab_size()
    if short > 0:
        tk.add_tokens([AddedToken(f"<unused{i}>", special=False, normalized=False) for i in range(short)])
    for text in SPECIAL:  # one by one: ids in list order
        tk.add_tokens([AddedToken(text, special=text not in TEXTUAL, normalized=False)])
    if tk.get_vocab_size() != SIZES.vocab:
        raise ValueError(f"tokenizer has {tk.get_vocab_size()} entries, expected {SIZES.vocab}")
    return tk
