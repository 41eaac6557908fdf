"""Checks an evidence bundle of unfed, on its own: one file, Python 3.11 and `cryptography`.

    python verifier.py BUNDLE --key operator.pub [--log CHECKPOINT] [--model FILE]

It prints what is proven, by signatures and hashes, and then what the operator says, on his word. Exit code 0 if all
that can be checked holds, 2 with one sentence if not. It is evidence, not a guarantee: a server that lies, and never
writes a round into its log, is outside what this can show.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

STATEMENT, PREDICATE = "https://in-toto.io/Statement/v1", "urn:unfed:evidence:1"
BUNDLE, CHECKPOINT = "application/vnd.in-toto+json", "application/vnd.unfed.checkpoint+json"
ACKNOWLEDGEMENT = "application/vnd.unfed.acknowledgement+json"
LARGEST = 64 << 20  # bytes of a file that is read
MALFORMED = (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError, OverflowError)


class NotVerified(Exception):
    """Something does not hold; the message is one sentence."""


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


def opened(envelope: Any, kind: str, keys: Sequence[Ed25519PublicKey], what: str) -> Any:
    """What is inside a DSSE envelope of this type, if one of the keys signed it."""
    said, payload = str(envelope["payloadType"]), base64.b64decode(envelope["payload"], validate=True)
    need(said == kind, f"The {what} is of the type {said[:80]!r}, not {kind!r}; give the right file.")
    signed = b"DSSEv1 %d %s %d %s" % (len(said.encode()), said.encode(), len(payload), payload)
    for one in envelope["signatures"]:
        for key in keys:
            try:
                key.verify(base64.b64decode(one["sig"], validate=True), signed)
                return parsed(payload)
            except InvalidSignature:
                continue
    raise NotVerified(f"The {what} is not signed by a key that you gave, or it was changed after it was signed.")


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


def roots(size: int, peaks: list[bytes], lines: Sequence[bytes]) -> dict[int, str]:
    """The root of the log at each size, from its full subtrees at the first and the leaves after it."""
    need(size >= 1 and len(peaks) == size.bit_count(), "The beginning of the log does not fit its length.")
    found = {size: joined(peaks)}
    for line in lines:
        peaks, full, size = [*peaks, leaf(line)], size, size + 1
        while full & 1:  # two full subtrees of one size are a full subtree
            peaks, full = [*peaks[:-2], node(peaks[-2], peaks[-1])], full >> 1
        found[size] = joined(peaks)
    return found


def joined(peaks: Sequence[bytes]) -> str:
    return (peaks[0] if len(peaks) == 1 else node(peaks[0], bytes.fromhex(joined(peaks[1:])))).hex()


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


def took_part(member: bytes, before: Any, end: Any) -> bool:
    """Whether a round of the log has this member in its sorted tree."""
    line, told = before["line"].encode(), parsed(before["line"].encode())
    members = told["participants"]
    in_log = climbed(leaf(line), before["leaf"], end["size"], before["inclusion"]).hex() == end["root"]
    in_round = climbed(leaf(member), before["place"], members["size"], before["path"]).hex() == members["root"]
    return bool(told["type"] == "round" and told["round"] > 0 and in_log and in_round)


def participation(client: str, proof: Any, answer: Any, model: str, kept: Any, keys: Any) -> Iterator[str]:
    """That the leaver's pseudonym is in no round between a leaf of the log and a signed checkpoint."""
    end, after = opened(proof["checkpoint"], CHECKPOINT, keys, "checkpoint"), int(proof["after"])
    lines, who = [text.encode() for text in proof["leaves"]], bytes.fromhex(proof["pseudonym"])
    known = roots(after + 1, [bytes.fromhex(one) for one in proof["frontier"]], lines)
    last = max(known)
    need((last, known[last]) == (end["size"], end["root"]), "Leaves of the log are missing or changed in the bundle.")
    given = None
    if answer is not None:
        need(answer["pseudonym"] in (None, proof["pseudonym"]), "The proof is about another client than was answered.")
        given = opened(answer["checkpoint"], CHECKPOINT, keys, "acknowledgement's checkpoint")
    if kept is not None:
        over = f"Your checkpoint is over {kept['size']} leaves and cannot be compared"
        need(kept["size"] in known, f"{over}: the bundle shows the log of {min(known)} to {last} leaves.")
    for one, whose in ((kept, "your checkpoint"), (given, "the acknowledgement's checkpoint")):
        if one is not None and one["size"] in known:
            same = (one["origin"], one["root"]) == (end["origin"], known[one["size"]])
            need(same, f"The log is not the one that {whose} was signed over: it was rewritten.")
    absences, leaves, trained = {one["leaf"]: one for one in proof["absences"]}, [parsed(line) for line in lines], 0
    for place, told in enumerate(leaves, after + 1):
        if told["type"] == "round":
            trained += told["round"] > 0  # 0 is the model as the method begins with it
            what = f"that the leaver was asked for nothing in the round at leaf {place}"
            need(absent(who, absences.get(place), told["participants"]), f"The bundle does not show {what}.")
    gap = "" if answer is None or after <= answer["leaf"] else f" (its request is leaf {answer['leaf']}; not before)"
    where = f"the log {end['origin']!r} up to its checkpoint of {end['at']} over {end['size']} leaves"
    name = f"Client {client}, under the pseudonym {proof['pseudonym'][:16]}…,"
    yield f"{name} was asked to train in none of the {trained} rounds after leaf {after}{gap} of {where}."
    if (before := proof.get("before")) is not None:
        shown = before["leaf"] < after and took_part(who, before, end)
        need(shown, "The bundle does not show that the leaver took part before; ask for it again.")
        yield f"That pseudonym was asked to train before, in the round at leaf {before['leaf']}, so it is not made up."
    came = [told["at"] for told in leaves if told["type"] == "in-force" and told.get("model") == model]
    yield from [f"That log says that this model came into force on {came[0]}."] if came else []
    if kept is not None:
        yield f"That log has grown from the checkpoint that you keep (of {kept['at']} over {kept['size']} leaves)."


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
    """The checkpoint that somebody kept, alone or in an acknowledgement."""
    try:
        kept = parsed(log)
        if kept["payloadType"] == ACKNOWLEDGEMENT:
            kept = opened(kept, ACKNOWLEDGEMENT, keys, "acknowledgement that you keep")["checkpoint"]
        kept = opened(kept, CHECKPOINT, keys, "checkpoint that you keep")
        return {name: kept[name] for name in ("origin", "size", "root", "at")}
    except MALFORMED as error:
        raise NotVerified("What you keep is no checkpoint, or it is damaged; give the right file.") from error


def taken_out(request: Any) -> str:
    """What a request takes out, by its names or numbers; single samples are not named."""
    if request["kind"] not in ("client", "class"):
        return "single samples"
    named = request["clients"] if request["kind"] == "client" else request["classes"]
    return f"{request['kind']} " + ", ".join(str(one) for one in named)


def proven(data: bytes, keys: Sequence[Any], log: bytes | None, model: Path | None) -> tuple[list[str], dict[str, Any]]:
    statement = opened(parsed(data), BUNDLE, keys, "bundle")
    ours = statement["_type"] == STATEMENT and statement["predicateType"] == PREDICATE
    need(ours, "This is a signed statement, but no evidence of unfed; give the right file.")
    named, said = {one["name"]: one["digest"]["sha256"] for one in statement["subject"]}, statement["predicate"]
    models, request, answer = said["findings"]["models"], said["findings"]["request"], None
    same = models["after"] == named["model"] and models.get("before") == named.get("model before")
    need(same, "The bundle speaks of other models than it names as its subjects; ask for it again.")
    about = f"request {request['id']!r}, which takes out {taken_out(request)},"
    found = [f"The operator signed this evidence of {about} on {said['made']}, and nothing in it was changed since."]
    if said["acknowledgement"] is not None:
        answer = opened(said["acknowledgement"], ACKNOWLEDGEMENT, keys, "acknowledgement")
        asked = parsed(base64.b64decode(answer["request"]["payload"]))["agent-request-id"]
        need(asked == request["id"], "The acknowledgement in the bundle is of another request; ask for it again.")
        dates = f"received on {answer['received-at']}, to be answered by {answer['expected_by']}"
        found.append(f"The operator acknowledged request {asked!r}: {dates}.")
    proofs, kept = said["participation"] or [], None
    if log is not None:
        need(proofs, "This bundle proves nothing about a log, so no checkpoint can be held against it.")
        kept = checkpoint_in(log, keys)
    for client, proof in zip(request["clients"], proofs, strict=bool(proofs)):
        found += participation(client, proof, answer, named["model"], kept, keys)
    if model is not None:
        given, form = described(model)
        need(given != named.get("model before"), f"{model} is the model before the request, which still carries it.")
        need(given == named["model"], f"{model} is another model ({given}) than the one of this evidence.")
        need(form == models.get("form", form), f"{model} is this evidence's model with other types or shapes: changed.")
        told = "" if "form" in models else "; of its types and shapes this evidence says nothing"
        found.append(f"{model} is the model that this evidence is about ({given}){told}.")
    return found, statement


def verify(
    data: bytes, keys: Sequence[str], log: bytes | None = None, model: Path | None = None
) -> tuple[list[str], dict[str, Any]]:
    """What is proven under the operator's public keys (PEM), and the whole statement; else NotVerified."""
    try:
        known = [serialization.load_pem_public_key(pem.encode()) for pem in keys]
        need(all(isinstance(key, Ed25519PublicKey) for key in known), "A key is not for Ed25519; give the .pub file.")
    except (ValueError, UnsupportedAlgorithm) as error:
        raise NotVerified("The key is no public key in PEM; give the operator's .pub file.") from error
    try:
        return proven(data, known, log, model)
    except MALFORMED as error:
        raise NotVerified("This is no bundle of evidence, or it is damaged; ask for it again.") from error


def read(path: Path) -> bytes:
    """A file that somebody names, or what a shell hands over; other pipes would be waited for."""
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
        found, statement = verify(read(given.bundle), keys, log, given.model)
    except (OSError, ValueError, NotVerified) as error:
        print(f"not verified: {error}", file=sys.stderr)
        return 2
    print("Proven:", *(one if one.isprintable() else ascii(one) for one in found), sep="\n  - ")
    print("\nAll else is the operator's word:", json.dumps(statement["predicate"]["findings"], indent=1), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
