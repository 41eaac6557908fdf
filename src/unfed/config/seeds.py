"""The four seeds of one repetition."""

from __future__ import annotations

from dataclasses import dataclass

from unfed import rng
from unfed.config.config import Config


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
