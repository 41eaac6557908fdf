"""What an earlier unlearning, by its evidence, turned in the arrays that the next one begins with.

    negate "w" ─► rounds ─► negate "w" ─► as it was: who left first is back

Evidence has, under `turned`, the arrays that a perturbation which is its own inverse has changed so far. Whoever hands
it on, by `deny=DIR`, is refused such a perturbation of the same arrays.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from unfed.errors import UnfedError, listed
from unfed.flower.leaving import class_words
from unfed.folder.foreign import FILE, evidence

log = logging.getLogger("flwr")


def turned(deny: str | Path | None, begun: str, now: Iterable[str]) -> list[str]:
    """Every array that is turned once `now` are turned as well; refused where that would turn one back.

    `begun`: the digest of the arrays that are begun with. Where they are of no round of the unlearning before, they may
    be of a later training or of a model that was trained anew, and the log says what follows in the first case.
    """
    now = sorted(now)
    if deny is None or not (Path(deny) / FILE).is_file():
        if now:
            log.info("unfed: taken as the first request on these arrays; a second one needs deny= with its evidence")
        return now
    kept = evidence(Path(deny))
    arrays = kept["arrays"]
    before = set(kept.get("turned", arrays.get("changed", [])))
    anew = begun == arrays["before"]
    if anew:
        before -= {*arrays.get("changed", [])}
    if again := sorted(before & {*now}):
        seen = anew or begun in (line["arrays"] for line in kept["rounds"])
        left = [*kept["forgotten"], *(class_words(n) for n in kept.get("classes", ()))]
        _refuse(deny, left, again, seen)
    return sorted({*before, *now})


def _refuse(deny: str | Path, left: Iterable[str], again: list[str], seen: bool) -> None:
    """The sentence for arrays that were seen on the way of that unlearning, and a warning for others."""
    names = listed([repr(name) for name in again[:3]] + ([f"{len(again) - 3} more"] if len(again) > 3 else []), "and")
    who = listed(left, "and") or "its leaver"
    back = f"changing {names} in the same way once more turns that back, and brings {who} back"
    if not seen:
        log.warning("unfed: if these arrays come from the unlearning in %s, %s", deny, back)
        return
    raise UnfedError(
        f"These arrays were unlearned before, says {deny}: {back}; perturb other layers (negate(Net(), layers=[…])), or"
        " begin with the arrays from before that, where deny keeps its leaver out as well."
    )
