"""What the files of a run folder say, as values with types (`records.py`).

    run.json                    Description     saved states (header)       SavedState
    clients.json                ClientList      models, scores (headers)    ModelHeader, ScoresHeader
    flower.json                 FlowerRuns      undo/…                      Undoing

Only what is read has a type; a field that is not known is kept, so that a later version may add some.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from unfed import records, storage
from unfed.config.reading import check_id
from unfed.records import Count, JsonRecord, Percent, Plain, Whole, like

Texts = tuple[str, ...]


class AskedRequest(JsonRecord):
    """A request of the config."""

    id: str


class MethodFacts(JsonRecord):
    """What a run says of a method: its title, the views of the data that it reads, its rounds."""

    title: str
    needs: Texts | None = None
    rounds: Whole


NODES = {"flower": "Flower nodes", "nvflare": "NVFlare sites", "remote": "nodes elsewhere"}
"""What carried a run's plans, and what its clients are called then."""


class Description(JsonRecord):
    """What `run.json` says."""

    layout: Count | None = Field(default=None, alias="schema")
    name: str
    created: str
    config: Plain
    initial: str | None = None
    call: Plain | None = None
    fingerprint: str | None = None
    seeds: tuple[Whole, ...]
    clients: Texts
    topped_up_clients: Texts = ()
    classes: Texts = ()
    columns: Mapping[str, tuple[float, float]] = {}
    versions: Mapping[str, str]
    revisions: Mapping[str, Count] = {}
    hardware: str
    device: str
    engine: str
    chunk: Count | None = None
    parameters: Count
    forward_flops: float | str | None = None
    requests: tuple[AskedRequest, ...]
    methods: Mapping[str, MethodFacts] = {}
    hyperparameters: Mapping[str, Plain] = {}
    rounds: Mapping[str, Count | None] = {}
    backdoor: Plain | None = None
    recovered_within: float = 0.5
    undone: Mapping[str, Mapping[str, Texts]] = {}
    app: Plain | None = None

    @property
    def elsewhere(self) -> bool:
        """Whether the run's clients keep their data with them."""
        return self.engine in NODES

    @property
    def setting(self) -> Literal["central", "flower", "federated"]:
        """Where the data lies: in one place, with nodes, or with simulated clients."""
        if self.call or self.config.get("setting") == "central":
            return "central"
        return "flower" if self.elsewhere else "federated"


class MemberState(JsonRecord):
    """Where one model of a cohort stands."""

    round: Count
    done: bool
    model: bool
    numbers: Plain
    groups: Texts


class CohortState(JsonRecord):
    """What the header of a cohort's state says: one member for each seed."""

    seeds: tuple[Whole, ...]
    members: tuple[MemberState, ...]


class ModelHeader(JsonRecord):
    """The digests of a model's tensors."""

    sha256: Mapping[str, str] | None = None


class ScoresHeader(JsonRecord):
    """The requests whose rows scores speak of, and those that they leave out."""

    over: Texts = ()
    without: Texts = ()


class HeldRows(JsonRecord):
    """What a client holds."""

    all: Count
    retain: Count
    forget: Count
    val: Count
    classes: Count
    shape: Annotated[tuple[Count, ...], Field(min_length=1)]
    allow: Texts


class ClientList(JsonRecord):
    """Who took part, in their order, what each holds, and every name that each went by."""

    order: Texts
    held: Mapping[str, HeldRows]
    names: Mapping[str, Texts] = {}


class FlowerRun(JsonRecord):
    """A Flower run that worked in the folder, and how it ended."""

    run: str
    state: str


class FlowerRuns(JsonRecord):
    """What `flower.json` says."""

    runs: tuple[FlowerRun, ...]


class FlowerBytes(JsonRecord):
    """What a Flower run sent and received."""

    inbound: Count = Field(alias="inbound-bytes")
    outbound: Count = Field(alias="outbound-bytes")


class TrafficOfRun(JsonRecord):
    """One run of `flwr ls`."""

    run: str | Whole = Field(alias="run-id")
    traffic: FlowerBytes = Field(alias="network-traffic")


class FlowerTraffic(JsonRecord):
    """What `flwr ls --format json` says."""

    runs: tuple[TrafficOfRun, ...]


class ProbedPart(JsonRecord):
    """Numbers whose noise is said: percents and rows."""

    forget: str | Percent | None = None
    mia: str | Percent | None = None
    rows: Mapping[str, Count] = {}


class ProbedModel(JsonRecord):
    """What was measured of one model, by attack."""

    published: ProbedPart = ProbedPart()
    flip: ProbedPart = ProbedPart()
    __pydantic_extra__: dict[str, Plain]


class ProbedThree(JsonRecord):
    """The model that came out, Retrain and the model before."""

    unlearned: ProbedModel
    retrain: ProbedModel
    before: ProbedModel


class Undoing(JsonRecord):
    """What a file of undoing says."""

    layout: Count | None = Field(default=None, alias="schema")
    seed: Count
    request: str
    method: str
    title: str
    perturbed: Plain | None = None
    effort: Plain | None = None
    models: Plain
    over: Texts = ()
    without: Texts = ()
    measured: Annotated[Plain, like(ProbedThree)]
    """By model, attack and number."""


def described(raw: Any, where: str) -> Description:
    """What `run.json` says; no id in it leads out of the folder."""
    found = records.read(Description, raw, where)
    for asked in found.requests:
        check_id(asked.id, f"request id in {where}")
    return found


# --- clients that are elsewhere ---------------------------------------------------------------------------------------


def client_list(folder: Path) -> ClientList | None:
    """Who took part, in their order, and what each holds: what `clients.json` says, if it is there."""
    path = folder / "clients.json"
    return records.read(ClientList, storage.read_json(path, "client list"), str(path)) if path.exists() else None


def names_of(clients: Collection[str], goes_by: Mapping[str, Collection[str]]) -> frozenset[str]:
    """Every name, partition and key that these clients went by, and no other client did.

    What another client went by too identifies neither; else a leaver that claims a name could take its owner along.
    """
    theirs = {name for client in clients for name in goes_by.get(client, ())}
    others = {name for client, own in goes_by.items() if client not in clients for name in own}
    return frozenset({*clients, *(theirs - others)})


def flower_runs(folder: Path) -> list[FlowerRun]:
    """What `flower.json` says: which Flower runs worked in a folder, and how they ended."""
    path = folder / "flower.json"
    if not path.exists():
        return []
    return list(records.read(FlowerRuns, storage.read_json(path, "list of Flower runs"), str(path)).runs)


def out_of_sight(description: Description, done: str, simulated: str, called: str) -> str | None:
    """Why nothing can be `done` here with a run's rows, which are kept elsewhere; None if it can.

    What to do instead depends on where: for nodes a simulation, otherwise the call that has the data.
    """
    if description.elsewhere:
        nodes = NODES[description.engine]
        return f"The clients of this run are {nodes}, which keep their data, so it cannot be {done} here; {simulated}."
    if description.call:
        whose = "This folder belongs to a call of unfed.unlearn, whose data is the caller's"
        return f"{whose}, so it cannot be {done} here; {called}."
    return None


def how_to_go_on(description: Description, folder: object) -> str:
    """What goes on with a run whose rows are kept elsewhere, after 'go on with '."""
    if description.call:
        return "the same call of unfed.unlearn, with checkpoint= this folder"
    if description.app:
        again = "job with UnlearnFedAvg" if description.engine == "nvflare" else "start of the app's Unlearn"
        return f"the same {again}, with ledger= this folder"
    if description.engine == "flower":
        return "`flwr run DIR --run-config " + shlex.quote(f'resume-from="{folder}"') + "`"
    carrier = "an NVFlare job" if description.engine == "nvflare" else "the server that reaches them"
    return f'{carrier} and the run config resume-from="{folder}"'
