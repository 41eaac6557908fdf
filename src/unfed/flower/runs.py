"""A run folder whose clients are Flower nodes: the same layout, the same jobs, another world.

Beside the documented files it holds `clients.json` (everybody who took part, in the order in which answers are
averaged, and what each holds, so that one which is away when a run is resumed is still known) and `flower.json` (which
Flower runs worked here, and how the last one ended).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from unfed import storage
from unfed.data import Request
from unfed.errors import UnfedError
from unfed.flower.nodes import Census
from unfed.flower.world import FlowerWorld
from unfed.methods import Method, State
from unfed.model.params import Params, cast, check_like
from unfed.runs.config import Config
from unfed.runs.description import now
from unfed.runs.folder import Job, RunFolder
from unfed.runs.progress import Watch
from unfed.runs.run import Run
from unfed.runs.world import World

Maker = Callable[[Config, int, Sequence[str], Mapping[str, Census]], FlowerWorld]
"""(config, seed, clients in their order, what they said before) -> the world over the nodes that are connected."""


class FlowerRun(Run):
    """A run folder at a Flower server."""

    def __init__(self, folder: RunFolder, make: Maker) -> None:
        super().__init__(folder)
        self._make = make

    @staticmethod
    def begin(config: Config, folder: str | Path, make: Maker) -> FlowerRun:
        """A new folder, once the nodes that are there were found to be able to do what is asked."""
        world = make(config, config.seed_list[0], (), {})
        requests = config.requests()
        for i in range(len(requests)):
            for label in config.methods.run:
                able(world, label, config.method(label), requests[: i + 1])
        run = FlowerRun(Run.create(config, folder, world).folder, make)
        run._worlds[world.seed] = world
        run._note(world)
        return run

    def _build(self, seed: int) -> World:
        world = self._make(self.config, seed, *self._clients())
        self._note(world)
        return world

    def _clients(self) -> tuple[tuple[str, ...], dict[str, Census]]:
        """Who took part so far, in their order, and what they hold."""
        path = self.folder.path / "clients.json"
        if not path.exists():
            return tuple(self.description["clients"]), {}
        raw = storage.read_json(path, "client list")
        return tuple(raw["order"]), {name: Census.from_json(held) for name, held in raw["held"].items()}

    def _note(self, world: FlowerWorld) -> None:
        """Write down who takes part, now and whenever somebody joins: before the round in which it is first asked.

        A run that is resumed from the round before therefore asks the same clients in the same order.
        """
        _, before = self._clients()
        held = {name: census.to_json() for name, census in {**before, **world.known}.items()}
        storage.write_json(self.folder.path / "clients.json", {"order": list(world.order), "held": held})
        world.noted = self._note

    # --- an existing model --------------------------------------------------------------------------------------------

    def adopt(self, file: str | Path) -> None:
        """Take a model file as θ*: the training counts as done, and nothing is known of the way to it."""
        for seed in self.config.seed_list:
            job, world = self._training_job(seed), self.world(seed)
            if self.folder.finished(job):
                continue
            params, _ = storage.load(Path(file), "model")
            check_like(params, world.template.like, f"The model {file}")
            own = {name: params[name] for name in world.template.like}
            params = cast(own, world.dtype, world.device)
            self._write(job, params, file)

    def _write(self, job: Job, params: Params, file: str | Path) -> None:
        model = self.config.model
        about = {"seed": job.seed, "label": job.label, "round": 0, "source": str(file)}
        self.folder.save_model(job, params, {**about, "architecture": model.name, "options": model.options})
        numbers = {"offset": self.folder.length(), "finished": "adopted", "rounds": 0}
        self.folder.save_state(job, State(params, done=True), numbers)

    # --- requests -----------------------------------------------------------------------------------------------------

    def serve(self, request: Request, method: str, until: str, watch: Watch) -> None:
        """Take somebody out of the model in force; the same request twice does nothing."""
        known = {entry.request.id: entry.request for entry in self.folder.requests()}
        if request.id in known:  # whether the leaver was there is a matter of the day it was first asked
            request = replace(request, deleted=known[request.id].deleted)
        world = self.world(self.one_seed(None))
        assert isinstance(world, FlowerWorld)
        able(world, method, self.config.method(method), [*self.queue.besides(world.seed, [request.id]), request])
        outcome = self.forget(request, method, until, watch=watch)
        if outcome.status == "queued":
            raise UnfedError(f"Another server app is at work in {self.folder.path}; stop it, or wait for it.")

    # --- how it ended -------------------------------------------------------------------------------------------------

    def mark(self, run_id: int, state: str, error: str = "") -> None:
        mark(self.folder.path, run_id, state, error)


def mark(folder: Path, run_id: int, state: str, error: str = "") -> None:
    """Note which Flower run worked in a folder and how it ended: running, finished or failed."""
    path = folder / "flower.json"
    before: dict[str, Any] = storage.read_json(path, "list of Flower runs") if path.exists() else {"runs": []}
    runs = [run for run in before["runs"] if run["run"] != str(run_id)]
    found = {"run": str(run_id), "state": state, "at": now()} | ({"error": error} if error else {})
    storage.write_json(path, {"state": state, "runs": [*runs, found]})


def settled(world: FlowerWorld, request: Request) -> Request:
    """The request as the day demands: a leaver that is not there any more cannot be asked for anything."""
    absent = [name for name in request.clients if not world.directory.nodes(name) and world.knows(name)]
    return replace(request, deleted=True) if absent else request


def able(world: FlowerWorld, label: str, method: Method, requests: Sequence[Request]) -> None:
    """Refuse, before any work starts, a method that asks for what these nodes or this server do not give."""
    if "public" in method.needs and world.public({}) is None:
        raise UnfedError(
            f'{label} needs unlabelled data at the server; name it with public="package.module:function", or use not.'
        )
    if "forget" not in method.needs or requests[-1].deleted:
        return
    roster = world.scoped(requests, gone=requests[:-1])
    for name, client in roster.items():
        if len(client.view("forget")) and not world.allows(name, "forget"):
            raise UnfedError(
                f"{label} works on the rows that are to be forgotten, but client {name} does not allow that; set"
                ' allow="forget" in its node config, or use not, ft or retrain.'
            )
