"""``cowtail hit``: published lengths, reasons, JSON, and one line for bad input."""

from __future__ import annotations

import json
import re

import pytest
import typer.testing

from cowtail.cli import app, common

R28 = ("--prompt", 7449, "--prompt", 23196, "--prompt", 41300, "--hash-unit", 128, "--eagle")


def _run(*words: object) -> typer.testing.Result:
    return typer.testing.CliRunner().invoke(app, ["hit", *map(str, words)])


def _found(*words: object) -> list[int]:
    result = _run(*words)
    assert result.exit_code == common.HOLDS, result.output
    return [int(found) for found in re.findall(r": (\d+) cached tokens", result.stdout)]


def test_r28_with_the_options_of_the_help_text() -> None:
    assert _found(*R28) == [7296, 23040, 41088]
    assert _found(*R28, "--local") == [7296, 23040, 41088]
    assert _found(*R28, "--store-at-boundary-only") == [0, 0, 30464]


def test_r29_a_prompt_of_two_blocks_finds_one() -> None:
    assert _found("--prompt", 32, "--group", "full:16", "--group", "mamba:16") == [16]


def test_what_was_assumed_and_why_is_said_within_100_columns() -> None:
    result = _run(*R28, "--store-at-boundary-only")
    assert max(map(len, result.stdout.splitlines())) <= 100
    for part in (
        "assumed: full attention and Mamba, in blocks of 30464 tokens each: 238 hash units\n",
        "30464 is 1 x 30464, a block boundary with a state: the first request's chunk ended there",
        "7296 lacks, of full:30464:eagle, the key at 7424 (128 more, to be dropped), which was not",
        "depends on the block sizes and on",
    ):
        assert part in result.stdout
    assert "assumed" not in _run(*R28, "--group", "full:1792", "--group", "mamba:1792").stdout


def test_the_ruler_marks_hit_proof_and_keys() -> None:
    words = ("--prompt", 7449, "--hash-unit", 128, "--eagle")
    lines = [line.split() for line in _run(*words).stdout.splitlines()[-5:]]
    assert lines == [
        ["tokens", "7168", "7296", "7424", "7449", "7552"],
        ["hit", "proof", "end"],
        ["chunk", "ends", "|", "|"],
        ["full:30464:eagle", "·", "·", "●", "·", "·"],
        ["mamba:30464", "·", "●", "·", "·", "·"],
    ]


def test_siblings_and_continuations() -> None:
    groups = ("--group", "full:8", "--group", "mamba:8", "--hash-unit", 2)
    assert _found("--prompt", 13, *groups, "--sibling", 20) == [12]
    assert _found("--prompt", 13, *groups, "--sibling", 20, "--shares", 11) == [8]
    words = ("--prompt", 13, *groups, "--continuation", 3, "--max-tokens", 5)
    assert _found(*words) == [12]
    assert _found(*words, "--local") == [16]


def test_settings_reach_the_arithmetic() -> None:
    one = ("--prompt", 33, "--group", "full:8", "--group", "mamba:8", "--sibling", 40)
    assert _found(*one, "--shares", 24) == [0]
    assert _found(*one, "--shares", 24, "--token-budget", 8) == [24]
    assert _found(*one, "--shares", 24, "--token-budget", 8, "--retention-interval", 0) == [0]
    tail = ("--prompt", 14, "--group", "full:8", "--group", "mamba:8", "--hash-unit", 2)
    assert [_found(*tail, "--formula", release) for release in ("0.32", "0.31")] == [[12], [8]]
    assert _found("--prompt", 40, "--group", "full:4", "--group", "swa:2:window=5") == [36]


def test_json_has_proofs_missing_keys_and_reasons() -> None:
    groups = ("--group", "full:1792:eagle", "--group", "mamba:1792")
    (hit,) = json.loads(_run("--prompt", 7449, "--hash-unit", 128, *groups, "--json").stdout)
    assert (hit["expected"], hit["replay_boundary"], hit["place"]) == (7296, 7296, "store")
    assert hit["proofs"] == [
        {"groups": ["full:1792:eagle"], "key": 7424},
        {"groups": ["mamba:1792"], "key": 7296},
    ]
    assert hit["missing"][0]["length"] == 7424
    assert hit["keys"][1] == {"group": "mamba:1792", "lengths": [5376, 7296]}
    assert hit["chunks"] == [5376, 7296, 7449]
    assert (hit["assumed"], hit["why"][0][:4]) == ([], "7296")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--prompt", 0), "prompt=0: must be 1 or more; raise it"),
        (("--prompt", 9, "--hash-unit", 0), "hash_unit=0: must be 1 or more; raise it"),
        (("--prompt", 9, "--group", "full"), "group 'full': not a group; write full:SIZE, "),
        (("--prompt", 9, "--group", "swa:16"), "group 'swa:16': swa does not go with that; "),
        (("--prompt", 9, "--group", "mamba:8:eagle"), "group 'mamba:8:eagle': mamba does not"),
        (("--prompt", 9, "--group", "full:0"), "group 'full:0': a block has at least one token"),
        (("--prompt", 9, "--group", "swa:4:window=1"), "group swa:4:window=1: a window of 2"),
        (
            ("--prompt", 9, "--hash-unit", 3, "--group", "full:8"),
            "group full:8: its block size must be a multiple of the hash unit 3; ",
        ),
        (("--prompt", 9, "--sibling", 5, "--shares", 6), "sibling of 5 tokens that shares 6: "),
        (("--prompt", 9, "--shares", 6), "--shares 6: goes with --sibling; "),
        (("--prompt", 9, "--sibling", 9, "--continuation", 1), "give one"),
        (("--prompt", 9, "--formula", "0.3"), "formula '0.3': no such formula; did you mean '0.3"),
        (("--prompt", 9, "--store-at-boundary-only", "--local"), "drop one"),
        (("--prompt", 9, "--token-budget", 0), "token_budget=0: must be 1 or more; raise it"),
        (("--prompt", 9, "--retention-interval", -1), "retention_interval=-1: must not be"),
        (("--prompt", 9, "--max-tokens", 0), "max_tokens=0: must be 1 or more; raise it"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_bad_input_is_one_clear_line(words: tuple[object, ...], complaint: str) -> None:
    result = _run(*words)
    assert result.exit_code == common.USAGE, result.output
    (line,) = result.stderr.splitlines()
    assert complaint in line
    assert not result.stdout
