"""The config: one typed description of an experiment, from data and model to methods and seeds.

    config = Config.read("experiment.toml", sets=["training.rounds=20", "methods.not.layers=['conv2']"])

TOML comes in, one frozen value comes out. A key that is unknown or wrong is answered with its name, what is allowed
there and the nearest match. The same value is kept in `run.json`, so a run can be repeated from its folder alone.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from unfed import methods as all_methods
from unfed import plugins, rng, storage
from unfed.config.reading import applied, check_folder, check_id, check_label, explained
from unfed.config.tables import (
    CheckpointConfig,
    ConfigTable,
    DataConfig,
    DenyConfig,
    EngineConfig,
    EvaluationConfig,
    GateConfig,
    ModelConfig,
    PartitionConfig,
    PoisonConfig,
    RecoveryConfig,
    RequestConfig,
    SeedsConfig,
    TrainingConfig,
    UnlearningConfig,
)
from unfed.data import Request, SampleList
from unfed.data.scope import drawn_order
from unfed.errors import UnfedError, expect, listed, nearest, typed
from unfed.measures.population import store
from unfed.measures.population.store import most_memorised

MOST_BYTES = 4 << 20


class MethodsConfig(BaseModel):
    """Which methods run, and their hyperparameters.

    A table may stand under a name of its own and say which method it uses: `[methods.not-conv2] use = "not"`. Its
    sub-table `unlearning` sets rounds, lr and schedule for that method alone.
    """

    model_config = ConfigDict(extra="allow", frozen=True, use_attribute_docstrings=True)

    run: Annotated[tuple[str, ...], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)] = (
        "not",
        "ft",
        "retrain",
    )
    """Methods to compare, in this order; [methods.NAME] sets hyperparameters."""

    def build(self) -> dict[str, all_methods.Method]:
        """The methods to run, by their label."""
        for label, table in (self.model_extra or {}).items():
            if not isinstance(table, Mapping):
                close = nearest(label, ["run"])
                raise UnfedError(f"methods.{label} takes a table, not {table!r}; methods.run names the methods.{close}")
            if label not in self.run:
                self.method(label)
        return {label: self.method(label) for label in self.run}

    def _table(self, label: str) -> Any:
        return (self.model_extra or {}).get(label, {})

    def method(self, label: str) -> all_methods.Method:
        """One method with its hyperparameters, whether or not it is among those to run."""
        return _build_method(label, self._table(label))

    def recovery(self, label: str) -> RecoveryConfig:
        """What is said about the recovery of one method alone."""
        return _recovery(label, self._table(label))

    def name_of(self, label: str) -> str:
        """The name of the method that a label stands for."""
        return _named(label, self._table(label))[1]

    def said(self, label: str, key: str, default: Any) -> Any:
        """What a method's table says of one hyperparameter, without building the method."""
        table = self._table(label)
        return table.get(key, default) if isinstance(table, Mapping) else default

    def code(self, labels: Iterable[str], key: str) -> list[tuple[str, str]]:
        """(key, name) of those among the methods with these labels that are someone's code.

        Labels stand at `key`.
        """
        named = [_named(label, self._table(label), key) for label in labels]
        return [(own, name) for own, name in named if all_methods.is_code(name)]


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, Mapping) else value


class Config(ConfigTable):
    """The description of one experiment; every key is in the configuration reference.

    Make one with `preset`, `read` or `parse`.

    Examples:
        >>> config = unfed.Config.preset("demo", ["training.rounds=20"])
        >>> config.training.rounds
        20
    """

    name: str = "run"
    """The run's name; its folder is runs/NAME, or --out."""
    setting: Literal["federated", "central"] = "federated"
    """`central`: one place holds all data, and a round is an epoch."""
    seed: int | tuple[int, ...] = 0
    """Seed of every draw; a list makes repetitions, shown as mean ± std."""
    device: Annotated[str, Field(pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$")] = "auto"
    """auto (CUDA if there is one), cpu, cuda, cuda:N or mps."""
    data: DataConfig = DataConfig()
    partition: PartitionConfig = PartitionConfig()
    poison: PoisonConfig | None = None
    model: ModelConfig = ModelConfig()
    training: TrainingConfig = TrainingConfig()
    unlearning: UnlearningConfig = UnlearningConfig()
    request: Annotated[tuple[RequestConfig, ...], BeforeValidator(_as_list)] = ()
    methods: MethodsConfig = MethodsConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    gate: GateConfig = GateConfig()
    deny: DenyConfig = DenyConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    engine: EngineConfig = EngineConfig()
    seeds: SeedsConfig = SeedsConfig()

    @model_validator(mode="after")
    def _files(self) -> Config:
        """Names that become files stay in their place."""
        check_folder(self.name)
        for request in self.request:
            check_id(request.id or "request", "request id")
        for label in (*self.methods.run, *(self.methods.model_extra or {}), *self.training.record):
            check_label(label)
        return self

    @model_validator(mode="after")
    def _whole(self) -> Config:
        if not self.seed_list:
            raise ValueError("seed must be a number or a list of at least one number")
        if len(set(self.seed_list)) < len(self.seed_list):
            raise ValueError("seed lists a number twice; every seed is one repetition")
        if self.setting == "central":
            if self.partition.clients != 1:
                raise ValueError("setting = 'central' has one holder of all data; leave partition.clients out")
            if self.training.participation < 1 or self.training.drop_out > 0:
                raise ValueError("setting = 'central' has no absent clients; leave participation, drop_out out")
        return self

    @property
    def seed_list(self) -> tuple[int, ...]:
        """The seeds, one for each repetition."""
        return (self.seed,) if isinstance(self.seed, int) else self.seed

    def method(self, label: str) -> all_methods.Method:
        """A method with its hyperparameters, those of the paper for this model where nothing else is said."""
        return self.methods.method(label).on(self.model.name)

    def recorded(self) -> dict[str, all_methods.Method]:
        """The methods whose history training records.

        These are those of the comparison that need one, and those of `training.record`.
        """
        asked = {label: self.methods.method(label) for label in self.training.record}
        for label, method in asked.items():
            if "history" not in method.needs:
                able = [name for name, kind in all_methods.METHODS.items() if "history" in kind.needs]
                raise UnfedError(f"training.record lists {label!r}, which needs no history; it takes {listed(able)}.")
        compared = self.methods.build() if self.request else {}
        return {label: self.method(label) for label, m in (compared | asked).items() if "history" in m.needs}

    def code(self) -> list[tuple[str, str]]:
        """(key, name) of whatever in here names code that someone wrote: a data set, a model, a method."""
        named = [("data.name", self.data.name), ("model.name", self.model.name)]
        found = [(key, name) for key, name in named if plugins.looks_like_code(name)]
        labels = dict.fromkeys((*self.methods.run, *(self.methods.model_extra or {})))
        found += self.methods.code(labels, "methods.run")
        return found + self.methods.code(self.training.record, "training.record")

    def request_ids(self) -> tuple[str, ...]:
        """The ids of the requests in their order: enough for anyone who only looks."""
        return tuple(r.name(i + 1) for i, r in enumerate(self.request))

    def requests(self) -> tuple[Request, ...]:
        """The requests, in their order, as values."""
        found = tuple(r.request(i + 1) for i, r in enumerate(self.request))
        ids = [r.id for r in found]
        for request_id in ids:
            if ids.count(request_id) > 1:
                raise UnfedError(f"Two requests have the id {request_id!r}; give each its own.")
        return found

    @staticmethod
    def read(path: str | Path, sets: Sequence[str] = ()) -> Config:
        """Read a TOML file. Paths in it are relative to the file.

        Args:
            path: The file.
            sets: Changes on top: `["training.rounds=20"]`.

        Returns:
            The config.

        Raises:
            UnfedError: The file cannot be read, or a key or value is wrong.
        """
        path = Path(path)
        if path.is_dir():
            run = (path / "run.json").is_file()
            remedy = f"`{typed('resume', path)}` goes on with its run" if run else "name a TOML file in it, or a preset"
            raise UnfedError(f"{path} is a folder, not a config; {remedy}.")
        try:
            raw = tomllib.loads(storage.content(path, MOST_BYTES).decode())
        except OSError as error:
            beside = [str(path.with_suffix(".toml"))] if path.with_suffix(".toml").is_file() else []
            known = f"{listed(presets())}.{nearest(str(path), [*beside, *presets()])}"
            what = f"The config {path} cannot be read ({error.strerror})"
            raise UnfedError(f"{what}; check the path, or name a preset: {known}") from error
        except RecursionError as error:
            raise UnfedError(f"The config {path} is nested too deep; give one with fewer levels.") from error
        except ValueError as error:  # no TOML, no UTF-8, or a number of thousands of digits
            raise UnfedError(f"The config {path} is not valid TOML: {error}.") from error
        return Config.parse(raw, sets, path)

    @staticmethod
    def preset(name: str, sets: Sequence[str] = ()) -> Config:
        """Take a config that comes with the package.

        Args:
            name: Such as `demo` or `cifar10-cnn`.
            sets: Changes on top: `["training.rounds=20"]`.

        Returns:
            The config.

        Raises:
            UnfedError: There is no such preset, or a change is wrong.
        """
        expect(name, str, "A preset's name")
        if name not in presets():
            raise UnfedError(f"There is no preset {name!r}; use {listed(presets())}.{nearest(name, presets())}")
        text = resources.files("unfed.config.presets").joinpath(f"{name}.toml").read_text(encoding="utf-8")
        return Config.parse(tomllib.loads(text), sets)

    @staticmethod
    def parse(raw: Mapping[str, Any], sets: Sequence[str] = (), file: Path | None = None) -> Config:
        """Make a config from plain values.

        Args:
            raw: The values, as TOML would give them.
            sets: Changes on top: `["training.rounds=20"]`.
            file: Where the values were read; paths are relative to it.

        Returns:
            The config.

        Raises:
            UnfedError: A key or value is wrong, or the config names code without `unfed.allow_code`.
        """
        values = _deep_copy(raw)
        for change in sets:
            applied(values, change)
        if values.get("setting") == "central" and isinstance(values.setdefault("partition", {}), dict):
            # One place holds every training row; anyone who wants validation rows says so.
            values["partition"] = {"clients": 1, "validation": 0.0} | values["partition"]
        if file is not None:
            _resolve_paths(values, file.parent.resolve())
        _read_lists(values)
        config = Config.kept(values)
        plugins.permit(config.code(), file or "")
        config.methods.build()
        return config

    @staticmethod
    def kept(raw: Mapping[str, Any], where: str | None = None) -> Config:
        """A config as it was written down, in the file that is named.

        Every value is checked, but no method is looked up, so that nothing runs.
        """
        try:
            return Config.model_validate(raw)
        except ValidationError as error:
            said = explained(error, Config)
            if where is not None:
                said = f"{where} has a config that cannot be read ({said.removesuffix('.')}); restore it from a copy."
            raise UnfedError(said) from error

    def to_json(self) -> dict[str, Any]:
        dumped: dict[str, Any] = self.model_dump(mode="json")
        return dumped


def presets() -> list[str]:
    """The names of the configs that come with the package."""
    folder = resources.files("unfed.config.presets")
    return sorted(p.name.removesuffix(".toml") for p in folder.iterdir() if p.name.endswith(".toml"))


@dataclass(frozen=True)
class Seeds:
    """The four seeds of one repetition. All derive from one number unless the config sets them."""

    partition: int
    training: int
    unlearning: int
    evaluation: int

    @staticmethod
    def of(config: Config, seed: int) -> Seeds:
        given = config.seeds.model_dump()
        return Seeds(**{n: rng.key(seed if v is None else v, n) for n, v in given.items()})

    def request(self, request_id: str) -> int:
        """The unlearning seed of a request: the same for every method of a comparison."""
        return rng.key(self.unlearning, request_id)


def differences(
    config: Mapping[str, Any], wanted: Mapping[str, Any], aside: Collection[str] = (), methods: Collection[str] = ()
) -> list[str]:
    """`training.rounds 150 instead of 300`: where a config that was kept is not the one that is wanted.

    A config of an earlier version lacks the keys that were added since. Read again it has them at their defaults, so
    configs are compared as what they mean, not by a digest of what was written. Keys in `aside` are not looked at. A
    method that has a table in one of them only is no difference, unless it is one of `methods`.
    """
    return list(_differences(Config.kept(config).to_json(), Config.kept(wanted).to_json(), "", aside, methods))


def _differences(
    config: Mapping[str, Any], wanted: Mapping[str, Any], at: str, aside: Collection[str], methods: Collection[str]
) -> Iterator[str]:
    for name in sorted({*config, *wanted}):
        here, there, key = config.get(name), wanted.get(name), f"{at}{name}"
        if key in aside or (at == "methods." and None in (here, there) and name not in methods):
            continue
        if isinstance(here, Mapping) and isinstance(there, Mapping):
            yield from _differences(here, there, f"{key}.", aside, methods)
        elif here != there:
            yield f"{key} {json.dumps(here)} instead of {json.dumps(there)}"


def _named(label: str, table: Any, key: str = "methods.run") -> tuple[str, str]:
    """Under which key the name of a method stands, and the name."""
    use = table.get("use") if isinstance(table, Mapping) else None
    return (key, label) if use is None else (f"methods.{label}.use", str(use))


def _build_method(label: str, table: Mapping[str, Any]) -> all_methods.Method:
    key, name = _named(label, table)
    values = {option: value for option, value in table.items() if option not in ("use", "unlearning")}
    _recovery(label, table)
    kind = all_methods.find(name, key)
    known = [name for name, *_ in kind.options()]
    for key in values:
        if key not in known:
            allowed = f"{kind.name} has {listed(known)}" if known else f"{kind.name} has no hyperparameters"
            raise UnfedError(f"methods.{label}.{key} is not known; {allowed}.{nearest(key, known)}")
        if isinstance(values[key], float) and not math.isfinite(values[key]):  # JSON, and so run.json, has no infinity
            raise UnfedError(f"methods.{label}.{key} is {values[key]}; give a finite number, 1e300 if it must be huge.")
    for field in fields(kind):  # one layer may stand without brackets
        if str(field.type).startswith("tuple[") and isinstance(values.get(field.name), str):
            values[field.name] = [values[field.name]]
    try:
        built: all_methods.Method = _reader(kind).validate_python(values)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"] if isinstance(part, str))
        raise UnfedError(f"methods.{label}.{key} is wrong: {first['msg']}.") from error
    return built


@lru_cache(maxsize=64)
def _reader(kind: type[all_methods.Method]) -> TypeAdapter[all_methods.Method]:
    """What checks a method's hyperparameters.

    It takes milliseconds to make, and a run asks for its methods often.
    """
    return TypeAdapter(kind)


def _recovery(label: str, table: Mapping[str, Any]) -> RecoveryConfig:
    try:
        return RecoveryConfig.model_validate(table.get("unlearning", {}))
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(str(part) for part in first["loc"])
        known = listed(RecoveryConfig.model_fields, "and")
        raise UnfedError(f"methods.{label}.unlearning.{path}: {first['msg']}; it takes {known}.") from error


def _deep_copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _deep_copy(v) for k, v in value.items()}
    return [_deep_copy(v) for v in value] if isinstance(value, list | tuple) else value


def _requests_in(values: Mapping[str, Any]) -> list[Any]:
    requests = values.get("request", [])
    return requests if isinstance(requests, list) else [requests]


def _read_lists(values: dict[str, Any]) -> None:
    """Put what a sample list says in the place of its path: from here on the file may go."""
    for request in _requests_in(values):
        if not isinstance(request, dict):
            continue
        if isinstance(request.get("samples"), str | Path):
            read = SampleList.read(request["samples"])
            if values.get("setting") == "central" and not read.rows:
                raise drawn_order(read.source)
            request["samples"] = _kept(read)
        if request.get("select") == "memorised":
            request["samples"] = _kept(_memorised(request))
            for key in ("select", "population", "fraction"):
                request.pop(key, None)


def _kept(read: SampleList) -> dict[str, str]:
    return {"source": read.source, "sha256": read.sha256, "text": read.text}


def _memorised(request: Mapping[str, Any]) -> SampleList:
    """The list that `select = "memorised"` stands for."""
    folder, fraction = request.get("population"), request.get("fraction")
    if not isinstance(folder, str | Path) or not isinstance(fraction, float) or not 0.0 < fraction <= 1.0:
        raise UnfedError(
            'request.select = "memorised" takes population = "DIR", which `unfed population` makes, and fraction = 0.1.'
        )
    rows = most_memorised(store.load(folder), fraction)
    text = "".join(f"{client},{position}\n" for client, position in rows)
    return SampleList(f"the most memorised {fraction:g} of {folder}", f"client,position\n{text}")


def _resolve_paths(values: dict[str, Any], where: Path) -> None:
    tables = [(values.get("data"), "root"), (values.get("model"), "initial"), (values.get("deny"), "run")]
    tables += [(request, key) for request in _requests_in(values) for key in ("samples", "population")]
    for table, key in tables:
        if isinstance(table, dict) and isinstance(table.get(key), str):
            table[key] = str(where / Path(table[key]).expanduser())
