"""The `catalejo` command. Each command's work is in gateway/commands/<name>.py and imported only when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from loadtest.cli import app as loadtest_app

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
bench = typer.Typer(no_args_is_help=True, help="Measure our own parts.")
app.add_typer(bench, name="bench")
app.add_typer(loadtest_app, name="loadtest")

ModelOption = Annotated[Path | None, typer.Option("--model", help="Checkpoint folder; the shipped demo when absent.")]
ConfigOption = Annotated[Path | None, typer.Option("--config", help="YAML file; docs/configuration.md tells its keys.")]


def _show_version(asked: bool) -> None:
    if asked:
        from gateway import version

        typer.echo(f"catalejo {version()}")
        raise typer.Exit


@app.callback()
def catalejo(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Serves MiniMax-M3-class models behind OpenAI's API."""


@app.command()
def gateway(
    engine: Annotated[list[str] | None, typer.Option(help="Engine URL; may be repeated.")] = None,
    model: Annotated[Path | None, typer.Option(help="Checkpoint folder; needed here or in the configuration.")] = None,
    host: Annotated[str | None, typer.Option()] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535)] = None,
    model_name: Annotated[str | None, typer.Option(help="Served name; the checkpoint folder's when absent.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Gateway processes on the port; 1 when absent.")] = None,
    config: ConfigOption = None,
    print_config: Annotated[bool, typer.Option("--print-config", help="Print every setting as YAML and end.")] = False,
) -> None:
    """Run the gateway in front of one or more engines."""
    from gateway.commands import serve

    raise typer.Exit(serve.gateway(config, engine, model, host, port, model_name, workers, print_only=print_config))


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def engine(
    context: typer.Context,
    model: ModelOption = None,
    backend: Annotated[str, typer.Option(help="local or sglang.")] = "local",
    host: Annotated[str, typer.Option()] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535)] = 30000,
    token: Annotated[str | None, typer.Option(envvar="CATALEJO_ENGINE_TOKEN", help="Bearer token to demand.")] = None,
    context_length: Annotated[int | None, typer.Option(min=1)] = None,
) -> None:
    """Run an engine. The local one takes more options: `python -m engine.local.cli --help`."""
    from gateway.commands import engine as command

    raise typer.Exit(command.run(model, backend, host, port, token, context_length, context.args))


@app.command()
def up(
    model: ModelOption = None,
    host: Annotated[str, typer.Option()] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535)] = 8000,
    engine_port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free one.")] = 0,
    config: ConfigOption = None,
) -> None:
    """Run the local engine and the gateway together; Ctrl-C stops both."""
    from gateway.commands import up as command

    raise typer.Exit(command.run(model, host, port, engine_port, config))


@app.command()
def preprocess(
    file: Annotated[Path, typer.Argument(help="An image or a video.")],
    size_rule: Annotated[str, typer.Option(help="area or long_side.")] = "long_side",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    npz: Annotated[Path | None, typer.Option(help="Write the float32 rows and the grid here.")] = None,
) -> None:
    """Show what a file becomes: size, grid, tokens, hashes, time per step."""
    from gateway.commands import preprocess as command

    raise typer.Exit(command.run(file, size_rule, as_json, npz))


@app.command()
def doctor(
    model: ModelOption = None,
    engine: Annotated[list[str] | None, typer.Option(help="Engine URL to try; may be repeated.")] = None,
    config: ConfigOption = None,
) -> None:
    """Check this machine, the checkpoint, the configuration and the engines; say what to do about each fault."""
    from gateway.commands import doctor as command

    raise typer.Exit(command.run(model, engine, config))


@app.command()
def usage(
    config: ConfigOption = None,
    ledger: Annotated[
        Path | None, typer.Option(help="SQLite file, or folder of JSON lines; the configuration's when absent.")
    ] = None,
    since: Annotated[str | None, typer.Option(help="A date or time in UTC (2026-11-30), or an age (7d, 24h).")] = None,
    until: Annotated[str | None, typer.Option(help="The same; now when absent.")] = None,
    by: Annotated[
        str, typer.Option(help="Comma-separated: month, day, hour, tenant, model, outcome.")
    ] = "day,tenant,model",
    tenant: Annotated[str | None, typer.Option(help="Of this tenant alone.")] = None,
    model: Annotated[str | None, typer.Option(help="Of this model alone.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="One line per group.")] = False,
) -> None:
    """Total the usage ledger: requests, tokens, media and costs by tenant, model and day."""
    from gateway.commands import usage as command

    if as_json and as_csv:
        raise typer.BadParameter("give one of --json and --csv")
    form = "json" if as_json else "csv" if as_csv else "table"
    names = [name.strip() for name in by.split(",") if name.strip()]
    raise typer.Exit(command.run(config, ledger, since, until, names, tenant, model, form))


@app.command("config-reference")
def config_reference() -> None:
    """Print every setting with its type, default, environment name and meaning, as Markdown: docs/configuration.md."""
    from gateway.commands.config_reference import reference

    typer.echo(reference(), nl=False)


@app.command("hash-key")
def hash_key() -> None:
    """Read an API key from standard input, print the form for `api_key_hashes`."""
    import sys

    from gateway.admission.keys import digest

    key = sys.stdin.readline().strip()
    if len(key) < 16:
        typer.echo("error: a key has at least 16 characters; `openssl rand -hex 32` makes a good one", err=True)
        raise typer.Exit(2)
    typer.echo(digest(key))


@bench.command("gateway")
def bench_gateway(
    streams: Annotated[int, typer.Option(min=1)] = 100,
    rate: Annotated[float, typer.Option(min=0.1, help="Tokens per second of each stream.")] = 50.0,
    seconds: Annotated[float, typer.Option(min=1)] = 10.0,
    as_json: Annotated[bool, typer.Option("--json")] = False,
    smg: Annotated[Path | None, typer.Option(envvar="CATALEJO_BENCH_SMG", help="smg's executable.")] = None,
    litellm: Annotated[Path | None, typer.Option(envvar="CATALEJO_BENCH_LITELLM", help="LiteLLM's executable.")] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="relay, catalejo, smg-http, smg-grpc, litellm; repeats.")
    ] = None,
) -> None:
    """CPU per streamed event, added latency, loop stalls: a raw relay, this gateway, and peers when installed."""
    from gateway.bench.gateway import run

    raise typer.Exit(run(streams, rate, seconds, as_json, smg, litellm, only or []))


@bench.command("preprocess")
def bench_preprocess(
    as_json: Annotated[bool, typer.Option("--json")] = False,
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved rounds; medians are printed.")] = 7,
    video: Annotated[bool, typer.Option("--video/--no-video")] = True,
    instructions: Annotated[
        bool, typer.Option("--instructions", help="Count instructions under valgrind instead of timing (minutes).")
    ] = False,
) -> None:
    """Media to patch rows beside the reference processor, OpenCV and the bare decoders, in one run."""
    if instructions:
        from gateway.bench import preprocess_instructions as counting

        raise typer.Exit(counting.run(as_json))
    from gateway.bench import preprocess as command

    raise typer.Exit(command.run(as_json, rounds, video))


@bench.command(
    "msa", context_settings={"allow_extra_args": True, "ignore_unknown_options": True}, add_help_option=False
)
def bench_msa(context: typer.Context) -> None:
    """Block-sparse attention kernels against their floor and SGLang's (needs a GPU; --check needs none)."""
    import subprocess
    import sys

    raise typer.Exit(subprocess.run([sys.executable, "-m", "engine.bench.msa", *context.args], check=False).returncode)


@bench.command(
    "engine", context_settings={"allow_extra_args": True, "ignore_unknown_options": True}, add_help_option=False
)
def bench_engine(context: typer.Context) -> None:
    """SGLang end to end, our kernels off against on, one server after the other (needs SGLang and a GPU)."""
    import subprocess
    import sys

    words = [sys.executable, "-m", "engine.bench.serving", *context.args]
    raise typer.Exit(subprocess.run(words, check=False).returncode)


@bench.command(
    "step", context_settings={"allow_extra_args": True, "ignore_unknown_options": True}, add_help_option=False
)
def bench_step(context: typer.Context) -> None:
    """Attention's share of a layer's step, and the whole model by Amdahl (needs a GPU; --check needs none)."""
    import subprocess
    import sys

    raise typer.Exit(subprocess.run([sys.executable, "-m", "engine.bench.step", *context.args], check=False).returncode)


@bench.command("million")
def bench_million(
    tokens: Annotated[int, typer.Option(min=4096, help="Token ids in the prompt.")] = 1 << 20,
    half: Annotated[str, typer.Option(help="mock, local or both.")] = "mock",
    chunk_tokens: Annotated[
        int, typer.Option(min=128, help="Most prompt tokens in a step of the local engine.")
    ] = 8192,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Folder of `python -m engine.bench.needle make`; made when absent.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """A million token ids through the gateway: its share of the first token, its memory, and a needle that is found."""
    from gateway.bench import million as command

    if half not in ("mock", "local", "both"):
        typer.echo(f"error: --half is {half!r}; it must be mock, local or both", err=True)
        raise typer.Exit(2)
    raise typer.Exit(command.run(tokens, half, chunk_tokens, checkpoint, as_json))


@bench.command("routing")
def bench_routing(
    trace: Annotated[Path | None, typer.Option(help="A Mooncake-format trace to simulate as well.")] = None,
    workers: Annotated[int, typer.Option(min=1)] = 8,
    seed: Annotated[int, typer.Option()] = 0,
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """Routing policies in a simulation: hit rate against one infinite cache, load imbalance, time to first token."""
    from gateway.bench import routing as command

    raise typer.Exit(command.run(trace, workers, seed, as_json))


@bench.command("loadtest")
def bench_loadtest(
    streams: Annotated[list[int] | None, typer.Option(min=1, help="May be repeated; 64 and 256 when absent.")] = None,
    repeats: Annotated[int, typer.Option(min=1)] = 5,
    aiperf: Annotated[str | None, typer.Option(help="AIPerf's command; the one on PATH when absent.")] = None,
    guidellm: Annotated[str | None, typer.Option(help="GuideLLM's command; the one on PATH when absent.")] = None,
    sglang: Annotated[str | None, typer.Option(help="A Python that imports sglang; this one when absent.")] = None,
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """How far load harnesses are from a server that knows the truth, interleaved on this machine."""
    from loadtest.bench import command

    command.main(streams, repeats, as_json, aiperf=aiperf, guidellm=guidellm, sglang=sglang)


@bench.command("media-cache")
def bench_media_cache(
    turns: Annotated[int, typer.Option(min=1)] = 40,
    pictures: Annotated[int, typer.Option(min=1, help="One more in each of the first turns.")] = 30,
    width: Annotated[int, typer.Option(min=8)] = 1280,
    height: Annotated[int, typer.Option(min=8)] = 800,
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """A conversation that sends its screenshots again each turn: fetches, decodes, bytes, CPU, cache on and off."""
    from gateway.bench import media_cache as command

    raise typer.Exit(command.run(turns, pictures, width, height, as_json))


def main() -> None:
    app()


if __name__ == "__main__":
    main()
