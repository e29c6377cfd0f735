"""What the prompt and the parsers cost, per token. `python -m gateway.bench.parsing [CHECKPOINT]`; no engine needed."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from gateway.parsing import OutputParser, ToolSpec
from gateway.parsing.parser import token_texts
from gateway.prompt import Checkpoint, PromptBuilder, markers

N = markers.NAMESPACE
TOOL = ToolSpec("save_file", {"type": "object", "properties": {"content": {"type": "string"}}})
PROSE = "The picture shows a red square beside a blue circle on a white page, 12 by 34 pixels. "
CODE = "if (a[i] < b && c > d) { x = <T>y; } // ]<] \n"


def best_of(repeats: int, work: Callable[[], int]) -> float:
    """Microseconds per unit of work, the best of some runs."""
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        units = work()
        best = min(best, (time.perf_counter() - start) / max(1, units))
    return best * 1e6


def per_token(
    checkpoint: Checkpoint, before: str, text: str, *, starts: bool = False, stop: tuple[str, ...] = ()
) -> float:
    ids = checkpoint.encode_plain(text * 40)

    def work() -> int:
        parser = OutputParser(checkpoint, starts_in_reasoning=starts, tools=[TOOL], stop=stop)
        parser.feed_text(before)
        for token in ids:
            parser.feed((token,))
        parser.finish()
        return len(ids)

    return best_of(5, work)


def per_render(checkpoint: Checkpoint, content: str, repeats: int = 200) -> tuple[float, int]:
    builder = PromptBuilder(checkpoint)
    messages = [{"role": "user", "content": content}]

    def work() -> int:
        for _ in range(repeats):
            builder.render(messages)
        return repeats

    return best_of(3, work), len(builder.render(messages).ids)


def main() -> None:
    path = sys.argv[1] if len(sys.argv) > 1 else "engine/checkpoints/tiny"
    start = time.perf_counter()
    checkpoint = Checkpoint.load(path)
    token_texts(checkpoint)
    print(f"{path}: loaded in {time.perf_counter() - start:.2f} s")
    call = f'{N}<tool_call>\n{N}<invoke name="save_file">{N}<content>'
    for name, us in (
        ("content, prose", per_token(checkpoint, "", PROSE)),
        ("content, code with brackets", per_token(checkpoint, "", CODE)),
        ("content, prose, 4 stop strings", per_token(checkpoint, "", PROSE, stop=("\n\n", "User:", "###", "END"))),
        ("reasoning", per_token(checkpoint, "", PROSE, starts=True)),
        ("string argument", per_token(checkpoint, call, PROSE)),
    ):
        print(f"  {name:32s} {us:6.2f} us per token, fed one by one")
    us, tokens = per_render(checkpoint, "What is in this picture?")
    print(f"  render a small conversation      {us:6.0f} us ({tokens} tokens)")
    us, tokens = per_render(checkpoint, PROSE * 60_000, repeats=1)
    print(f"  render {len(PROSE) * 60_000 / 1e6:.1f} MB of prose          {us / 1e6:6.2f} s  ({tokens} tokens)")


if __name__ == "__main__":
    main()
