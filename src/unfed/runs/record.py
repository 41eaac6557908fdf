"""A run as its folder tells it: nothing that it names is built, or run, to read it."""

from __future__ import annotations

from unfed import plugins
from unfed.config.config import Config
from unfed.errors import UnfedError, listed, typed
from unfed.folder import carriers, consistency, deny, judged, undo_results
from unfed.folder.folder import RunFolder
from unfed.folder.info import RunInfo
from unfed.folder.job_notes import last_starts
from unfed.folder.layout import MethodFacts, how_to_go_on
from unfed.measures import trajectory
from unfed.measures.trajectory import Line
from unfed.requests.book import request_file
from unfed.requests.entry import Entry, Job
from unfed.requests.options import Until
from unfed.runs import description, together

_RUNS_CODE = ("evaluate", "forget", "probe", "resume")
"""Commands that build what a run names, and so want leave for it."""


class RunRecord:
    """What is written in a run folder: its config, its jobs, its trajectory, its requests."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.only: frozenset[str] | None = None
        """Of a comparison, the methods that are looked at and run; None: all."""
        self.description = folder.description()
        read = Config.kept(self.description.config, str(folder.path / "run.json"))
        self.config = deny.with_key(read, folder.path)

    def permit(self) -> None:
        """Refuse, before any work is begun, code that the config or a request names and nobody allowed."""
        plugins.permit(self.config.code(), self.folder.path / "run.json")
        for entry in self.folder.book().entries:
            named = self.config.methods.code([entry.method], "method") if entry.accepted else ()
            plugins.permit(named, request_file(self.folder.path, entry))

    def one_seed(self, seed: int | None) -> int:
        """The repetition that is meant; a run with several must be told."""
        seeds = self.config.seed_list
        if seed is None and len(seeds) > 1:
            raise UnfedError(f"This run has {len(seeds)} repetitions; say which one with --seed, {listed(seeds)}.")
        if seed is not None and seed not in seeds:
            raise UnfedError(f"This run has no seed {seed}; use {listed(seeds)}.")
        return seeds[0] if seed is None else seed

    # --- jobs ---------------------------------------------------------------------------------------------------------

    @property
    def labels(self) -> list[str]:
        """The methods of the comparison, in their order."""
        return [label for label in self.config.methods.run if self.only is None or label in self.only]

    def jobs(self) -> list[tuple[Job, int]]:
        """Every job of this run in its order, with its number of rounds."""
        found: list[tuple[Job, int]] = []
        for seed in self.config.seed_list:
            if self.trains:
                found.append((self.training_job(seed), self.config.training.rounds))
            for label in self.labels:
                for request in self.description.requests:
                    found.append((Job(seed, request.id, label), self.about(label).rounds))
        for entry in (one for one in self.folder.book().entries if not one.left_by):
            rounds = Until.of(entry.until).rounds or self.about(entry.method, entry).rounds
            if (shared := _shared(entry)) and (shared, rounds) not in found:
                found.append((shared, rounds))
            found.append((Job(entry.seed, entry.request.id, entry.method), rounds))
        return found

    @property
    def trains(self) -> bool:
        """Whether θ* is made here; a call of `unlearn` is handed it."""
        return not self.description.call

    def about(self, label: str, entry: Entry | None = None) -> MethodFacts:
        """Title, needs and rounds of a method as they were written down when it was chosen.

        Nothing is built for it.
        """
        if served := ((entry and entry.described) or {}).get("served_by"):
            return MethodFacts.model_validate(served)
        return self.description.methods.get(label) or description.plain_facts(self.config, label)

    def ahead(self) -> list[tuple[Job, int]]:
        """The jobs without those of requests on which nobody works any more."""
        entries = self.folder.book().entries
        over = {Job(e.seed, e.request.id, e.method) for e in entries if e.owed or not e.accepted}
        wanted = {_shared(e) for e in entries if e.accepted and not e.owed}
        over |= {job for e in entries if (job := _shared(e)) is not None and job not in wanted}
        return [(job, rounds) for job, rounds in self.jobs() if job not in over]

    def trained(self, seed: int) -> bool:
        """Whether θ* of a repetition was made; it may have been purged since."""
        job = self.training_job(seed)
        there = self.folder.model_file(job).exists() or self.folder.buried(job) is not None
        return self.folder.finished(job) and there

    def training_job(self, seed: int) -> Job:
        """The job that makes θ* of a repetition."""
        return Job(seed, None, "train")

    # --- for a report -------------------------------------------------------------------------------------------------

    def lines(self) -> list[Line]:
        """The trajectory; the last line of a job that has ended says `done`, whatever made it end.

        Of a job that was begun anew, only what came since; the file has it all.
        """
        lines = last_starts(self.folder.lines())
        if self.only is not None:
            lines = [line for line in lines if line["method"] not in {*self.config.methods.run} - self.only]
        last = trajectory.last_of_each(lines)
        for job, _ in self.jobs():
            if self.folder.finished(job) and job.key in last:
                last[job.key]["done"] = True
        for line in lines:
            if back := self.description.undone.get(line["method"], {}).get(line["request"] or ""):
                line["undoes"] = list(back)
        return lines

    def way_out(self, entry: Entry) -> str:
        """How a request that is owed can be settled."""
        name = entry.request.id
        rounds = self.config.unlearning.retrain_rounds or self.config.training.rounds
        again = f"`{self.command('forget', '--id', name, '--method', 'retrain', '--until', rounds)}`"
        if self.description.elsewhere:
            again = f'the same run config with mode="unlearn" methods="retrain" until="{rounds}"'
        if self.description.app:
            return f"{self.going_on}, tries it again; `{self.command('withdraw', name)}` lets it go"
        accept = ""
        if entry.gate is not None and not self.description.elsewhere:
            accept = f"`{self.command('forget', '--id', name, '--accept')}` puts its model in force all the same, "
        let_go = "" if self._signed(name) else f", {self.letting_go(name)} lets it go"
        return f"{accept}{again} trains anew without it{let_go}"

    def letting_go(self, name: str) -> str:
        """What lets a request go: of a signed one, its client's signed revocation."""
        if self._signed(name):
            return f"`{self.command('withdraw', name, '--revocation', 'FILE')}` with its client's signed revocation"
        return f"`{self.command('withdraw', name)}`"

    def _signed(self, name: str) -> bool:
        return (self.folder.path / "trust" / "requests" / f"{name}.json").exists()

    @property
    def going_on(self) -> str:
        """What goes on with this run, after 'go on with '; not always a command of ours."""
        if self.description.elsewhere or self.description.call:
            return how_to_go_on(self.description, self.folder.path)
        return f"`{self.command('resume')}`"

    def no_model(self, job: Job) -> str:
        """Why a job of this run has no model though none was purged, and what can be done about it."""
        mine = [e for e in self.folder.book().entries if (e.seed, e.method) == (job.seed, job.label)]
        mine = [e for e in mine if job.request in e.names]
        saved = self.folder.saved(job)
        settled = bool(mine) and not any(entry.waiting for entry in mine)
        if saved is not None and saved.finished and (settled or saved.pruned):
            return consistency.gone(self.folder.model_file(job))
        if settled:
            what = f"Request {mine[0].request.id!r} is {mine[0].standing} and left no model"
            return f"{what}: {self.way_out(mine[0])}." if mine[0].owed else f"{what}; ask anew under another --id."
        return f"This run has no model {job.path.as_posix()} yet; go on with {self.going_on}."

    def command(self, name: str, *arguments: object) -> str:
        """A command for this run as one types it: quoted, and with leave for code where the run needs it."""
        leave = ["--allow-code"] if name in _RUNS_CODE and self.config.code() else []
        return typed(name, self.folder.path, *arguments, *leave)

    def info(self) -> RunInfo:
        """`run.json` with the requests that came later, and what is known of their models."""
        book = self.folder.book()
        entries, own = book.entries, description.plain_request
        asked = [description.request_info(e, self.way_out, e.described or own(e.request)) for e in entries]
        shared = [own(one) for one in together.shared_requests(entries)]
        served = {(e.seed, e.request.id): self.about(e.method, e) for e in entries}
        needs = {
            job: () if job.request is None else served.get((job.seed, job.request), self.about(job.label)).needs
            for job, _ in self.jobs()
        }
        return RunInfo.of(
            {
                **self.description.to_json(),
                "requests": [*(one.to_json() for one in self.description.requests), *asked, *shared],
                "methods": {**self.description.methods} | {e.method: self.about(e.method, e) for e in entries},
                "influence": carriers.influence(self.folder, book),
                "undo": undo_results.measured(self.folder, self.config),
                "probes_purged": undo_results.purged(self.folder),
                "population": judged.of_run(self.folder),
                "jobs": [description.job_info(self.folder, job, rounds, needs[job]) for job, rounds in self.jobs()],
            }
        )


def _shared(entry: Entry) -> Job | None:
    """The job that a request shares with others, if it does."""
    return None if entry.shared is None else Job(entry.seed, entry.shared, entry.method)
