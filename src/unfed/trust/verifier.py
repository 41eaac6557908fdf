"""Checks an evidence bundle of unfed, on its own: one file, Python 3.11 and `cryptography`.

    python verifier.py BUNDLE --key operator.pub [--log CHECKPOINT] [--model FILE]

It says what is proven (by signatures and hashes), what is measured (by the operator, on his word), and what is neither.
Exit code 0 if everything that can be checked holds, 2 with one sentence if not. It is evidence, not a guarantee: a
server that lies, and never writes a round into its log, is outside what this can show.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

STATEMENT, PREDICATE = "https://in-toto.io/Statement/v1", "urn:unfed:evidence:1"
BUNDLE, CHECKPOINT = "application/vnd.in-toto+json", "application/vnd.unfed.checkpoint+json"
ACKNOWLEDGEMENT = "application/vnd.unfed.acknowledgement+json"
LARGEST = 64 << 20  # bytes of a file that is read


class NotVerified(ValueError):
    """Something does not hold; the message is one sentence."""


@dataclass
class Verdict:
    """What a bundle shows, in sentences."""

    proven: list[str]
    measured: list[str]
    neither: list[str]
    statement: dict[str, Any]


def verify(data: bytes, keys: Sequence[str], log: bytes | None = None, model: Path | None = None) -> Verdict:
    """What a bundle shows under the operator's public keys (PEM); NotVerified where something fails."""
    try:
        return _verify(data, [_public(pem) for pem in keys], log, model)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError, OverflowError) as error:
        if isinstance(error, NotVerified):
            raise
        raise NotVerified("This is no bundle of evidence, or it is damaged; ask for it again.") from error


def _verify(data: bytes, keys: Sequence[Ed25519PublicKey], log: bytes | None, model: Path | None) -> Verdict:
    statement = _opened(_json(data), BUNDLE, keys, "bundle")
    if statement["_type"] != STATEMENT or statement["predicateType"] != PREDICATE:
        raise NotVerified("This is a signed statement, but no evidence of unfed; give the right file.")
    subjects = {one["name"]: one["digest"]["sha256"] for one in statement["subject"]}
    said, found, request = (own := statement["predicate"]), own["findings"], own["findings"]["request"]
    if found["models"]["after"] != subjects["model"] or found["models"].get("before") != subjects.get("model before"):
        raise NotVerified("The bundle speaks of other models than it names as its subjects; ask for it again.")
    proven = [f"The operator signed this evidence on {said['made']}, and nothing in it was changed since."]
    neither, answer = [str(one) for one in found["neither"]], None
    if said["acknowledgement"] is None:
        neither.append("That the leaver signed the request: it was filed by the operator.")
    else:
        answer = _opened(said["acknowledgement"], ACKNOWLEDGEMENT, keys, "acknowledgement")
        if _json(base64.b64decode(answer["request"]["payload"]))["agent-request-id"] != request["id"]:
            raise NotVerified("The acknowledgement in the bundle is of another request; ask for the bundle again.")
        dates = f"received on {answer['received-at']}, to be answered by {answer['expected_by']}"
        proven.append(f"The operator acknowledged request {request['id']!r}: {dates}.")
    if any(proof.get("before") is None for proof in said["participation"] or []):
        neither.append("That the pseudonym is one that ever took part: the log has no round of it before the request.")
    for client, proof in zip(request["clients"], said["participation"] or [], strict=said["participation"] is not None):
        proven += _participation(client, proof, answer, subjects["model"], keys, log)
    if not said["participation"]:
        neither.append(f"Who took part in the rounds: {said['no_participation']}.")
        if log is not None:
            raise NotVerified("This bundle proves nothing about a log, so no checkpoint can be held against it.")
    if request["kind"] != "client":
        neither.append("Which rows were read: the log says who took part in a round, and nothing about rows.")
    if model is not None:
        proven.append(_same_model(model, subjects))
    measured = [_told(one) for one in found["measured"].values() if not isinstance(one["value"], str)]
    for one in [one for one in found["gate"].get("checks", []) if not isinstance(one["value"], str)]:
        value = f"{one['what']}: {_number(one['value'])}, bound {_number(one['bound'])}"
        measured.append(f"Gate, {one['name']}: {one['verdict']} ({value}).")
    return Verdict(proven, measured, neither + [f"Not measured: {one}." for one in found["not_measured"]], statement)


def _participation(
    client: str, proof: Any, answer: Any, model: str, keys: Sequence[Ed25519PublicKey], log: bytes | None
) -> Iterator[str]:
    """That the leaver's pseudonym is in no round between a leaf of the log and a signed checkpoint."""
    end, after = _opened(proof["checkpoint"], CHECKPOINT, keys, "checkpoint"), int(proof["after"])
    lines, absences = [text.encode() for text in proof["leaves"]], {one["leaf"]: one for one in proof["absences"]}
    roots = _roots(after + 1, [bytes.fromhex(one) for one in proof["frontier"]], lines)
    if (max(roots), roots[max(roots)]) != (end["size"], end["root"]):
        raise NotVerified("Leaves of the log are missing or changed in the bundle; ask for it again.")
    kept = None if log is None else _kept(_json(log), keys)
    given = None if answer is None else _opened(answer["checkpoint"], CHECKPOINT, keys, "acknowledgement's checkpoint")
    if kept is not None and kept["size"] not in roots:
        shown = f"the bundle shows the log of {min(roots)} to {max(roots)} leaves"
        raise NotVerified(f"Your checkpoint is over {kept['size']} leaves and cannot be compared: {shown}.")
    for one, whose in ((kept, "your checkpoint"), (given, "the acknowledgement's checkpoint")):
        if (
            one is not None
            and one["size"] in roots
            and (one["origin"], one["root"]) != (end["origin"], roots[one["size"]])
        ):
            raise NotVerified(f"The log is not the one that {whose} was signed over: it was rewritten.")
    if answer is not None and answer["pseudonym"] not in (None, proof["pseudonym"]):
        raise NotVerified("The proof is about another client than the acknowledgement names; ask for the bundle again.")
    leaves, trained = [_json(line) for line in lines], 0
    for place, leaf in enumerate(leaves, after + 1):
        if leaf["type"] == "round":
            trained += leaf["round"] > 0  # 0 is the model as the method begins with it
            if not _absent(bytes.fromhex(proof["pseudonym"]), absences.get(place), leaf["participants"]):
                what = f"that the leaver was asked for nothing in the round at leaf {place}"
                raise NotVerified(f"The bundle does not show {what}; ask for it again.")
    who = f"Client {client}, under the pseudonym {proof['pseudonym'][:16]}…,"
    gap = "" if answer is None or after <= answer["leaf"] else f" (its request is leaf {answer['leaf']}; not before)"
    where = f"the log {end['origin']!r} up to its checkpoint of {end['at']} over {end['size']} leaves"
    yield f"{who} was asked to train in none of the {trained} rounds after leaf {after}{gap} of {where}."
    if (before := proof.get("before")) is not None:
        _took_part(bytes.fromhex(proof["pseudonym"]), before, after, end)
        yield f"That pseudonym was asked to train before, in the round at leaf {before['leaf']}, so it is not made up."
    came = [leaf["at"] for leaf in leaves if leaf["type"] == "in-force" and leaf.get("model") == model]
    yield from [f"That log says that this model came into force on {came[0]}."] if came else []
    if kept is not None:
        yield f"That log has grown from the checkpoint that you keep (of {kept['at']} over {kept['size']} leaves)."


def _kept(raw: Any, keys: Sequence[Ed25519PublicKey]) -> Any:
    """A checkpoint that somebody keeps, alone or in an acknowledgement."""
    if raw["payloadType"] == ACKNOWLEDGEMENT:
        raw = _opened(raw, ACKNOWLEDGEMENT, keys, "acknowledgement that you keep")["checkpoint"]
    return _opened(raw, CHECKPOINT, keys, "checkpoint that you keep")


def _took_part(member: bytes, before: Any, after: int, end: Any) -> None:
    """That a round before a leaf of the log has this member in its sorted tree."""
    line, top = before["line"].encode(), bytes.fromhex(end["root"])
    path, inner = ([bytes.fromhex(one) for one in before[name]] for name in ("inclusion", "path"))
    leaf = _json(line)
    holds = before["leaf"] < after and leaf["type"] == "round" and leaf["round"] > 0
    holds = holds and _included(_hash(b"\x00", line), before["leaf"], end["size"], path, top)
    size, root = leaf["participants"]["size"], bytes.fromhex(leaf["participants"]["root"])
    if not (holds and _included(_hash(b"\x00", member), before["place"], size, inner, root)):
        raise NotVerified("The bundle does not show that the leaver took part before; ask for it again.")


def _absent(stranger: bytes, proof: Any, members: Any) -> bool:
    """Whether the neighbours in a sorted tree stand side by side, with the stranger between them."""
    size, top = members["size"], bytes.fromhex(members["root"])
    if proof is None or proof["size"] != size:
        return False
    sides = [(i, bytes.fromhex(d), [bytes.fromhex(h) for h in path]) for i, d, path in proof["neighbours"]]
    if size == 0:
        return not sides and top == hashlib.sha256().digest()
    if not all(_included(_hash(b"\x00", d), i, size, path, top) for i, d, path in sides):
        return False
    if len(sides) == 2:
        return bool(sides[1][0] == sides[0][0] + 1 and sides[0][1] < stranger < sides[1][1])
    ((place, one, _),) = sides
    return bool((place == 0 and stranger < one) or (place == size - 1 and stranger > one))


def _included(found: bytes, index: int, size: int, path: Sequence[bytes], top: bytes) -> bool:
    """RFC 9162, 2.1.3.2."""
    first, last = index, size - 1
    if not 0 <= first <= last:
        return False
    for sibling in path:
        if last == 0:
            return False
        if first & 1 or first == last:
            found = _hash(b"\x01", sibling, found)
            while not first & 1 and first:
                first, last = first >> 1, last >> 1
        else:
            found = _hash(b"\x01", found, sibling)
        first, last = first >> 1, last >> 1
    return last == 0 and found == top


def _roots(size: int, peaks: list[bytes], lines: Sequence[bytes]) -> dict[int, str]:
    """The root of the log at each size, from its full subtrees at the first and the leaves after it."""
    if size < 1 or len(peaks) != size.bit_count():
        raise NotVerified("The beginning of the log does not fit its length; ask for the bundle again.")
    found = {size: _root(peaks)}
    for line in lines:
        peaks, merges, size = [*peaks, _hash(b"\x00", line)], size, size + 1
        while merges & 1:  # two full subtrees of one size are a full subtree
            peaks[-2:], merges = [_hash(b"\x01", peaks[-2], peaks[-1])], merges >> 1
        found[size] = _root(peaks)
    return found


def _root(peaks: Sequence[bytes]) -> str:
    found = peaks[-1]
    for peak in reversed(peaks[:-1]):
        found = _hash(b"\x01", peak, found)
    return found.hex()


def _hash(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(parts)).digest()


def fingerprint(path: Path) -> str:
    """SHA-256 over the sorted lines `SHA-256 of a tensor's bytes  its name` of a safetensors file."""
    try:
        with open(path, "rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little") & 0xFFFFFFF))
            begin, lines = file.tell(), []
            for name in sorted(set(header) - {"__metadata__"}):
                first, last = header[name]["data_offsets"]
                file.seek(begin + first)
                tensor = file.read(last - first)
                if len(tensor) != last - first:
                    raise ValueError("it ends too early")
                lines.append(f"{hashlib.sha256(tensor).hexdigest()}  {name}\n")
    except (OSError, ValueError, KeyError, TypeError, RecursionError, AttributeError, OverflowError) as error:
        raise NotVerified(
            f"The model {path} cannot be read as safetensors; give the file as it was handed out."
        ) from error
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _same_model(path: Path, subjects: dict[str, str]) -> str:
    found = fingerprint(path)
    if found == subjects["model"]:
        return f"{path} is the model that this evidence is about ({found})."
    if found == subjects.get("model before"):
        raise NotVerified(
            f"{path} is the model before the request, which still carries what was to leave; use the new one."
        )
    raise NotVerified(f"{path} is another model ({found}) than the one of this evidence ({subjects['model']}).")


def _told(one: Any) -> str:
    spread = one["interval"]
    between = (
        f", 95 % interval {spread[0]:.2f} to {spread[1]:.2f} over {one['rows']} rows"
        if isinstance(spread, list)
        else ""
    )
    return f"{one['what']}: {_number(one['value'])}{between}."


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, (int, float)) else str(value)


def _opened(envelope: Any, kind: str, keys: Sequence[Ed25519PublicKey], what: str) -> Any:
    """What is inside a DSSE envelope of this type, if one of the keys signed it."""
    payload, named = base64.b64decode(envelope["payload"], validate=True), str(envelope["payloadType"]).encode()
    if envelope["payloadType"] != kind:
        raise NotVerified(
            f"The {what} is of the type {envelope['payloadType'][:80]!r}, not {kind!r}; give the right file."
        )
    signed = b"DSSEv1 %d %s %d %s" % (len(named), named, len(payload), payload)
    for one in envelope["signatures"]:
        for key in keys:
            try:
                key.verify(base64.b64decode(one["sig"], validate=True), signed)
                return _json(payload)
            except InvalidSignature:
                continue
    raise NotVerified(f"The {what} is not signed by a key that you gave, or it was changed after it was signed.")


def _json(data: bytes) -> Any:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(found := dict(pairs)) != len(pairs):
            raise ValueError("something is named twice")
        return found

    if len(data) > LARGEST:
        raise NotVerified(f"The file has more than {LARGEST >> 20} MiB; a bundle is smaller.")
    return json.loads(data, object_pairs_hook=once)


def _public(pem: str) -> Ed25519PublicKey:
    try:
        key = serialization.load_pem_public_key(pem.encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise NotVerified("The key is no public key in PEM; give the operator's .pub file.") from error
    if not isinstance(key, Ed25519PublicKey):
        raise NotVerified("The key is not for Ed25519; give the operator's .pub file.")
    return key


def told(verdict: Verdict) -> str:
    """A verdict in plain words; control characters that somebody signed do not reach a terminal."""
    parts = {"Proven": verdict.proven, "Measured, on the operator's word": verdict.measured}
    parts |= {"Neither proven nor measured": verdict.neither}
    text = "\n\n".join("\n".join([f"{title}:", *(f"  - {one}" for one in said)]) for title, said in parts.items())
    return "".join(letter if letter.isprintable() or letter == "\n" else "\ufffd" for letter in text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument(
        "--key", type=Path, action="append", required=True, help="the operator's public key; repeatable"
    )
    parser.add_argument("--log", type=Path, help="a checkpoint, or an acknowledgement, that you kept")
    parser.add_argument("--model", type=Path, help="the model, a safetensors file")
    given = parser.parse_args()
    try:
        keys, log = [path.read_text() for path in given.key], given.log and given.log.read_bytes()
        print(told(verify(given.bundle.read_bytes(), keys, log, given.model)))
    except (OSError, ValueError) as error:
        print(f"not verified: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
