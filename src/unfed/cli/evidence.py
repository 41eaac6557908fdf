"""The commands around evidence: `bundle` makes it, `verify` checks it, `serve` hands it out."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from unfed import storage
from unfed.cli.console import Console, echo
from unfed.cli.options import AllowCode, Json, Quiet, RunArgument, plain_file
from unfed.errors import UnfedError, typed
from unfed.folder.folder import RunFolder
from unfed.folder.handed_out import hand_out
from unfed.runs.onlooker import keeps_log
from unfed.runs.record import Record
from unfed.runs.run import Run

if TYPE_CHECKING:
    from unfed.trust.verdict import Verdict

stdout = Console(highlight=False)

Page = Annotated[
    Path | None,
    typer.Option(metavar="FILE.html", callback=plain_file, help="Also write a page for the officer, to print."),
]


def say(sentence: str) -> None:
    stdout.print(escape(sentence), soft_wrap=True)


def bundle(
    run: RunArgument,
    out: Annotated[Path, typer.Option("--out", "-o", callback=plain_file, help="The evidence bundle.")],
    request: Annotated[
        str | None, typer.Option(metavar="ID", help="The request that was served; default: the only one.")
    ] = None,
    key: Annotated[
        Path | None, typer.Option(metavar="FILE.key", help="The operator's key; default: that of the run's log.")
    ] = None,
    page: Page = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write the signed evidence of a served request.

    It says which models, who took part, what was measured; no tensors, no sample ids. Evidence, not a guarantee.
    """
    from unfed.trust import bundle as bundles
    from unfed.trust import keys
    from unfed.trust.findings import findings, served
    from unfed.trust.folder import TrustFolder

    _refuse_one_place(out, page)
    record = Record(RunFolder(run))
    entry = served(record, request)
    trust = TrustFolder(run) if keeps_log(run) else None
    if key is None and trust is None:
        raise UnfedError(
            f"{run} keeps no log, so no key is known; give the operator's with --key FILE.key"
            f" (`{typed('keys', 'new', 'operator')}` makes one)."
        )
    own = trust.key if key is None and trust is not None else keys.signing_key(key or Path())
    if trust is not None and own.id != trust.operator.id:
        raise UnfedError(f"The log of {run} is signed by another key; leave --key out, or give that one.")
    said, log = findings(record, entry), bundles.from_log(record, entry)
    signed = bundles.sign(said, own, log)
    verdict = bundles.verified(signed.to_bytes(), [own.public], f"The evidence of request {entry.request.id!r}")
    hand_out(record.folder, "evidence", out, signed.to_bytes())
    if page is not None:
        _write_page(page, verdict, [own.id], record.folder)
    if as_json:
        told = {"bundle": str(out), "request": entry.request.id, "key": own.id, "proven": verdict.proven}
        echo(json.dumps({**told, "page": None if page is None else str(page)}))
    elif not quiet:
        written = f"{out}, signed by {own.id[:16]}…" + ("" if page is None else f", and a page of it, {page}")
        public = _public(key or (trust.key_file if trust else None))
        say(f"Wrote {written}; `{typed('verify', out, '--key', public)}` checks it.")
        if log.why_not:
            say(f"It does not show who trained after the request: {log.why_not}")


def _public(key: Path | None) -> Path:
    """The public half that lies beside a private key, if one does: what others are given to verify by."""
    beside = None if key is None else key.with_suffix(".pub")
    return beside if beside is not None and beside.exists() else Path("operator.pub")


def verify(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="An evidence bundle.")],
    key: Annotated[list[Path], typer.Option(metavar="FILE.pub", help="The operator's public key. Repeatable.")],
    log: Annotated[
        Path | None, typer.Option(metavar="CHECKPOINT", help="A checkpoint or acknowledgement that you kept.")
    ] = None,
    model: Annotated[Path | None, typer.Option(help="The model that you were given, a safetensors file.")] = None,
    page: Page = None,
    as_json: Json = False,
) -> None:
    """Check an evidence bundle: a decision in four lines, and what is proven and what is not.

    It needs the bundle and the operator's public key, and no run folder. Exit code 2 where something does not hold.
    """
    from unfed.trust import bundle as bundles
    from unfed.trust import keys
    from unfed.trust.verdict import told

    _refuse_one_place(bundle, page)
    known = [keys.public_key(path) for path in key]
    verdict = bundles.verify(bundle, known, log, model)
    if page is not None:
        _write_page(page, verdict, [one.id for one in known])
    if as_json:
        echo(json.dumps({name: own for name, own in vars(verdict).items() if name != "statement"}))
        return
    say(told(verdict))


def _refuse_one_place(bundle: Path, page: Path | None) -> None:
    """Refuse a page in the place of the evidence that it tells of."""
    if page is not None and page.resolve() == bundle.resolve():
        raise UnfedError(f"--page {page} would take the place of the evidence itself; name another file.")


def _write_page(path: Path, verdict: Verdict, keys: list[str], folder: RunFolder | None = None) -> None:
    """Write the page of a bundle; whose run is at hand, it is entered there."""
    from unfed.trust.page import page

    data = page(verdict, keys).encode()
    if folder is None:
        storage.deliver(path, data)
    else:
        hand_out(folder, "evidence", path, data)


def serve(
    run: RunArgument,
    host: Annotated[str, typer.Option(help="The loopback address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.")] = 8640,
    names: Annotated[
        list[str], typer.Option("--name", help="The public name that your reverse proxy passes on. Repeatable.")
    ] = [],  # noqa: B006
    token: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A file of tokens, one a line; made if it is not there.")
    ] = None,
    largest: Annotated[int, typer.Option(min=1024, help="Bytes that a call may send.")] = 1 << 20,
    method: Annotated[str, typer.Option(help="By which method what comes in is served.")] = "sealed",
    until: Annotated[str, typer.Option(help="`recovered`, `forgotten`, rounds, or `recovered,40`.")] = "recovered",
    together: Annotated[
        bool, typer.Option("--together", help="What waits at the same time shares one recovery, where it can.")
    ] = False,
    work: Annotated[bool, typer.Option("--work", help="Also serve what comes in; else `unfed resume` does.")] = False,
    allow_code: AllowCode = False,
) -> None:
    """Take signed requests, show the queue, hand out answers and evidence.

    It listens on this machine only; put a reverse proxy with TLS before it. Requests count by their signature.
    """
    from unfed.requests.options import RequestOptions
    from unfed.trust.desk import Desk
    from unfed.trust.intake import Handling
    from unfed.trust.listening import Address, Listener, tokens_in

    opened = Run.open(run)
    opened.permit()
    address = Address(host, port, tuple(names))
    rules = address.rules(frozenset() if token is None else tokens_in(token), largest)
    listener = Listener(
        Desk(opened, Handling(method, until, how=RequestOptions(together=together))), address, rules, work, allow_code
    )
    if token is not None:
        say(f"Callers need a token of {token}.")
    say(f"Serving {run} at {listener.url}; Ctrl-C ends it.")
    with contextlib.suppress(KeyboardInterrupt):  # the way in which a service is ended
        listener.listen()
    say("Ended; what was taken is filed and logged.")


def add_to(app: typer.Typer) -> None:
    for command in (bundle, verify, serve):
        app.command()(command)
