"""Conversation -> token ids: the checkpoint's template and tokenizer, in a way that client text cannot forge control
tokens. docs/prompt.md has the rules."""

from gateway.prompt.builder import PromptBuilder, RenderedPrompt
from gateway.prompt.checkpoint import Checkpoint
from gateway.prompt.expand import expand
from gateway.prompt.grammar import output_grammar
from gateway.prompt.settings import PromptSettings
from gateway.prompt.vocabulary import CheckpointError, UnsupportedTokenizer

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "PromptBuilder",
    "PromptSettings",
    "RenderedPrompt",
    "UnsupportedTokenizer",
    "expand",
    "output_grammar",
]
