"""Options that several commands share, and the helpers that read them."""

import json
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from unfed import plugins
from unfed.cli.console import echo_json, say, stderr
from unfed.errors import UnfedError

if TYPE_CHECKING:
    from unfed.config.config import Config
    from unfed.runs.progress import Watch
    from unfed.runs.record import RunRecord


def option(panel: str | None, text: str, *names: str, **more: Any) -> Any:
    """An option with its help, in the group of `--help` that is named."""
    return typer.Option(*names, help=text, rich_help_panel=panel, **more)


plain, what, how = partial(option, None), partial(option, "What leaves"), partial(option, "How")
when, output = partial(option, "When it is done"), partial(option, "Output")


def out_option(text: str, file: bool = True) -> Any:
    """`--out` of a command; without `file` it names a folder."""
    return output(text, "--out", "-o", callback=plain_file if file else None)


def plain_file(value: Path | None) -> Path | None:
    """A file that a command is to write, refused before any work where it cannot or must not be written."""
    if value is not None:
        from unfed import storage

        if not value.absolute().parent.is_dir():
            raise UnfedError(f"There is no folder {value.parent} to write {value.name} into; make it first.")
        storage.refuse_other(value)
        with suppress(OSError), open(value, "rb") as file:
            if file.read(10) == b"-----BEGIN":
                raise UnfedError(f"{value} holds a key, and a key is not replaced; name another file.")
    return value


def _allow(context: typer.Context, value: bool) -> bool:
    """As long as the command runs; users' modules lie where the command is given."""
    if value:
        context.with_resource(plugins.current_folder_last())
        context.with_resource(plugins.allow_code())
    return value


RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, such as `runs/demo`.")]
ConfigArgument = Annotated[
    str, typer.Argument(metavar="FILE", help="A TOML file, or a preset such as `demo` or `cifar10-cnn`.")
]
Json = Annotated[bool, output("One JSON value on stdout, for machines.", "--json")]
Quiet = Annotated[bool, output("No progress, no table.", "--quiet", "-q")]
Methods = Annotated[str | None, how("Methods instead of the config's: `not,ft,retrain`.")]
MethodsOrAll = Annotated[str | None, how("Methods instead of the config's: `not,ft`, or `all`.", "--methods")]
Seed = Annotated[int | None, how("Which repetition, if a run has several.")]
Budget = Annotated[str | None, how("Save and stop after this time: `90s`, `9m`, `1.5h`.", metavar="TIME")]
Device = Annotated[str | None, how("auto, cpu, cuda, cuda:N or mps.")]
Sets = Annotated[list[str], how("Change a config key: `--set training.rounds=20`. Repeatable.", "--set")]
AllowCode = Annotated[
    bool, how("Run the code that the config or the run folder names.", "--allow-code", callback=_allow)
]


def read_config(name: str, sets: list[str]) -> "Config":
    """The config of a file, or of a preset where no such file is there."""
    from unfed.config.config import Config, presets

    known = not Path(name).exists() and name in presets()
    return Config.preset(name, sets) if known else Config.read(name, sets)


def chosen(methods: str) -> str:
    """`--methods` as a change of the config."""
    names = [name.strip() for name in methods.split(",") if name.strip()]
    if not names:
        raise UnfedError("--methods takes names with commas, for example not,ft,retrain; `unfed methods` lists them.")
    if methods == "all":
        raise UnfedError("--methods all is for `unfed demo`; name them with commas, `unfed methods` lists them.")
    return f"methods.run={json.dumps(names)}"


def read_with_methods(name: str, sets: list[str], methods: str | None, serving: bool = False) -> "Config":
    """The config with `--methods` in the place of its own; `all` are those that run in its setting.

    With `serving` they are those that can serve its request, too.
    """
    if methods is None:
        return read_config(name, sets)
    if methods != "all":
        return read_config(name, [*sets, chosen(methods)])
    from unfed.methods import METHODS
    from unfed.methods.base import runs_in

    config = read_config(name, sets)
    kinds = [request.kind for request in config.requests()] if serving else []
    made = {label: config.method(label) for label in METHODS}
    suited = [label for label, m in made.items() if runs_in(m, config.setting) and all(m.serves(k) for k in kinds)]
    return read_config(name, [*sets, f"methods.run={json.dumps(suited)}"])


def with_device(sets: list[str], device: str | None) -> list[str]:
    """The changes to a config, that of the device among them."""
    return [*sets, f'device="{device}"'] if device else list(sets)


def watched_until(watch: "Watch", moment: float | None) -> "Watch":
    """The same watch, which has the work saved and stopped after the round in which a moment passes."""
    from unfed.runs.progress import Deadline

    return watch if moment is None else Deadline(watch, lambda: time.monotonic() >= moment)


def moment_of(budget: str | None) -> float | None:
    """When a budget that begins now is spent, on the monotonic clock."""
    if budget is None:
        return None
    found = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?)([smh])", budget, re.ASCII)
    if found is None:
        raise UnfedError(f"--budget takes a time such as 90s, 9m or 1.5h, not {budget!r}.")
    return time.monotonic() + float(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2]]


@contextmanager
def resumable(run: "RunRecord | None" = None) -> Iterator[None]:
    """When it is interrupted in this block, a command says how to go on, and ends with 130.

    A run goes on by `unfed resume`, other work by the same command.
    """
    from unfed.runs.progress import OutOfTime

    try:
        yield
    except KeyboardInterrupt as stop:
        why = "The budget is spent." if isinstance(stop, OutOfTime) else "Interrupted."
        how = "give the same command again" if run is None else f"go on with `{escape(run.command('resume'))}`"
        stderr.print(f"{why} Nothing is lost: {how}.", soft_wrap=True)
        sys.exit(130)


def say_findings(found: list[str], facts: dict[str, Any], as_json: bool, whole: str, not_whole: str = "") -> None:
    """Say that something is whole, or what is wrong with it; then the exit code is 2."""
    if as_json:
        echo_json({"whole": not found, "findings": found, **facts})
        if found:
            raise typer.Exit(UnfedError.exit_code)
    elif not found:
        say(whole)
    else:
        say(*(f"- {sentence}" for sentence in found[1:]))
        more = f" ({len(found) - 1} more above)" if not_whole and found[1:] else ""
        raise UnfedError(f"{not_whole}{more}: {found[0]}" if not_whole else found[0])
