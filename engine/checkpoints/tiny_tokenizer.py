"""Tokenizer and chat template of the tiny checkpoints.

The tokenizer is a byte-level BPE trained here on a few lines, padded with unused entries so that the control tokens sit
at the end of the vocabulary in a fixed order. The template has M3's control structure (slots, thinking modes,
namespaced tool calls, merged tool turns) around short stand-in sentences; a real checkpoint brings its own.
"""

from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

CONTROL_TOKENS = (
    "]~!b[",
    "]~b]",
    "[e~[",
    "]!d~[",
    "]<]image[>[",
    "]<]video[>[",
    "]<]start of image[>[",
    "]<]end of image[>[",
    "]<]start of video[>[",
    "]<]end of video[>[",
    "]<]vision pad[>[",
    "]<]minimax[>[",
    "<mm:think>",
    "</mm:think>",
    "<tool_call>",
    "</tool_call>",
)
TEXTUAL = frozenset({"]<]minimax[>[", "<mm:think>", "</mm:think>", "<tool_call>", "</tool_call>"})
"""Added but not special: they survive `skip_special_tokens`, because parsers need them as text."""

CORPUS = """Call the weather tool for Paris and report the temperature in degrees.
The picture shows a red square beside a blue circle on a white page, 12 by 34 pixels.
{"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
<invoke name="get_weather"><city>Paris</city><days>3</days></invoke> system developer user ai tool
def add(a, b):\n    return a + b\n1.5 seconds 2.0 seconds 0.0 seconds thinking response item
""".splitlines()

TEMPLATE_FILE = Path(__file__).parent / "tiny" / "chat_template.jinja"
"""The shipped file is the source; a new checkpoint gets a copy."""


def make_tokenizer(vocab_size: int) -> PreTrainedTokenizerFast:
    """A tokenizer of exactly `vocab_size` entries; the control tokens are the last ones, in the order given above."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    ordinary = vocab_size - len(CONTROL_TOKENS)
    trainer = trainers.BpeTrainer(
        vocab_size=ordinary, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    for i in range(ordinary - tokenizer.get_vocab_size()):
        tokenizer.add_tokens([AddedToken(f"<unused{i}>", special=False, normalized=False)])
    for text in CONTROL_TOKENS:  # one call each keeps the ids in this order
        tokenizer.add_tokens([AddedToken(text, special=text not in TEXTUAL, normalized=False)])
    if tokenizer.get_vocab_size() != vocab_size:
        raise RuntimeError(f"tokenizer has {tokenizer.get_vocab_size()} entries, wanted {vocab_size}")
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="]~b]",  # noqa: S106 (not a password)
        eos_token="[e~[",  # noqa: S106
        pad_token="]!d~[",  # noqa: S106
        padding_side="right",
        clean_up_tokenization_spaces=False,
        chat_template=TEMPLATE_FILE.read_text(),
    )
