"""Tries claims one after another and writes each down at once: what was tried is not tried again.

OUT/CLAIM.json     the verdict, the numbers, the figures as numbers          OUT/CLAIM-1.svg …   the figures
OUT/theory.json    every verdict of this folder in one record                OUT/theory.html     the page
OUT/models/        trained models, for whatever comes next
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field

import unfed
from unfed import records, storage
from unfed.errors import UnfedError, listed, nearest
from unfed.paper import pictures
from unfed.paper.claims import cka_and_spectra, distances, gradients, layers, times
from unfed.paper.claims.claim import Claim, Drawing, Finding
from unfed.paper.claims.scene import FULL, QUICK, ClaimScene
from unfed.paper.pictures import Curve, PaperFigure
from unfed.records import Count, JsonRecord, Number, Whole
from unfed.report import html
from unfed.report.wording import date_text
from unfed.requests.entry import now

CLAIMS: dict[str, Claim] = {
    claim.id: claim for room in (times, distances, gradients, layers, cka_and_spectra) for claim in room.CLAIMS
}
SCHEMA = 1
AGAIN = "delete it, and the claim is tried again"
Told = Callable[[str], object]


class AboutClaims(JsonRecord):
    """By which seed and effort a folder of claims was made."""

    number: Count = Field(alias="schema")
    seed: Whole
    quick: bool


class KeptTrial(JsonRecord):
    """A claim's file."""

    finding: Finding
    seconds: Annotated[Number, Field(ge=0)]
    when: str


@dataclass(frozen=True)
class Tried:
    """A claim with what was found, and how long that took."""

    claim: Claim
    finding: Finding
    seconds: float
    when: str

    def to_json(self) -> dict[str, Any]:
        return {"seconds": self.seconds, "when": self.when, "finding": self.finding.to_json()}


def chosen(names: Sequence[str]) -> list[Claim]:
    """The claims of these names, in order; without a name, all of them."""
    for name in names:
        if name not in CLAIMS:
            raise UnfedError(f"There is no claim {name!r}; choose {listed(CLAIMS)}.{nearest(name, CLAIMS)}")
    return [claim for name, claim in CLAIMS.items() if not names or name in names]


def make(
    claims: Sequence[Claim], out: str | Path, told: Told, *, seed: int = 0, quick: bool = False
) -> tuple[Path, list[Tried]]:
    """Try these claims; the page shows them with whatever was tried here before."""
    folder = Path(out)
    about = {"schema": SCHEMA, "seed": seed, "quick": quick}
    _refuse_other(folder, about)
    scene = ClaimScene(folder, seed, QUICK if quick else FULL)
    storage.write_json(folder / "about.json", about)
    drawn: dict[str, list[PaperFigure]] = {}
    for number, claim in enumerate(claims, 1):
        if _read(folder, claim) is None:
            told(f"[{number}/{len(claims)}] {claim.place}: {claim.says}")
            began = time.process_time()
            finding = claim.attempt(scene)
            tried = Tried(claim, finding, round(time.process_time() - began, 1), now())
            drawn[claim.id] = [picture_of(drawing) for drawing in finding.drawings]
            _write_pictures(folder, claim, drawn[claim.id])
            storage.write_json(folder / f"{claim.id}.json", tried.to_json())
        else:
            told(f"[{number}/{len(claims)}] {claim.place}: tried before")
        _write_page(folder, about, drawn)
    return folder / "theory.html", [one for claim in claims if (one := _read(folder, claim)) is not None]


def _refuse_other(folder: Path, about: dict[str, Any]) -> None:
    """A folder holds one seed and one effort, or its verdicts could not be read side by side."""
    if folder.exists() and not folder.is_dir():
        raise UnfedError(f"{folder} is a file; give --out a folder.")
    kept = folder / "about.json"
    if kept.exists():
        if _about(folder) != about:
            raise UnfedError(f"{folder} was made with another seed or effort; give --out another folder.")
    elif folder.exists() and any(folder.iterdir()):
        raise UnfedError(f"{folder} is no folder of claims and not empty; give --out another one.")


def _about(folder: Path) -> dict[str, Any]:
    path = folder / "about.json"
    return records.read(AboutClaims, storage.read_json(path, "record of claims"), str(path)).to_json()


def _read(folder: Path, claim: Claim) -> Tried | None:
    place = folder / f"{claim.id}.json"
    if not place.exists():
        return None
    kept = records.read(KeptTrial, storage.read_json(place, "finding"), str(place), AGAIN)
    return Tried(claim, kept.finding, kept.seconds, kept.when)


def _write_pictures(folder: Path, claim: Claim, drawn: Sequence[PaperFigure]) -> None:
    for number, picture in enumerate(drawn, 1):
        if picture.svg is not None:
            storage.write_bytes(folder / f"{claim.id}-{number}.svg", picture.file().encode())


def picture_of(drawing: Drawing) -> PaperFigure:
    """The figure that these numbers make."""
    if drawing.bars:
        series = {name: [(str(x), y) for x, y in points] for name, points in drawing.lines.items()}
        return pictures.groups(series, drawing.up, drawing.across, item=drawing.title)
    lines = [Curve(name, points) for name, points in drawing.lines.items()]
    return pictures.curves(lines, drawing.title, drawing.across, drawing.up, item="theory")


def record(folder: Path) -> dict[str, Any]:
    """Every verdict of a folder, with what is needed to make it again."""
    about = _about(folder)
    tried = [one for claim in CLAIMS.values() if (one := _read(folder, claim)) is not None]
    command = "unfed theory" + (f" --seed {about['seed']}" if about["seed"] else "") + (" --quick" * about["quick"])
    return {
        **about,
        "command": command,
        "date": max((one.when for one in tried), default="")[:10],
        "hardware": f"{torch.get_num_threads()} thread, {platform.machine()}",
        "versions": {"unfed": unfed.__version__, "torch": torch.__version__},
        "seconds": round(sum(one.seconds for one in tried), 1),
        "claims": [
            {
                "id": one.claim.id,
                "place": one.claim.place,
                "says": one.claim.says,
                "verdict": one.finding.told,
                "seen": one.finding.seen,
                "seconds": one.seconds,
            }
            for one in tried
        ],
    }


def _write_page(folder: Path, about: dict[str, Any], drawn: dict[str, list[PaperFigure]]) -> None:
    """The page of everything that was tried here; what is drawn already is not drawn again."""
    kept = record(folder)
    storage.write_json(folder / "theory.json", kept)
    tried = [one for claim in CLAIMS.values() if (one := _read(folder, claim)) is not None]
    for one in tried:
        if one.claim.id not in drawn:
            drawn[one.claim.id] = [picture_of(drawing) for drawing in one.finding.drawings]
    page = html.page(
        "theory.html.j2",
        title="The paper's claims",
        command=kept["command"],
        when=date_text(now()),
        facts=[
            ("Hardware", kept["hardware"]),
            ("CPU seconds", str(kept["seconds"])),
            ("Seed", str(about["seed"])),
            ("Versions", ", ".join(f"{n} {v}" for n, v in kept["versions"].items())),
        ],
        sections=[
            {
                "id": one.claim.id,
                "heading": one.claim.place,
                "title": one.claim.says,
                "verdict": one.finding.told,
                "seen": one.finding.seen,
                "grids": one.finding.grids,
                "pictures": drawn[one.claim.id],
            }
            for one in tried
        ],
    )
    storage.write_bytes(folder / "theory.html", page.encode())
