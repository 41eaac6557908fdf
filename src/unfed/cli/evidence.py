"""The commands of trust: `keys`, `request`, `log`, `bundle`, `verify`, `serve`.

They need the extra `unfed[trust]`. It is imported only by these commands, and by others in a run with a folder
`trust/`.
"""

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unfed.cli.console import echo_json, say
from unfed.cli.options import (
    AllowCode,
    Json,
    Quiet,
    RunArgument,
    how,
    option,
    out_option,
    output,
    plain,
    plain_file,
    say_findings,
    what,
)
from unfed.errors import UnfedError, UnfedWarning, typed

if TYPE_CHECKING:
    from unfed.folder.folder import RunFolder
    from unfed.requests.entry import Entry
    from unfed.requests.options import RequestOptions
    from unfed.runs.run import Run
    from unfed.trust.log import Checkpoint
    from unfed.trust.signing import PublicKey
    from unfed.trust.verdict import Verdict

keys_app = typer.Typer(help="Make keys that sign requests, and say whose they are.", no_args_is_help=True)
request_app = typer.Typer(help="Sign, check, revoke or refuse a deletion request.", no_args_is_help=True)
log_app = typer.Typer(help="Check the log of a run.", no_args_is_help=True)

where = partial(option, "Where it listens")
OperatorKey = Annotated[Path, plain("The operator's private key.", "--operator", metavar="FILE.key")]
Page = Annotated[
    Path | None, output("Also write a page for the officer, to print.", metavar="FILE.html", callback=plain_file)
]


# --- keys -------------------------------------------------------------------------------------------------------------


@keys_app.command("new")
def keys_new(
    name: Annotated[Path, typer.Argument(metavar="NAME", help="Writes NAME.key and NAME.pub.")], as_json: Json = False
) -> None:
    """Make an Ed25519 key pair.

    NAME.key stays with its owner; NAME.pub is given away.
    """
    from unfed.trust import signing

    made, (private, public) = signing.new_key(name), signing.key_files(name)
    if as_json:
        echo_json({"id": made.id, "private": str(private), "public": str(public)})
    else:
        say(f"Wrote {private} (keep it) and {public} (give it away); the key's id is {made.id}.")


@keys_app.command("roster")
def keys_roster(
    run: RunArgument,
    operator: OperatorKey,
    clients: Annotated[
        list[str] | None, typer.Argument(metavar="CLIENT=FILE.pub", help="A client and its public key. Repeatable.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Say whose key is whose, signed by the operator.

    The first call starts the run's log.
    """
    from unfed.folder.folder import RunFolder
    from unfed.trust import logbook, participation, signing
    from unfed.trust.folder import TrustFolder
    from unfed.trust.log import CHECKPOINTS

    known = RunFolder(run).description().clients
    given: dict[str, Any] = {}
    for pair in clients or ():
        name, sign, file = pair.partition("=")
        if not (sign and name and file):
            raise UnfedError(f"Give a client and its key as CLIENT=FILE.pub, not {pair!r}.")
        if known and name not in known:
            raise UnfedError(f"This run has no client {name!r}; it has {len(known)}, the first is {known[0]!r}.")
        if name in given:
            raise UnfedError(f"Client {name!r} is given two keys; a client has one.")
        given[name] = signing.public_key(Path(file))
    trust = TrustFolder.begin(run, operator)
    found = trust.enrol(given)
    logbook.enter(RunFolder(run), trust)  # what happened before the log began
    if as_json:
        echo_json(participation.roster_json(found))
    else:
        number = f"{len(found.clients)} client{'' if len(found.clients) == 1 else 's'}"
        say(f"On the roster of {run}: the operator and {number}. Requests go to {found.business}.")
        say(f"Give clients your public key and {trust.path / CHECKPOINTS}: they sign for this federation (--log).")


# --- requests ---------------------------------------------------------------------------------------------------------


@request_app.command("sign")
def request_sign(
    *,
    key: Annotated[Path, plain("Your private key.", metavar="FILE.key")],
    to: Annotated[Path, plain("The operator's public key.", metavar="FILE.pub")],
    log: Annotated[Path, plain("The checkpoints of the federation's log.", metavar="FILE")],
    client: Annotated[str | None, what("You: the client that asks, and leaves as a whole.")] = None,
    classes: Annotated[list[int], what("A class, by the operator's key only.", "--class")] = [],
    samples: Annotated[Path | None, what("A CSV file `client,position` of your own samples.")] = None,
    model: Annotated[Path | None, what("The model you know of: its digest is recorded.")] = None,
    regime: Annotated[str, plain("gdpr, ccpa or voluntary.")] = "gdpr",
    again: Annotated[str | None, plain("File a request again that was refused.", metavar="ID")] = None,
    expires: Annotated[str | None, plain("Until when it can be taken up; default: in 30 days.")] = None,
    out: Annotated[Path, out_option("The signed request.")],
    as_json: Json = False,
) -> None:
    """Sign a deletion request.

    It holds only a salted hash of the samples; their positions go to OUT.opening.
    """
    from unfed import storage
    from unfed.data import SampleList
    from unfed.model.params import digests, fingerprint
    from unfed.trust import request, signing
    from unfed.trust.participation import OPERATOR

    own, operator = signing.signing_key(key), signing.public_key(to)
    opening = None
    scope: dict[str, Any]
    if sum((bool(client) and samples is None, bool(classes), samples is not None)) != 1:
        raise UnfedError("Name what to forget with exactly one of --client, --class or --samples.")
    if samples is not None:
        opening = request.Opening.drawn(SampleList.read(samples).samples)
        scope = {"samples": opening.scope()}
    else:
        scope = {"clients": [client]} if client else {"classes": classes}
    whose = client or (scope["samples"]["client"] if opening else own.id)
    agent = OPERATOR if own.id == operator.id else whose
    digest = None if model is None else fingerprint(digests(storage.load(model, "model")[0]))
    value = request.value(scope, agent, operator.id, digest, regime, expires, again)
    request.refuse_if_not_its_own(request.read(value))
    beside = out.with_name(out.name + ".opening")
    if opening is not None:
        plain_file(beside)
    value["log"] = _checkpoint_in(log, operator).origin
    if opening is not None:  # first: without it the request cannot be served
        storage.deliver(beside, opening.to_bytes())
    storage.deliver(out, request.sign(value, own).to_bytes())
    if as_json:
        told = {"id": value["agent-request-id"], "agent": agent, "out": str(out), "expires": value["expires-at"]}
        echo_json({**told, "opening": str(beside) if opening else None})
        return
    say(f"Signed request {value['agent-request-id']} of {agent}, to be taken up until {value['expires-at']}: {out}.")
    if opening is not None:
        say(f"What opens its commitment is in {beside}: give it only to the operator, beside the request.")


@request_app.command("check")
def request_check(
    run: RunArgument,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A signed request.")],
    as_json: Json = False,
) -> None:
    """Check a signed request without filing it."""
    from unfed.trust import intake
    from unfed.trust.folder import TrustFolder
    from unfed.trust.signing import read_file

    _, asked = intake.believe(TrustFolder(run), read_file(file, "request"))
    if as_json:
        echo_json({**vars(asked), "scope": dict(asked.scope)})
        return
    what = {"clients": "all its data", "classes": "classes", "samples": "single samples, by a commitment"}[asked.kind]
    say(f"Request {asked.id} is believed: {asked.agent} asks to forget {what}, until {asked.expires} ({asked.regime}).")


@request_app.command("revoke")
def request_revoke(
    request: Annotated[str, typer.Argument(metavar="ID", help="The request's id, as it was signed.")],
    client: Annotated[str, plain("You: the client that asked.")],
    key: Annotated[Path, plain("Your private key.", metavar="FILE.key")],
    to: Annotated[Path, plain("The operator's public key.", metavar="FILE.pub")],
    out: Annotated[Path, out_option("The signed revocation.")],
) -> None:
    """Sign that a request is taken back.

    A fulfilled request stays fulfilled.
    """
    from unfed import storage
    from unfed.trust import request as requests
    from unfed.trust import signing

    signed = requests.revoke(request, client, signing.public_key(to).id, signing.signing_key(key))
    storage.deliver(out, signed.to_bytes())
    say(f"Signed the revocation of request {request} by {client}: {out}.")


@request_app.command("refuse")
def request_refuse(
    run: RunArgument,
    request: Annotated[str, typer.Argument(metavar="ID", help="The request's id; see `unfed status`.")],
    reason: Annotated[str, plain("Why; it is signed and goes to the client.")],
) -> None:
    """Refuse a signed request, with a signed reason.

    The request stays owed, its rows stay out of training, and the client may ask again. See GDPR, Article 12(4).
    """
    from unfed.runs.run import Run
    from unfed.trust import intake

    file = intake.refuse(Run.open(run), request, reason)
    say(f"Request {request} is refused; it stays owed, and its rows stay out. Send the client the reason: {file}.")


# --- the log ----------------------------------------------------------------------------------------------------------


def _checkpoint_in(file: Path, operator: "PublicKey") -> "Checkpoint":
    """The last checkpoint in a file that this operator signed; an acknowledgement has one too."""
    from unfed.trust import request, signing
    from unfed.trust.log import checkpoint_in
    from unfed.trust.signing import read_file

    lines = [line for line in read_file(file, "checkpoint").splitlines() if line.strip()]
    signed = signing.read(lines[-1] if lines else b"", "checkpoint")
    if signed.type == request.ACKNOWLEDGEMENT:
        return request.acknowledged(signed, [operator]).checkpoint
    return checkpoint_in(signed, [operator])


@log_app.command("check")
def log_check(
    run: RunArgument,
    kept: Annotated[Path | None, plain("A checkpoint or an acknowledgement that you kept.")] = None,
    as_json: Json = False,
) -> None:
    """Check that a run's log is the one that was signed.

    It must not be cut, edited or reordered. With --kept it is compared with a checkpoint that you kept.
    """
    from unfed.trust.folder import TrustFolder
    from unfed.trust.logbook import faults_of

    trust = TrustFolder(run)
    theirs = None if kept is None else _checkpoint_in(kept, trust.operator)
    found, leaves, waiting = faults_of(run, theirs), len(trust.log.lines), trust.log.unsigned()
    since = f", and has grown from the {theirs.size} of {theirs.at}" if theirs else ""
    if waiting:
        since += f"; the last {len(waiting)} ({', '.join(waiting)}) are not signed for yet: the next command signs them"
    facts = {"leaves": leaves, "unsigned": len(waiting)}
    whole = f"The log of {run} has {leaves} leaves and is the one that was signed for{since}."
    say_findings(found, facts, as_json, whole)


# --- evidence ---------------------------------------------------------------------------------------------------------


def bundle(
    run: RunArgument,
    out: Annotated[Path, out_option("The evidence bundle.")],
    request: Annotated[str | None, plain("The request that was served; default: the only one.", metavar="ID")] = None,
    key: Annotated[
        Path | None, plain("The operator's key; default: that of the run's log.", metavar="FILE.key")
    ] = None,
    page: Page = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write the signed evidence of a served request.

    It holds no tensors and no sample ids. Evidence, not a guarantee.
    """
    from unfed.folder.carriers import hand_out
    from unfed.folder.folder import RunFolder
    from unfed.runs.record import RunRecord, keeps_log
    from unfed.trust import bundle as bundles
    from unfed.trust import signing
    from unfed.trust.findings import findings, served
    from unfed.trust.folder import TrustFolder

    _refuse_one_place(out, page)
    record = RunRecord(RunFolder(run))
    entry = served(record, request)
    trust = TrustFolder(run) if keeps_log(run) else None
    if key is None and trust is None:
        raise UnfedError(
            f"{run} keeps no log, so no key is known; give the operator's with --key FILE.key"
            f" (`{typed('keys', 'new', 'operator')}` makes one)."
        )
    own = trust.key if key is None and trust is not None else signing.signing_key(key or Path())
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
        echo_json({**told, "page": None if page is None else str(page)})
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
    key: Annotated[list[Path], plain("The operator's public key. Repeatable.", metavar="FILE.pub")],
    log: Annotated[Path | None, plain("A checkpoint or acknowledgement that you kept.", metavar="CHECKPOINT")] = None,
    model: Annotated[Path | None, plain("The model that you were given, a safetensors file.")] = None,
    page: Page = None,
    as_json: Json = False,
) -> None:
    """Check an evidence bundle, without the run.

    It prints a decision, what is proven and what is not. Exit code 2 if something does not hold.
    """
    from unfed.trust import bundle as bundles
    from unfed.trust import signing
    from unfed.trust.verdict import told

    _refuse_one_place(bundle, page)
    known = [signing.public_key(path) for path in key]
    verdict = bundles.verify(bundle, known, log, model)
    if page is not None:
        _write_page(page, verdict, [one.id for one in known])
    if as_json:
        echo_json({name: own for name, own in vars(verdict).items() if name != "statement"})
        return
    say(told(verdict))


def _refuse_one_place(bundle: Path, page: Path | None) -> None:
    """Refuse a page in the place of the evidence that it tells of."""
    if page is not None and page.resolve() == bundle.resolve():
        raise UnfedError(f"--page {page} would take the place of the evidence itself; name another file.")


def _write_page(path: Path, verdict: "Verdict", keys: list[str], folder: "RunFolder | None" = None) -> None:
    """Write the page of a bundle; whose run is at hand, it is entered there."""
    from unfed import storage
    from unfed.folder.carriers import hand_out
    from unfed.trust.verdict import page

    data = page(verdict, keys).encode()
    if folder is None:
        storage.deliver(path, data)
    else:
        hand_out(folder, "evidence", path, data)


def serve(
    run: RunArgument,
    port: Annotated[int, where("The port; 0 takes a free one.", min=0, max=65535)] = 8640,
    method: Annotated[str | None, how("The method; default: as `unfed forget`.")] = None,
    until: Annotated[str | None, how("`recovered`, `forgotten`, rounds, or `recovered,40`; default likewise.")] = None,
    together: Annotated[
        bool, how("Requests that wait at the same time share one recovery, if they can.", "--together")
    ] = False,
    work: Annotated[bool, how("Also serve what comes in; else `unfed resume` does.", "--work")] = False,
    allow_code: AllowCode = False,
) -> None:
    """Take signed requests over HTTP and show the queue.

    It listens on this machine only. Put a reverse proxy with TLS and passwords before it.
    """
    from unfed.requests.options import RequestOptions
    from unfed.runs.run import Run
    from unfed.trust.intake import Handling, Intake
    from unfed.trust.service import Listener

    opened = Run.open(run)
    opened.permit()
    handling = Handling(method, until, how=RequestOptions(together=together))
    listener = Listener(Intake(opened, handling), port, work, allow_code)
    say(f"Serving {run} at {listener.url}; Ctrl-C ends it.")
    with contextlib.suppress(KeyboardInterrupt):  # the way in which a service is ended
        listener.listen()
    say("Ended; what was taken is filed and logged.")


# --- what other commands do in a run that keeps a log -----------------------------------------------------------------


def received(
    run: "Run",
    signed: Path,
    opening: Path | None,
    handling: tuple[str | None, str | None, int | None, "RequestOptions"],
) -> tuple[str, str]:
    """Take a signed request in: its id, and a sentence.

    It is to be handled like this: method, until, seed, options.
    """
    from unfed.trust import intake, request
    from unfed.trust.folder import TrustFolder
    from unfed.trust.signing import parsed, read_file

    opened = None if opening is None else request.Opening.from_json(parsed(read_file(opening, "opening"), "opening"))
    taken = intake.receive(run, read_file(signed, "request"), opened, intake.Handling(*handling))
    trust, name = TrustFolder(run.folder.path), taken.entry.request.id
    due = request.acknowledged(taken.acknowledgement, [trust.operator]).expected_by
    answer = trust.file("acknowledgement", name)
    return name, f"Request {name!r} is believed and filed, to be dealt with by {due}; the signed answer is {answer}."


def revoked(run: "Run", name: str, file: Path) -> "Entry":
    """Let a request go by the signed revocation in a file."""
    from unfed.trust import intake, signing
    from unfed.trust.signing import read_file

    data = read_file(file, "revocation")
    told = signing.shown(signing.read(data, "revocation"))
    if not isinstance(told, dict) or told.get("agent-request-id") != name:
        raise UnfedError(f"{file} does not revoke request {name!r}; give the right file.")
    return intake.take_back(run, data)


@contextmanager
def entered(folder: "RunFolder", purged: Sequence[str] = ()) -> Iterator[None]:
    """Enter in the log what a command does in this block, where the run keeps one.

    Without the operator's key it is not begun.
    """
    from unfed.runs.record import keeps_log

    if not keeps_log(folder.path):
        yield
        return
    from unfed.trust import logbook
    from unfed.trust.folder import TrustFolder

    trust = TrustFolder(folder.path)
    trust.require_key()
    yield
    logbook.enter(folder, trust, purged)


def due_dates(run: Path) -> dict[str, str]:
    """By when each signed request was promised to be dealt with, by its id."""
    from unfed.runs.record import keeps_log

    if not keeps_log(run):
        return {}
    try:
        from unfed.trust.folder import TrustFolder

        leaves = TrustFolder(run).log.leaves
    except UnfedError as error:  # where a run stands can be said all the same
        warnings.warn(f"When signed requests are due is not known: {error}", UnfedWarning, stacklevel=2)
        return {}
    return {leaf["request"]: leaf["expected_by"] for leaf in leaves if leaf["type"] == "acknowledgement"}


def log_faults(run: Path) -> list[str]:
    """What is wrong with the log of a run, one sentence each; nothing where it keeps none."""
    from unfed.runs.record import keeps_log

    try:
        if not keeps_log(run):
            return []
    except UnfedError:  # a damaged state, which reading the folder has named already
        return []
    from unfed.trust.logbook import faults_of

    return faults_of(run)
