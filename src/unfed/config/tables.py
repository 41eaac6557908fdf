"""The tables of a config.

They hold what can be said about data, partition, model, training, recovery, requests and evaluation.

Each is a frozen value with every key, its type and its default. What belongs together across tables is checked where
they come together, in `config.py`; methods have tables of their own, whose keys are the methods' hyperparameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from unfed.client.plan import Rule
from unfed.data import DenyList, Request, SampleList
from unfed.data.scope import exactly_one


class Table(BaseModel):
    """A table: an unknown key is a mistake, and nothing is changed afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True)


Positive = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
ClientName = Annotated[str, BeforeValidator(lambda v: str(v) if isinstance(v, int) and not isinstance(v, bool) else v)]


class DataConfig(Table):
    """Which data, how much of it, and how images are augmented.

    What is not given is the data set's own. `train_size` keeps so many training rows, drawn by the seed.
    """

    name: str = "digits"
    root: Path | None = None
    test_size: Positive | None = None
    train_size: Positive | None = None
    flip: Share | None = None
    pad_crop: Annotated[int, Field(ge=0)] | None = None
    resize: Positive | None = None
    crop: Positive | None = None


class PartitionConfig(Table):
    """How the training rows are dealt to clients.

    `natural` is by whose they are, if the data set says so.
    """

    clients: Positive = 10
    scheme: Literal["iid", "dirichlet", "shards", "natural"] = "iid"
    beta: Annotated[float, Field(gt=0)] = 0.1
    shards_per_client: Positive = 2
    min_samples: Positive = 2
    validation: Annotated[float, Field(ge=0, lt=1)] = 0.2


class PoisonConfig(Table):
    """A client that poisons a share of its training rows, and others that help it.

    `backdoor` stamps a trigger and relabels to `target_class`; `colluders` do the same. `confusion` swaps the labels of
    two `classes`. `camouflage` is a backdoor that `hidden_by` hides with stamped images under their right labels.
    """

    kind: Literal["backdoor", "confusion", "camouflage"] = "backdoor"
    client: ClientName = "0"
    target_class: Annotated[int, Field(ge=0)] = 0
    share: Annotated[float, Field(gt=0, le=1)] = 0.8
    colluders: tuple[ClientName, ...] = ()
    classes: tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=0)]] = (0, 1)
    hidden_by: ClientName | None = None

    @model_validator(mode="after")
    def _fits(self) -> PoisonConfig:
        if (self.kind == "camouflage") != (self.hidden_by is not None):
            raise ValueError("poison.hidden_by names who hides the backdoor, exactly where poison.kind is 'camouflage'")
        everybody = [self.client, *self.colluders, *([self.hidden_by] if self.hidden_by is not None else [])]
        if len(set(everybody)) < len(everybody):
            raise ValueError("poison names a client twice; poison.client, colluders and hidden_by are different ones")
        return self

    @property
    def trigger_class(self) -> int | None:
        """What a stamped image is read as, where images are stamped."""
        return None if self.kind == "confusion" else self.target_class

    @property
    def everybody(self) -> tuple[str, ...]:
        """All whom it names."""
        return (self.client, *self.colluders, *(() if self.hidden_by is None else (self.hidden_by,)))


class ModelConfig(Table):
    """The network: a preset with options, or `package.module:factory`.

    `initial` starts from a checkpoint.

    `fresh_head` takes everything but the head from it: for a checkpoint that was trained on other classes.
    """

    name: str = "cnn-small"
    options: dict[str, Any] = Field(default_factory=dict)
    initial: Path | None = None
    fresh_head: bool = False


class ScheduleConfig(Table):
    """How the learning rate goes over the rounds."""

    kind: Literal["constant", "cosine", "step"] = "constant"
    minimum: Rate = 0.0
    every: Positive = 1
    factor: Annotated[float, Field(gt=0, le=1)] = 0.1
    warmup: Annotated[int, Field(ge=0)] = 0
    over: Positive | None = None


class RobustConfig(Table):
    """How updates are put together: the mean, or a rule that one wrong update cannot carry away."""

    rule: Literal["mean", "norm", "median", "trimmed"] = "mean"
    bound: Annotated[float, Field(gt=0)] = 2.0
    trim: Annotated[float, Field(ge=0, lt=0.5)] = 0.2
    refuse_above: Annotated[float, Field(ge=0)] = 10.0


class TrainingConfig(Table):
    """The original training: FedAvg, by default with SGD.

    Adam and AdamW begin with empty moments at every visit of a client; where one place holds all data they go on.
    """

    rounds: Positive = 60
    epochs: Positive = 1
    batch: Positive = 32
    optimiser: Rule = "sgd"
    lr: Rate = 0.1
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    decay: Rate = 5e-4
    clip: Annotated[float, Field(gt=0)] | None = None
    schedule: ScheduleConfig = ScheduleConfig()
    participation: Annotated[float, Field(gt=0, le=1)] = 1.0
    drop_out: Annotated[float, Field(ge=0, lt=1)] = 0.0
    quorum: Annotated[float, Field(ge=0, le=1)] = 0.5
    robust: RobustConfig = RobustConfig()
    patience: Annotated[int, Field(ge=0)] = 0
    keep_model: Literal["last", "best-test"] = "last"
    record: tuple[str, ...] = ()
    """Methods whose history is recorded although no comparison runs them, for requests that come later."""


class UnlearningConfig(Table):
    """Recovery after the request.

    What is not given is as in training, or as in the method's centralised recipe.
    """

    rounds: Positive = 20
    retrain_rounds: Positive | None = None
    lr: Rate | None = None
    clip: Annotated[float, Field(gt=0)] | None = None
    schedule: ScheduleConfig | None = None
    robust: RobustConfig | None = None
    patience: Annotated[int, Field(ge=0)] = 0


class RecoveryConfig(Table):
    """What `[methods.NAME.unlearning]` says for one method alone."""

    rounds: Positive | None = None
    lr: Rate | None = None
    schedule: ScheduleConfig | None = None


@dataclass(frozen=True)
class KeptList:
    """A list of samples as it was read from its file.

    It is kept in the run folder, whatever becomes of the file.
    """

    source: str
    sha256: str
    text: str

    def __post_init__(self) -> None:
        if self.sha256 != self.list.sha256:
            raise ValueError(f"the list read from {self.source} is not the one its SHA-256 vouches for; restore it")

    @property
    def list(self) -> SampleList:
        return SampleList(self.source, self.text)


class RequestConfig(Table):
    """Who or what must leave: exactly one of clients, classes, samples (a CSV file) or fraction.

    `samples` is the path of a list, which is read at once; a run folder keeps what it says. `select = "memorised"`
    makes such a list: of the rows that a `population` forgot, the `fraction` that its models had memorised most.

    `deleted` says that the owners have deleted the data: methods that would still ask for it are refused.
    """

    id: str | None = None
    clients: tuple[ClientName, ...] = ()
    classes: tuple[int, ...] = ()
    samples: KeptList | Path | None = None
    fraction: float | None = None
    deleted: bool = False
    select: Literal["memorised"] | None = None
    population: Path | None = None

    def request(self, number: int) -> Request:
        keys = ("clients", "classes", "samples", "fraction")
        exactly_one(self.name(number), {key: getattr(self, key) for key in keys})
        kept = self.samples.list if isinstance(self.samples, KeptList) else None
        if isinstance(self.samples, Path):  # only in run folders of layout 1
            kept = SampleList.read(self.samples)
        asked: dict[str, Any] = {"fraction": self.fraction, "deleted": self.deleted} | (kept.asked if kept else {})
        return Request(self.name(number), self.clients, self.classes, **asked)

    def owners(self) -> set[str]:
        """Whose rows it names, as far as a run folder tells by itself; nobody where it does not."""
        asked = self.samples.list.asked if isinstance(self.samples, KeptList) else {}
        return {*self.clients, *(name for name, _ in asked.get("samples", ()))}

    def name(self, number: int) -> str:
        return self.id or f"request-{number}"


class EvaluationConfig(Table):
    """What is measured, and how often; `undo` probes at the end how far each model can be undone.

    `samples` keeps the scores of single rows of every evaluated round, of each job's "last", or (false) of none.
    `precision` "params" computes logits in the type of the params (float32 in a bf16 run), "engine" as training does.
    """

    every: Positive = 1
    batch: Positive = 1024
    precision: Literal["params", "engine"] = "params"
    attack: bool = True
    samples: bool | Literal["last"] = True
    recovered_within: Rate = 0.5
    undo: bool = False


class GateConfig(Table):
    """What a model that a request leaves must show before it comes into force.

    `max_drop` is the largest allowed drop of validation accuracy in points; `margin` the largest advantage of an attack
    that tells forgotten rows by their loss (0 is none, 1 is certainty); `max_rise` how many more held-out images in
    percent a trigger of the gate's own may turn to one class than before. What `require` lists decides like utility;
    the others are measured and shown.
    """

    max_drop: Rate = 10.0
    margin: Annotated[float, Field(gt=0, le=1)] = 0.2
    max_rise: Annotated[float, Field(ge=0, le=100)] = 30.0
    require: tuple[Literal["forgotten", "backdoor", "camouflage"], ...] = ()


class DenyConfig(Table):
    """What an earlier run of the federation forgot, and no training of this one takes in.

    `run` names its folder.

    The rest is filled in from there: clients by name, classes by number, rows by keyed hashes. The key is never written
    into `run.json`; it lies beside it as `deny.key`.
    """

    run: Path | None = None
    clients: tuple[ClientName, ...] = ()
    classes: tuple[int, ...] = ()
    rows: tuple[Annotated[str, Field(pattern="^[0-9a-f]{64}$")], ...] = ()
    key: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = Field(default=None, exclude=True, repr=False)

    def listed(self) -> DenyList:
        """As data is measured by it."""
        key = None if self.key is None else bytes.fromhex(self.key)
        return DenyList(frozenset(self.clients), frozenset(self.classes), frozenset(self.rows), key)


class CheckpointConfig(Table):
    """How often a running job is saved, besides after its beginning and at its end.

    Whichever comes first.
    """

    rounds: Positive | None = 10
    seconds: Annotated[float, Field(gt=0)] | None = 30.0

    def due(self, rounds: int, seconds: float) -> bool:
        """Whether it is time to save, so many rounds and seconds after the last time."""
        by_rounds = self.rounds is not None and rounds >= self.rounds
        return by_rounds or (self.seconds is not None and seconds >= self.seconds)


class EngineConfig(Table):
    """What runs the plans, in which precision.

    `chunk` clients share a stack, and CUDA steps may be compiled.
    """

    name: Literal["auto", "sequential", "batched"] = "auto"
    precision: Literal["float32", "float64", "bf16"] = "float32"
    chunk: Positive | None = None
    compile: bool | None = None
    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    """CPU threads; by default one for small steps, else PyTorch's own number."""


class SeedsConfig(Table):
    """Seeds that do not derive from `seed`."""

    partition: int | None = None
    training: int | None = None
    unlearning: int | None = None
    evaluation: int | None = None
