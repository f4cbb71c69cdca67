"""The config: mistakes get one line that helps, and its three written forms agree with the code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml

from relay.base.errors import UserError
from relay.planning.comparisons import Comparison
from relay.planning.config import Config, load
from relay.spec.tasks import built_in

ROOT = Path(__file__).resolve().parents[1]


def refusal(text: str) -> list[str]:
    """The lines with which a config in YAML is refused."""
    with pytest.raises(UserError) as caught:
        load(yaml.safe_load(text))
    return str(caught.value).splitlines()


def written() -> dict[str, object]:
    return yaml.safe_load((ROOT / "config/config.yaml").read_text())


def test_nothing_given_is_the_defaults() -> None:
    assert load({}) == load(None) == Config()
    assert Config().repeats == 5
    assert [c.strategy for c in Config().comparisons] == ["cpu", "cpu", "ddp", "single_gpu"]


def test_the_written_defaults_are_the_defaults() -> None:
    assert load(written()) == Config()
    assert list(written()) == list(Config.model_fields)  # every key, in the model's order


def test_the_demo_is_the_defaults_on_digits_in_shorter_runs() -> None:
    demo = yaml.safe_load((ROOT / "config/demo.yaml").read_text())
    assert load({**written(), **demo}) == Config(task="lenet-digits", repeats=3, epochs=15)


REFUSED = {
    # a misspelt value, as one value of an axis and in a list
    "comparisons: [{strategy: cpu}, {strategy: cpu, loader: residnt}]": (
        "config: comparisons[1].loader: 'residnt' is not allowed; "
        "did you mean 'resident'? allowed: dataloader, resident, null"
    ),
    "task: lenet": f"config: task: 'lenet' is unknown; allowed: {', '.join(built_in())} or a file of your own (.py)",
    # misspelt keys, at every depth
    "epoch: 3": "config: epoch: 3 has an unknown key; did you mean 'epochs'? config/README.md has all",
    "segment: {step: 2}": (
        "config: segment.step: 2 has an unknown key; did you mean 'steps'? allowed: epochs, minutes, steps"
    ),
    "runtime_minutes: 2h": (
        "config: runtime_minutes: '2h' is not allowed; allowed: a whole number of at least 1 "
        "(this is text: write 120, without quotes)"
    ),
    "memory_mb_per_node: 4 GB": (
        "config: memory_mb_per_node: '4 GB' is not allowed; allowed: a whole number of at least 1 or null "
        "(this is text: write 4096, without quotes)"
    ),
    "comparisons: [cpu]": (
        "config: comparisons[0]: 'cpu' is not allowed; allowed: a block with the keys strategy, nodes, "
        "devices_per_node, processes_per_device, cpus_per_task, threads, interop_threads, launcher and others"
    ),
    "comparisons: [{strategy: cpu, learning_rate: [0.1, 0.2]}]": (
        "config: comparisons[0].learning_rate: [0.1, 0.2] is not allowed here; "
        "allowed: beside `comparisons`, one for all of them"
    ),
    "comparisons: [{command: python a.py, name: a, learning_rate: 0.1}]": (
        "config: comparisons[0].learning_rate: 0.1 is not allowed here; allowed: beside `comparisons`, "
        "one for all of them (of a command: `options: {lr: …}`, and {lr} among its words)"
    ),
    'comparisons: [{command: python a.py, name: "a\\nerror: b"}]': (
        "config: comparisons[0].name: 'a\\nerror: b' is not allowed; allowed: letters, digits, '_', '-' and '.', "
        "a letter first"
    ),
    # YAML's accidents
    "learning_rate: 1e-5": (
        "config: learning_rate: '1e-5' is not allowed; allowed: a number greater than 0 and of at most 1000 or null "
        "(this is text: write 1.0e-05, without quotes)"
    ),
    "repeats: true": "config: repeats: true is not allowed; allowed: a whole number of at least 1",
    # what a text program has put in place of a character
    "device: cu–da": (
        "config: device: 'cu–da' is not allowed (U+2013, en dash, stands in it: type - (or --)); did you mean 'cuda'? "
        "allowed: auto, cpu, cuda"
    ),
    "gate:\n \u00a0steps: 20": (
        "config: gate.\u00a0steps: 20 has an unknown key (U+00A0, no-break space, stands in it: type a plain space); "
        "did you mean 'steps'? allowed: seed, steps"
    ),
    # out of bounds
    "epochs: .inf": (
        "config: epochs: Infinity is not allowed; allowed: a number greater than 0 and of at most 1000000 or null"
    ),
    "comparisons: [{strategy: cpu, threads: [1, 0]}]": (
        "config: comparisons[0].threads[1]: 0 is not allowed; "
        "allowed: a whole number of at least 1 and of at most 1024 or null"
    ),
    # the wrong shape
    "segment: {minutes: 90}": ("config: segment.minutes: 90 is not allowed; allowed: at most 60 (runtime_minutes)"),
    "dataset_mirror: https://me:geheim@example.org/x": (
        "config: dataset_mirror: the address has a user in it, whom all users of the machine would see; "
        "write user and password to ~/.netrc"
    ),
}


@pytest.mark.parametrize("text", REFUSED)
def test_a_mistake_has_one_line(text: str) -> None:
    assert refusal(text) == [REFUSED[text]]


@pytest.mark.parametrize("key", list(Config.model_fields))
def test_every_key_refuses_nonsense_by_its_name(key: str) -> None:
    (line,) = (
        refusal(f"{key}: {{no: sense}}")
        if key not in ("gate", "packages", "task_options")
        else refusal(f"{key}: nonsense")
    )
    assert line.startswith(f"config: {key}")
    assert "; allowed: " in line or "? allowed: " in line


@pytest.mark.parametrize("key", list(Comparison.model_fields))
def test_every_key_of_a_comparison_refuses_nonsense_by_its_name(key: str) -> None:
    nonsense = {
        "strategy": "cpu",
        key: 3 if key in ("options", "task_options", "segment", "read", "links") else {"no": "sense"},
    }
    with pytest.raises(UserError) as caught:
        load({"comparisons": [{"strategy": "cpu"}, nonsense]})
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"config: comparisons[1].{key}: ")
    assert "; allowed: " in line


def test_all_mistakes_are_told_at_once() -> None:
    lines = refusal("{epochs: 0, repeats: x, gate: {seed: -1}}")
    assert [line.split(": ")[1] for line in lines] == ["epochs", "repeats", "gate.seed"]


def test_the_schema_in_the_editor_agrees() -> None:
    schema = json.loads((ROOT / "workflow/schemas/config.schema.json").read_text())
    validator = jsonschema.Draft202012Validator(schema)
    assert validator.is_valid(written())
    assert validator.is_valid({"comparisons": [{"strategy": "cpu", "threads": [None, 2], "loader": "resident"}]})
    for text in (
        "epoch: 3",
        "comparisons: [{strategy: cpu, loader: [x]}]",
        "task: foo",
        "epochs: '2'",
        "comparisons: []",
    ):
        assert not validator.is_valid(yaml.safe_load(text)), text


@pytest.mark.slow
def test_schema_defaults_and_documentation_are_in_step_with_the_code() -> None:
    """`make schema` would change none of the three files."""
    command = [sys.executable, str(ROOT / "scripts/schema.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
