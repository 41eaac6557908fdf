"""The commands around signed requests: `unfed keys`, `unfed request`, `unfed log`.

They need the extra `unfed[trust]`, which is imported when one of them is given and not before.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from unfed import storage
from unfed.cli.console import Console, echo
from unfed.cli.options import Json, RunArgument, plain_file
from unfed.data import SampleList
from unfed.errors import UnfedError
from unfed.folder.folder import RunFolder
from unfed.runs.run import Run

if TYPE_CHECKING:
    from unfed.trust.keys import PublicKey
    from unfed.trust.log import Checkpoint

keys_app = typer.Typer(help="Keys that sign requests, and whose they are.", no_args_is_help=True)
request_app = typer.Typer(help="Signed deletion requests: sign one, look at one.", no_args_is_help=True)
log_app = typer.Typer(help="The log of a run: is it whole, who took no part.", no_args_is_help=True)
stdout = Console(highlight=False)

OperatorKey = Annotated[Path, typer.Option("--operator", metavar="FILE.key", help="The operator's private key.")]


def say(sentence: str) -> None:
    stdout.print(escape(sentence), soft_wrap=True)


# --- keys -------------------------------------------------------------------------------------------------------------


@keys_app.command("new")
def keys_new(
    name: Annotated[Path, typer.Argument(metavar="NAME", help="Writes NAME.key and NAME.pub.")], as_json: Json = False
) -> None:
    """Draw an Ed25519 key: NAME.key stays with its owner, NAME.pub is given away."""
    from unfed.trust import keys

    made, (private, public) = keys.new(name), keys.files(name)
    if as_json:
        echo(json.dumps({"id": made.id, "private": str(private), "public": str(public)}))
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
    """Say whose key is whose, signed by the operator; the first time, begin the run's log."""
    from unfed.trust import keys, roster, story
    from unfed.trust.folder import TrustFolder
    from unfed.trust.log import CHECKPOINTS

    described = RunFolder(run).description()
    known = described["clients"]
    given: dict[str, Any] = {}
    for pair in clients or ():
        name, sign, file = pair.partition("=")
        if not (sign and name and file):
            raise UnfedError(f"Give a client and its key as CLIENT=FILE.pub, not {pair!r}.")
        if known and name not in known:
            raise UnfedError(f"This run has no client {name!r}; it has {len(known)}, the first is {known[0]!r}.")
        if name in given:
            raise UnfedError(f"Client {name!r} is given two keys; a client has one.")
        given[name] = keys.public_key(Path(file))
    trust = TrustFolder.begin(run, operator)
    found = trust.enrol(given)
    story.enter(RunFolder(run), trust)  # what happened before the log began
    if as_json:
        echo(json.dumps(roster.to_json(found)))
    else:
        number = f"{len(found.clients)} client{'' if len(found.clients) == 1 else 's'}"
        say(f"On the roster of {run}: the operator and {number}. Requests go to {found.business}.")
        say(f"Give clients your public key and {trust.path / CHECKPOINTS}: they sign for this federation (--log).")


# --- requests ---------------------------------------------------------------------------------------------------------


@request_app.command("sign")
def request_sign(
    key: Annotated[Path, typer.Option(metavar="FILE.key", help="Your private key.")],
    to: Annotated[Path, typer.Option(metavar="FILE.pub", help="The operator's public key: to whom it goes.")],
    log: Annotated[Path, typer.Option(metavar="FILE", help="Checkpoints of the log of the federation that it is for.")],
    out: Annotated[Path, typer.Option("--out", "-o", callback=plain_file, help="The signed request.")],
    client: Annotated[str | None, typer.Option(help="You: the client that asks, and leaves as a whole.")] = None,
    classes: Annotated[list[int], typer.Option("--class", help="A class, by the operator's key only.")] = [],  # noqa: B006
    samples: Annotated[Path | None, typer.Option(help="A CSV file `client,position` of your own samples.")] = None,
    model: Annotated[Path | None, typer.Option(help="The model you know of: its digest is recorded.")] = None,
    regime: Annotated[str, typer.Option(help="gdpr, ccpa or voluntary.")] = "gdpr",
    again: Annotated[str | None, typer.Option(metavar="ID", help="File a request again that was refused.")] = None,
    expires: Annotated[str | None, typer.Option(help="Until when it can be taken up; default: in 30 days.")] = None,
    as_json: Json = False,
) -> None:
    """Sign a deletion request.

    Samples are only committed to: what opens the commitment goes to OUT.opening.
    """
    from unfed.model.digest import digests, fingerprint
    from unfed.trust import intake, keys, request
    from unfed.trust.roster import OPERATOR

    own, operator = keys.signing_key(key), keys.public_key(to)
    opening = None
    scope: dict[str, Any]
    if sum((bool(client) and samples is None, bool(classes), samples is not None)) != 1:
        raise UnfedError("Say what to forget by exactly one of --client, --class or --samples.")
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
        storage.deliver(beside, intake.opening_bytes(opening))
    storage.deliver(out, request.sign(value, own).to_bytes())
    if as_json:
        told = {"id": value["agent-request-id"], "agent": agent, "out": str(out), "expires": value["expires-at"]}
        echo(json.dumps({**told, "opening": str(beside) if opening else None}))
        return
    say(f"Signed request {value['agent-request-id']} of {agent}, to be taken up until {value['expires-at']}: {out}.")
    if opening is not None:
        say(
            f"What opens its commitment is in {beside}: give it to the operator beside the request, and to nobody else."
        )


@request_app.command("check")
def request_check(
    run: RunArgument,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A signed request.")],
    as_json: Json = False,
) -> None:
    """Say whether a run would believe a signed request. Nothing is filed, nothing is logged."""
    from unfed.trust import intake
    from unfed.trust.canonical import read_file
    from unfed.trust.folder import TrustFolder

    _, asked = intake.believe(TrustFolder(run), read_file(file, "request"))
    if as_json:
        echo(json.dumps({**vars(asked), "scope": dict(asked.scope)}))
        return
    what = {"clients": "all its data", "classes": "classes", "samples": "single samples, by a commitment"}[asked.kind]
    say(f"Request {asked.id} is believed: {asked.agent} asks to forget {what}, until {asked.expires} ({asked.regime}).")


@request_app.command("revoke")
def request_revoke(
    request: Annotated[str, typer.Argument(metavar="ID", help="The request's id, as it was signed.")],
    client: Annotated[str, typer.Option(help="You: the client that asked.")],
    key: Annotated[Path, typer.Option(metavar="FILE.key", help="Your private key.")],
    to: Annotated[Path, typer.Option(metavar="FILE.pub", help="The operator's public key: to whom it goes.")],
    out: Annotated[Path, typer.Option("--out", "-o", callback=plain_file, help="The signed revocation.")],
) -> None:
    """Sign that a request is taken back; handed in, the request is let go unless it is fulfilled."""
    from unfed.trust import keys, revocation

    signed = revocation.sign(request, client, keys.public_key(to).id, keys.signing_key(key))
    storage.deliver(out, signed.to_bytes())
    say(f"Signed the revocation of request {request} by {client}: {out}.")


@request_app.command("refuse")
def request_refuse(
    run: RunArgument,
    request: Annotated[str, typer.Argument(metavar="ID", help="The request's id; see `unfed status`.")],
    reason: Annotated[str, typer.Option(help="Why it is refused; it is signed, and goes to the client.")],
) -> None:
    """Refuse a signed request, with a signed reason (GDPR, Article 12(4)).

    It stays owed and visible, its rows stay out of training, and the client may hand it in again.
    """
    from unfed.trust import revocation

    file = revocation.refuse(Run.open(run), request, reason)
    say(f"Request {request} is refused; it stays owed, and its rows stay out. Send the client the reason: {file}.")


# --- the log ----------------------------------------------------------------------------------------------------------


def _checkpoint_in(file: Path, operator: PublicKey) -> Checkpoint:
    """The last checkpoint in a file that this operator signed; an acknowledgement has one too."""
    from unfed.trust import acknowledgement, envelope
    from unfed.trust.canonical import read_file
    from unfed.trust.log import checkpoint_in

    lines = [line for line in read_file(file, "checkpoint").splitlines() if line.strip()]
    signed = envelope.read(lines[-1] if lines else b"", "checkpoint")
    if signed.type == acknowledgement.TYPE:
        return acknowledgement.verified(signed, [operator]).checkpoint
    return checkpoint_in(signed, [operator])


@log_app.command("check")
def log_check(
    run: RunArgument,
    kept: Annotated[Path | None, typer.Option(help="A checkpoint or an acknowledgement that you kept.")] = None,
    as_json: Json = False,
) -> None:
    """Say whether the log of a run is the one that was signed for: not cut, edited or re-ordered.

    Both files cut back together are found only by a checkpoint that somebody else kept (`--kept`).
    """
    from unfed.trust.checking import faults_of
    from unfed.trust.folder import TrustFolder

    trust = TrustFolder(run)
    theirs = None if kept is None else _checkpoint_in(kept, trust.operator)
    found, leaves, waiting = faults_of(run, theirs), len(trust.log.lines), trust.log.unsigned()
    if as_json:
        echo(json.dumps({"whole": not found, "findings": found, "leaves": leaves, "unsigned": len(waiting)}))
        if found:
            raise typer.Exit(UnfedError.exit_code)
        return
    if found:
        for sentence in found[1:]:
            say(f"- {sentence}")
        raise UnfedError(found[0])
    since = f", and has grown from the {theirs.size} of {theirs.at}" if theirs else ""
    if waiting:
        since += f"; the last {len(waiting)} ({', '.join(waiting)}) are not signed for yet: the next command signs them"
    say(f"The log of {run} has {leaves} leaves and is the one that was signed for{since}.")


@log_app.command("prove")
def log_prove(
    run: RunArgument,
    client: Annotated[str, typer.Option(help="Who took part in no round.")],
    out: Annotated[Path, typer.Option("--out", "-o", callback=plain_file, help="The proof.")],
    after: Annotated[int | None, typer.Option(help="After this leaf; default: that of the client's request.")] = None,
) -> None:
    """Write the proof that a client was asked to train in no round after a place in the log.

    It shows what the log says; a server that trains beside its log is outside what it can show.
    """
    from unfed.trust import participation
    from unfed.trust.folder import TrustFolder

    opened, trust = Run.open(run), TrustFolder(run)
    if after is None:
        ids = {entry.request.id for entry in opened.folder.book().entries if client in entry.request.clients}
        places = [
            n
            for n, leaf in enumerate(trust.log.leaves)
            if leaf["type"] in ("request", "state") and leaf["request"] in ids
        ]
        if not places:
            raise UnfedError(f"No request of client {client!r} stands in the log of {run}; say where with --after.")
        after = places[0]
    trust.log.sign(trust.key)
    proof = participation.prove_absence(trust.log, trust.participants, trust.pseudonyms.known(client), after)
    shown = participation.verify_absence(proof, [trust.operator])
    storage.deliver(out, (json.dumps(proof, indent=1) + "\n").encode())
    say(f"Client {client} was asked to train in none of the {shown.rounds} rounds after leaf {after}: {out}.")


def add_to(app: typer.Typer) -> None:
    for name, inner in (("keys", keys_app), ("request", request_app), ("log", log_app)):
        app.add_typer(inner, name=name)
