"""Checks an evidence bundle of unfed, on its own: one file, Python 3.11 and `cryptography`.

    python verifier.py BUNDLE --key operator.pub [--log CHECKPOINT] [--model FILE]

It prints what is proven, then what no bundle shows, then what the operator says. "Proven" stands only above what was
recomputed here, from signatures and hashes: who signed, what the log holds, which model the log names. Exit code 0 if
all of it holds, 2 with one sentence if something contradicts something else.
"""

from __future__ import annotations

import argparse
import base64
import calendar
import hashlib
import json
import re
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

STATEMENT, PREDICATE, OLDER = "https://in-toto.io/Statement/v1", "urn:unfed:evidence:2", "urn:unfed:evidence:1"
BUNDLE, CHECKPOINT = "application/vnd.in-toto+json", "application/vnd.unfed.checkpoint+json"
ACKNOWLEDGEMENT, REQUEST = "application/vnd.unfed.acknowledgement+json", "application/vnd.unfed.request+json"
OPERATOR = "operator"
SECOND = "%Y-%m-%dT%H:%M:%SZ"
AHEAD = timedelta(minutes=5)  # how far one clock may be ahead of another
LARGEST = 64 << 20  # bytes of a file that is read
MALFORMED = (
    KeyError,
    TypeError,
    ValueError,
    AttributeError,
    IndexError,
    RecursionError,
    OverflowError,
    UnsupportedAlgorithm,
)
NOT_SHOWN = (
    "That the operator wrote every round into the log, and that these rounds really made this model.",
    "That copies of the data, and of the model before, are gone: at the operator's, or wherever they were sent.",
    "That the numbers were measured as the operator says, and that nothing of the data is left in the model.",
    "That key and pseudonym are the client's own: the operator says so. Compare them with the client's own copies.",
)
"""What no bundle shows, whatever it says."""
REQUEST_PURGED = "the signed request was purged"
PROOF_PURGED = "the proof was purged with the client's pseudonym"


class NotVerified(Exception):
    """Something does not hold; the message is one sentence."""


@dataclass(frozen=True)
class Shown:
    """What a bundle shows, once all of it was recomputed."""

    proven: list[str]
    not_shown: list[str]
    asked: tuple[bool, str]
    """Whether it is proven that the client asked, and who signed, or why it is not proven."""
    absent: tuple[bool, str]
    """Whether it is proven that the leaver trained in no later round, and how many these are, or why not."""
    dates: dict[str, str]
    """What the log dates: `received`, `expected_by`, `in force`, and `refused` where the operator first did."""
    statement: dict[str, Any]


def need(holds: object, otherwise: str) -> None:
    if not holds:
        raise NotVerified(otherwise)


def parsed(data: bytes) -> Any:
    """A JSON value in which nothing is named twice."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        need(len(dict(pairs)) == len(pairs), "Something in it is named twice; ask for it again.")
        return dict(pairs)

    need(len(data) <= LARGEST, f"The file has more than {LARGEST >> 20} MiB; a bundle is smaller.")
    return json.loads(data.decode(), object_pairs_hook=once)


# --- names, dates, digests: only in their patterns --------------------------------------------------------------------


def one_line(value: Any) -> bool:
    """Whether no text inside has a line break or another character that steers a terminal or a page."""
    if isinstance(value, dict):
        return all(one_line(key) and one_line(own) for key, own in value.items())
    if isinstance(value, list):
        return all(one_line(own) for own in value)
    return not isinstance(value, str) or not any(unicodedata.category(letter) in UNSEEN for letter in value)


UNSEEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


def name(text: Any, what: str) -> str:
    fits = isinstance(text, str) and 0 < len(text) <= 200 and text.strip() == text and one_line(text)
    need(fits, f"The {what} is no name in one line; ask for the evidence again.")
    return str(text)


def moment(text: Any, what: str) -> datetime:
    try:
        found = datetime.strptime(text, SECOND)
        need(found.strftime(SECOND) == text, "")
        return found
    except (TypeError, ValueError, NotVerified):
        raise NotVerified(f"The date of {what} is no moment like 2026-01-31T12:00:00Z; ask for it again.") from None


def digest(text: Any, what: str) -> str:
    fits = isinstance(text, str) and re.fullmatch("[0-9a-f]{64}", text)
    need(fits, f"The {what} is no SHA-256 in 64 hex digits; ask for the evidence again.")
    return str(text)


def month_later(at: datetime) -> str:
    """The same day of the next month, or its last day (GDPR, Article 12(3))."""
    year, month = (at.year + 1, 1) if at.month == 12 else (at.year, at.month + 1)
    day = min(at.day, calendar.monthrange(year, month)[1])
    return at.replace(year=year, month=month, day=day).strftime(SECOND)


# --- signatures and trees ---------------------------------------------------------------------------------------------


def pae(envelope: Any) -> bytes:
    """The bytes that a DSSE envelope signs."""
    kind, payload = str(envelope["payloadType"]).encode(), base64.b64decode(envelope["payload"], validate=True)
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def signed_digest(envelope: Any) -> str:
    return hashlib.sha256(pae(envelope)).hexdigest()


def opened(
    envelope: Any, kind: str, keys: Sequence[Ed25519PublicKey], what: str, whose: str = "a key that you gave"
) -> Any:
    """What is inside a DSSE envelope of this type, if one of the keys signed it."""
    said = str(envelope["payloadType"])
    need(said == kind, f"The {what} is of the type {said[:80]!r}, not {kind!r}; give the right file.")
    for one in envelope["signatures"]:
        for key in keys:
            try:
                key.verify(base64.b64decode(one["sig"], validate=True), pae(envelope))
                return parsed(base64.b64decode(envelope["payload"], validate=True))
            except InvalidSignature:
                continue
    raise NotVerified(f"The {what} is not signed by {whose}, or it was changed after it was signed.")


def public(pem: str) -> Ed25519PublicKey:
    key = serialization.load_pem_public_key(pem.encode())
    need(isinstance(key, Ed25519PublicKey), "A key is not for Ed25519; give the .pub file.")
    assert isinstance(key, Ed25519PublicKey)
    return key


def key_id(key: Ed25519PublicKey) -> str:
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return hashlib.sha256(key.public_bytes(serialization.Encoding.DER, form)).hexdigest()


def leaf(data: bytes) -> bytes:
    """RFC 9162: the hash of a leaf begins with another byte than that of two subtrees."""
    return hashlib.sha256(b"\x00" + data).digest()


def node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()


def climbed(found: bytes, index: int, size: int, path: Sequence[str]) -> bytes:
    """The root of a tree of this size, from one leaf's hash and the hashes beside its way up."""
    fits = 0 <= index < size and bool(path) == (size > 1)
    need(fits, "A path in the bundle does not fit its tree; ask for it again.")
    if size == 1:
        return found
    split, beside = 1 << (size - 1).bit_length() - 1, bytes.fromhex(path[-1])  # the largest power of two below the size
    if index < split:
        return node(climbed(found, index, split, path[:-1]), beside)
    return node(beside, climbed(found, index - split, size - split, path[:-1]))


def roots(lines: Sequence[bytes]) -> dict[int, str]:
    """The root of the log at each size."""
    peaks: list[bytes] = []
    found: dict[int, str] = {}
    for size, line in enumerate(lines):
        peaks, full = [*peaks, leaf(line)], size
        while full & 1:  # two full subtrees of one size are a full subtree
            peaks, full = [*peaks[:-2], node(peaks[-2], peaks[-1])], full >> 1
        found[size + 1] = joined(peaks).hex()
    return found


def joined(peaks: Sequence[bytes]) -> bytes:
    return peaks[0] if len(peaks) == 1 else node(peaks[0], joined(peaks[1:]))


def absent(stranger: bytes, proof: Any, members: Any) -> bool:
    """Whether the neighbours in a sorted tree stand side by side, with the stranger between them."""
    size, root = members["size"], members["root"]
    if proof is None or proof["size"] != size:
        return False
    sides = [(place, bytes.fromhex(one), path) for place, one, path in proof["neighbours"]]
    if size == 0:
        return not sides and root == hashlib.sha256().hexdigest()
    if not all(climbed(leaf(one), place, size, path).hex() == root for place, one, path in sides):
        return False
    if len(sides) == 2:
        return bool(sides[1][0] == sides[0][0] + 1 and sides[0][1] < stranger < sides[1][1])
    ((place, one, _),) = sides
    return bool((place == 0 and stranger < one) or (place == size - 1 and stranger > one))


# --- what the log says ------------------------------------------------------------------------------------------------


class LogCopy:
    """Every leaf of a log, from the first on, as one signed checkpoint vouches for it."""

    def __init__(self, raw: Any, keys: Sequence[Ed25519PublicKey]) -> None:
        self.keys, self.end = keys, opened(raw["checkpoint"], CHECKPOINT, keys, "checkpoint")
        self.lines = [str(text) for text in raw["leaves"]]
        self._roots = roots([line.encode() for line in self.lines])
        name(self.end["origin"], "log's origin")
        self.at, size = moment(self.end["at"], "the checkpoint"), self.end["size"]
        extra = len(self.lines) - size
        need(extra <= 0, f"{extra} leaves of the log come after its signed checkpoint, so they are not signed for.")
        whole = extra == 0 and self._roots[size] == self.end["root"]
        need(whole, "Leaves of the log are missing or changed in the bundle.")
        self.leaves: list[dict[str, Any]] = [parsed(line.encode()) for line in self.lines]

    def holds(self, one: Any, whose: str) -> None:
        """Refuse a checkpoint that was not signed over the beginning of this log."""
        same = one["origin"] == self.end["origin"] and self._roots.get(one["size"]) == one["root"]
        need(same, f"The log is not the one that {whose} was signed over: it was rewritten.")

    def about(self, request: str, kind: str) -> list[int]:
        """The places of the leaves of a type about a request."""
        both = ((place, noted) for place, noted in enumerate(self.leaves) if noted.get("request") == request)
        return [place for place, noted in both if noted["type"] == kind]

    def superseded(self, request: str) -> list[str]:
        """The older requests for the same data whose place a request took, the newest first."""
        names = [request]
        for noted in reversed(self.leaves):
            if noted["type"] == "state" and noted.get("superseded") in names:
                names.append(name(noted["request"], "id of an older request"))
        return list(dict.fromkeys(names[1:]))

    def trained(self, after: int) -> list[int]:
        """The rounds after a place in which clients trained; 0 is what a method begins with."""
        return [n for n, noted in self.rounds(after + 1, len(self.lines)).items() if noted["round"] > 0]

    def rounds(self, first: int, last: int) -> dict[int, dict[str, Any]]:
        """The rounds from one place up to another, by their places."""
        return {n: noted for n, noted in enumerate(self.leaves[first:last], first) if noted["type"] == "round"}


@dataclass(frozen=True)
class Served:
    """Where the log speaks of a request and of its model."""

    first: int
    """The first leaf about the request."""
    made: dict[str, Any] | None
    """The round that ends in the model; None where the model is older than the log."""
    in_force: str


def served(log: LogCopy, request: Any, model: str, gate: Any) -> Served:
    """Where the log says that this model came into force for this request."""
    own = request["id"]
    about = [place for place, noted in enumerate(log.leaves) if noted.get("request") == own]
    need(about, "The log says nothing of this request; ask for the evidence again.")
    first, forced = about[0], [n for n in log.about(own, "in-force") if log.leaves[n]["model"] is not None]
    need(forced, "The log does not say that a model came into force for this request.")
    other = "The log names another model as the one that came into force for this request."
    need(all(log.leaves[place]["model"] == model for place in forced), other)
    at = str(log.leaves[forced[0]]["at"])
    need(at == request["fulfilled"], "The log says another date than the findings for when the model came into force.")
    states = [log.leaves[place]["state"] for place in log.about(own, "state")]
    need(states[-1:] == ["fulfilled"], "The log does not say that this request is fulfilled.")
    carrying = any(noted["model"] == model for noted in log.rounds(0, first + 1).values())
    need(not carrying, "This model was there before the request: a round up to it ends in the same one.")
    gates = [log.leaves[place] for place in log.about(own, "gate")][-1:]
    said = [[{one["name"]: one["verdict"] for one in gate["checks"]}, gate["accepted"] is not None]] if gate else []
    same = said == [[one["checks"], one["accepted"]] for one in gates]
    need(same, "The log says another outcome of the gate than the findings.")
    made = [noted for noted in log.rounds(first, forced[0]).values() if noted["model"] == model]
    before = log.leaves[0].get("models-before")
    older = isinstance(before, list) and model in before
    need(made or older, "No round of the log after the request ends in this model: it was made without the log.")
    return Served(first, made[-1] if made else None, at)


def signer(log: LogCopy, answer: Any) -> tuple[Any, bool, str]:
    """The signed request in an answer, whether its client is shown to have signed it, and who did."""
    noted = parsed(base64.b64decode(answer["request"]["payload"], validate=True))
    agent = name(noted["agent-id"], "name of who asks")
    if agent == OPERATOR:
        return opened(answer["request"], REQUEST, log.keys, "request"), False, "the operator signed it, not the client"
    if (proof := answer.get("signer")) is None:  # an older log, whose roster commits to no keys
        return noted, False, "no roster in this log binds the client's key"
    key = public(proof["key"])
    entry, members = f"{key_id(key)} {agent}".encode(), log.leaves[proof["leaf"]]
    there = members["type"] == "roster" and 0 <= proof["leaf"] < answer["leaf"]
    there = there and climbed(leaf(entry), proof["place"], members["clients"], proof["path"]).hex() == members["keys"]
    need(there, f"No roster in the log before the request binds the key in the bundle to client {agent!r}.")
    asked = opened(answer["request"], REQUEST, [key], "request", "the client's key")
    return asked, True, f"client {agent!r} signed the request with the key {key_id(key)}"


def acknowledged(log: LogCopy, envelope: Any, request: Any) -> tuple[Any, bool, str]:
    """The operator's answer, whether the client is shown to have signed the request, and who did."""
    answer = opened(envelope, ACKNOWLEDGEMENT, log.keys, "acknowledgement")
    place, wanted = answer["leaf"], signed_digest(answer["request"])
    logged = place in log.about(request["id"], "request") and log.leaves[place]["sha256"] == wanted
    need(logged and answer["line"] == log.lines[place], "The log does not hold the request that was acknowledged.")
    given, sent = [log.leaves[n] for n in log.about(request["id"], "acknowledgement")], signed_digest(envelope)
    answered = any((one["sha256"], one["expected_by"]) == (sent, answer["expected_by"]) for one in given)
    need(answered, "The log does not hold this acknowledgement of the request.")
    log.holds(opened(answer["checkpoint"], CHECKPOINT, log.keys, "acknowledgement's checkpoint"), "the acknowledgement")
    asked, proven, who = signer(log, answer)
    need(asked["agent-request-id"] == request["id"], "The acknowledgement in the bundle is of another request.")
    to = asked["business-id"] == answer["business-id"] and answer["business-id"] in map(key_id, log.keys)
    need(to, "The request was addressed to another operator than the one who signed this evidence.")
    need(
        asked.get("log", log.end["origin"]) == log.end["origin"], "The request was signed for another federation's log."
    )
    (kind, scope), *more = asked["scope"].items()
    named = {"clients": request["clients"], "classes": request["classes"], "samples": []}[kind]
    kinds = {"clients": "client", "classes": "class", "samples": "instance"}
    same = not more and kinds[kind] == request["kind"]
    same = same and (scope["count"] == request["samples"] if kind == "samples" else scope == named)
    need(same, "The findings speak of other data than the signed request asks to delete.")
    received, issued = moment(answer["received-at"], "receipt"), moment(asked["issued-at"], "the signed request")
    until, noted = moment(asked["expires-at"], "the request's end"), moment(request["asked"], "the request")
    fits = log.leaves[place]["at"] == answer["received-at"] and answer["expected_by"] == month_later(received)
    need(fits, "The acknowledgement has other dates than the log, or is due later than in one month.")
    in_time = issued - AHEAD <= noted <= received <= until
    need(in_time, "The findings say another date of the request than was signed.")
    return answer, proven, who


def absent_since(log: LogCopy, found: Served, proof: Any) -> tuple[int, int | None]:
    """In how many later rounds a pseudonym took no part, and the round that was under way, if any."""
    who, rounds, under_way = bytes.fromhex(proof["pseudonym"]), log.rounds(found.first + 1, len(log.leaves)), None
    for place, noted in rounds.items():
        members, job = noted["participants"], (noted.get("request"), noted["method"])
        shown = absent(who, proof["absences"].get(members["root"]), members)
        own = found.made is not None and job == (found.made.get("request"), found.made["method"])
        if not shown and place == min(rounds) and not own:
            under_way = place
            continue
        need(shown, f"The bundle does not show that the leaver took no part in the round at leaf {place}.")
    return len([place for place in log.trained(found.first) if place != under_way]), under_way


def took_part(log: LogCopy, found: Served, proof: Any) -> int | None:
    """A round before the request in which a pseudonym took part, if the bundle shows one."""
    if (before := proof["before"]) is None:
        return None
    noted, member = log.leaves[before["leaf"]], leaf(bytes.fromhex(proof["pseudonym"]))
    shown = 0 <= before["leaf"] < found.first and noted["type"] == "round" and noted["round"] > 0
    members = noted["participants"]
    shown = shown and climbed(member, before["place"], members["size"], before["path"]).hex() == members["root"]
    need(shown, "The bundle does not show that the leaver took part before; ask for it again.")
    return int(before["leaf"])


def participation(log: LogCopy, found: Served, proofs: Any, request: Any, answer: Any) -> Iterator[tuple[bool, str]]:
    """Of each client that left: whether it is proven that it trained no more, in words."""
    names = [digest(one["pseudonym"], "pseudonym") for one in proofs]
    need(len(set(names)) == len(names), "Two clients have one pseudonym in the bundle; ask for it again.")
    for client, proof in zip(request["clients"], proofs, strict=True):
        bound = answer is None or answer["pseudonym"] in (None, proof["pseudonym"])
        need(bound, "The proof is about another client than was answered.")
        rounds, under_way = absent_since(log, found, proof)
        since = f"request (leaf {found.first})" if under_way is None else f"round under way at leaf {under_way}"
        name = f"Client {client!r}, under the pseudonym {proof['pseudonym'][:16]}…, trained"
        before = took_part(log, found, proof)
        noted = "" if before is None else f"; it trained before, in the round at leaf {before}"
        yield before is not None, f"{name} in none of the {rounds} rounds after its {since}{noted}."


def described(path: Path) -> tuple[str, str]:
    """A safetensors file's fingerprint and form: SHA-256 over the lines of its tensors, sorted by name.

    These are `SHA-256 of its bytes  its name` for the first, `F32 [3, 4]  its name` for the second.
    """
    try:
        need(path.is_file(), "it is no file, and a pipe would be waited for")
        with open(path, "rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little") & 0xFFFFFFF))
            begin, lines, forms, size = file.tell(), [], [], path.stat().st_size
            for name in sorted(set(header) - {"__metadata__"}):
                first, last = header[name]["data_offsets"]
                need(0 <= first <= last <= size - begin, "it ends too early")
                file.seek(begin + first)
                found = hashlib.sha256()
                for at in range(first, last, LARGEST):
                    found.update(file.read(min(LARGEST, last - at)))
                lines.append(f"{found.hexdigest()}  {name}\n")
                forms.append(f"{header[name]['dtype']} {json.dumps(header[name]['shape'])}  {name}\n")
    except (OSError, NotVerified, *MALFORMED) as error:
        raise NotVerified(f"The model {path} cannot be read as safetensors; give it as it was handed out.") from error
    return hashlib.sha256("".join(lines).encode()).hexdigest(), hashlib.sha256("".join(forms).encode()).hexdigest()


def checkpoint_in(log: bytes, keys: Sequence[Any]) -> dict[str, Any]:
    """The checkpoint that was kept, alone or in an acknowledgement."""
    try:
        kept = parsed(log)
        if kept["payloadType"] == ACKNOWLEDGEMENT:
            kept = opened(kept, ACKNOWLEDGEMENT, keys, "acknowledgement that you keep")["checkpoint"]
        kept = opened(kept, CHECKPOINT, keys, "checkpoint that you keep")
        moment(kept["at"], "the checkpoint that you keep")
        return {name: kept[name] for name in ("origin", "size", "root", "at")}
    except MALFORMED as error:
        raise NotVerified("What you keep is no checkpoint, or it is damaged; give the right file.") from error


# --- the bundle -------------------------------------------------------------------------------------------------------


def taken_out(request: Any) -> str:
    """What a request takes out, by its names or numbers; single samples are not named."""
    if request["kind"] not in ("client", "class"):
        return "single samples"
    named = request["clients"] if request["kind"] == "client" else request["classes"]
    return f"{request['kind']} " + ", ".join(str(one) for one in named)


def patterns(said: Any) -> None:
    """Refuse names, dates and texts that are not in their patterns, and dates in a wrong order."""
    findings, request = said["findings"], said["findings"]["request"]
    need(one_line(findings), "The findings hold a line break or a control character, so they are not read.")
    fits = re.fullmatch("[A-Za-z0-9][A-Za-z0-9._-]{0,79}", str(request["id"]))
    need(fits, "The request's id has other characters than ids have; ask for the evidence again.")
    for client in request["clients"]:
        name(client, "name of a client")
    need(all(type(one) is int for one in request["classes"]), "A class of the request is no number.")
    scope = {"client": request["clients"], "class": request["classes"], "instance": True}
    others = [kind for kind in ("client", "class") if scope[kind] and kind != request["kind"]]
    need(scope.get(request["kind"]) and not others, "The findings do not say plainly what the request takes out.")
    made, dates = moment(said["made"], "this evidence"), ("asked", "begun", "fulfilled")
    order = [moment(request[one], f"the request ({one})") for one in dates if request[one] is not None]
    need(len(order) >= 2 and sorted(order) == order, "The dates of the request are not in their order.")
    need(order[-1] <= made, "This evidence was signed before the request was fulfilled.")
    late = made <= datetime.now(UTC).replace(tzinfo=None) + timedelta(days=1)
    need(late, f"This evidence is dated {said['made']}, which is to come; check both clocks.")
    for one in findings["gate"].get("checks", []):
        number = isinstance(one["value"], (int, float)) and not isinstance(one["value"], bool)
        right = ("passed" if one["value"] <= one["bound"] + 1e-9 else "failed") if number else "not measured"
        purged = not number and "purged" in str(one["value"])  # the log has the verdict, and must say the same
        need(
            purged or one["verdict"] == right, "A check of the gate says another verdict than its value and bound give."
        )


def from_log(log: LogCopy, said: Any, model: str, found: Shown) -> Shown:
    """What the log adds: which model came into force, who asked, and who trained since."""
    request, answer, asked, who = said["findings"]["request"], None, False, "it came unsigned"
    need(log.at <= moment(said["made"], "this evidence"), "This evidence was signed before its log's checkpoint.")
    came = served(log, request, model, said["findings"]["gate"])
    where = f"{log.end['origin']!r}, signed on {log.end['at']} over {log.end['size']} leaves"
    proven = [f"The log ({where}) names this model as the one in force for it since {came.in_force}."]
    dates, refused = {"in force": came.in_force}, [log.leaves[n]["at"] for n in log.about(request["id"], "declined")]
    for at in refused:
        moment(at, "a refusal")
        dates["refused"] = at
        proven.append(f"The operator first refused this request, on {at}; it was served later.")
    for older in log.superseded(request["id"]):
        for at in [log.leaves[n]["at"] for n in log.about(older, "declined")]:
            dates["refused"] = min(dates.get("refused", at), moment(at, "a refusal").strftime(SECOND))
            proven.append(f"It takes the place of request {older!r}, which the operator refused on {at}.")
    if said["acknowledgement"] is not None:
        answer, asked, who = acknowledged(log, said["acknowledgement"], request)
        dates |= {"received": answer["received-at"], "expected_by": answer["expected_by"]}
        due = f"received on {dates['received']}, to be answered by {dates['expected_by']}"
        proven += [f"The operator acknowledged the request: {due}."] + (
            [f"{who[0].upper()}{who[1:]}."] if asked else []
        )
    elif log.about(request["id"], "request"):
        who = REQUEST_PURGED
        hidden = "The log holds a signed request, but the bundle does not; ask for it again."
        need(log.about(request["id"], "purge"), hidden)
    absent, why = False, "the log has no round before the request with this pseudonym"
    if came.made is None:
        why = "the model is older than the log"
    elif request["kind"] != "client":
        why = "the request is about rows, and the log says who trained, not on which rows"
    elif said["participation"] is None:
        why = "the bundle holds no proof of it; ask the operator why"
        why = PROOF_PURGED if log.about(request["id"], "purge") else why
    else:
        each = list(participation(log, came, said["participation"], request, answer))
        proven, absent = [*proven, *(noted for _, noted in each)], all(shown for shown, _ in each)
        why = f"{len(log.trained(came.first))} rounds" if absent else why
    return replace(found, proven=[*found.proven, *proven], asked=(asked, who), absent=(absent, why), dates=dates)


def the_model(model: Path, named: Any, form: Any) -> str:
    """That a file is the model of this evidence."""
    given, own = described(model)
    need(given != named.get("model before"), f"{model} is the model before the request, which still carries it.")
    need(given == named["model"], f"{model} is another model ({given}) than the one of this evidence.")
    need(form in (None, own), f"{model} is this evidence's model with other types or shapes: changed.")
    noted = "; of its types and shapes this evidence says nothing" if form is None else ""
    return f"{model} is the model that this evidence is about ({given}){noted}."


def shown(data: bytes, keys: Sequence[Any], kept_log: bytes | None, model: Path | None) -> Shown:
    statement = opened(parsed(data), BUNDLE, keys, "bundle")
    kind = statement["predicateType"] if statement["_type"] == STATEMENT else None
    need(kind in (PREDICATE, OLDER), "This is a signed statement, but no evidence of unfed; give the right file.")
    old = "This evidence was made by an older version of unfed, and its claims cannot be recomputed"
    need(kind == PREDICATE, f"{old}; ask the operator to make it again.")
    named = {one["name"]: digest(one["digest"]["sha256"], "subject") for one in statement["subject"]}
    said, kept = statement["predicate"], None
    models, request = said["findings"]["models"], said["findings"]["request"]
    same = models["after"] == named["model"] and models.get("before") == named.get("model before")
    need(same, "The bundle speaks of other models than it names as its subjects; ask for it again.")
    need(named["model"] != named.get("model before"), "Model and model before are one and the same in this evidence.")
    patterns(said)
    what = f"request {request['id']!r}, which takes out {taken_out(request)}"
    proven = [f"The operator signed this evidence of {what}, on {said['made']}; nothing in it was changed since."]
    none = (False, "this bundle holds no log")
    found = Shown(proven, [], none, none, {}, statement)
    if said["log"] is None:
        need(not (said["acknowledgement"] or said["participation"]), "This bundle holds proofs without their log.")
        need(kept_log is None, "This bundle holds no log, so no checkpoint can be held against it.")
    else:
        log = LogCopy(said["log"], keys)
        found = from_log(log, said, named["model"], found)
        if kept_log is not None:
            kept = checkpoint_in(kept_log, keys)
            log.holds(kept, "your checkpoint")
            grown = f"The log has grown from your checkpoint (of {kept['at']} over {kept['size']} leaves)."
            found.proven.append(grown)
    if model is not None:
        found.proven.append(the_model(model, named, models.get("form")))
    missing = [] if found.asked[0] else [f"Who asked: {found.asked[1]}."]
    missing += [] if found.absent[0] else [f"That the leaver trained in no later round: {found.absent[1]}."]
    return replace(found, not_shown=[*NOT_SHOWN, *missing])


def verify(data: bytes, keys: Sequence[str], log: bytes | None = None, model: Path | None = None) -> Shown:
    """What a bundle shows under the operator's public keys (PEM); else NotVerified."""
    try:
        known = [public(pem) for pem in keys]
    except (ValueError, UnsupportedAlgorithm) as error:
        raise NotVerified("The key is no public key in PEM; give the operator's .pub file.") from error
    try:
        return shown(data, known, log, model)
    except MALFORMED as error:
        raise NotVerified("This is no bundle of evidence, or it is damaged; ask for it again.") from error


def read(path: Path) -> bytes:
    """A file, or what a shell hands over; other pipes would block."""
    need(path.is_file() or str(path).startswith(("/dev/fd/", "/dev/stdin")), f"There is no file {path}; give one.")
    with open(path, "rb") as file:
        return file.read(LARGEST + 1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--key", type=Path, action="append", required=True, help="the operator's public key")
    parser.add_argument("--log", type=Path, help="a checkpoint, or an acknowledgement, that you kept")
    parser.add_argument("--model", type=Path, help="the model, a safetensors file")
    given = parser.parse_args()
    try:
        keys, log = [read(path).decode(errors="replace") for path in given.key], given.log and read(given.log)
        found = verify(read(given.bundle), keys, log, given.model)
    except (OSError, ValueError, NotVerified) as error:
        print(f"not verified: {error}", file=sys.stderr)
        return 2
    print("Proven:", *(one if one.isprintable() else ascii(one) for one in found.proven), sep="\n  - ")
    print("\nNot shown:", *found.not_shown, sep="\n  - ")
    findings = found.statement["predicate"]["findings"]
    print("\nAll else is the operator's word:", json.dumps(findings, indent=1), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
