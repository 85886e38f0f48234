"""The import contract forbids the model's rules to implementations, new modules included."""

from __future__ import annotations

import configparser
from pathlib import Path

ROOT = Path(__file__).parents[2]
VOCABULARY = {"behaviours", "scope", "actions", "observations"}


def test_every_module_of_the_model_but_its_vocabulary_is_forbidden_to_implementations() -> None:
    contracts = configparser.ConfigParser()
    contracts.read(ROOT / ".importlinter")
    listed = contracts["importlinter:contract:impl-on-vocabulary"]["forbidden_modules"].split()
    forbidden = {m.removeprefix("cowtail.models.") for m in listed if "cowtail.models." in m}
    modules = {path.stem for path in (ROOT / "models").glob("*.py")} - {"__init__"}
    assert forbidden == modules - VOCABULARY
