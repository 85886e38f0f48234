"""The contract level: a scheduler decides by itself, the model follows and predicts the rest."""

from cowtail.harness.contract.follower import Follower, NotCovered
from cowtail.harness.contract.vllm import VllmContract, contract_level, scope_of

__all__ = ["Follower", "NotCovered", "VllmContract", "contract_level", "scope_of"]
