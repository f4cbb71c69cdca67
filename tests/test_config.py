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


def test_an_axis_takes_one_value_or_several() -> None:
    comparison = load({"comparisons": [{"strategy": "ddp", "nodes": 2, "options": {"bucket_mb": 25}}]}).comparisons[0]
    assert comparison.nodes == [2]
    assert comparison.options == {"bucket_mb": [25]}
    assert load({"comparisons": [{"strategy": "ddp", "nodes": [1, 2]}]}).comparisons[0].nodes == [1, 2]


def test_whole_numbers_serve_as_lengths() -> None:
    config = load({"epochs": 2, "segment": {"epochs": 1}})
    assert (config.epochs, type(config.epochs)) == (2.0, float)  # so that 2 and 2.0 have one fingerprint


REFUSED = {
    # a misspelt value, as one value of an axis and in a list
    "comparisons: [{strategy: cpu}, {strategy: cpu, loader: residnt}]": (
        "config: comparisons[1].loader: 'residnt' is not allowed; "
        "did you mean 'resident'? allowed: dataloader, resident, null"
    ),
    "comparisons: [{strategy: cpu, loader: [resident, x]}]": (
        "config: comparisons[0].loader[1]: 'x' is not allowed; allowed: dataloader, resident, null"
    ),
    "device: gpu": "config: device: 'gpu' is not allowed; allowed: auto, cpu, cuda",
    "task: lenet": f"config: task: 'lenet' is unknown; allowed: {', '.join(built_in())} or a file of your own (.py)",
    "learning_rate_scaling: root": (
        "config: learning_rate_scaling: 'root' is not allowed; allowed: none, linear, square_root"
    ),
    # misspelt keys, at every depth
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
    "gate: {seeds: 2}": "config: gate.seeds: 2 has an unknown key; did you mean 'seed'? allowed: seed, steps",
    "comparisons: [{strategy: cpu, segment: {foo: 2}}]": (
        "config: comparisons[0].segment.foo: 2 has an unknown key; allowed: epochs, minutes, steps"
    ),
    "3: 4": "config: 3 is not allowed as a key; allowed: text",
    "comparisons: [{strategy: cpu, options: {3: 4}}]": (
        "config: comparisons[0].options: 3 is not allowed as a key; allowed: text"
    ),
    # YAML's accidents
    "epochs: '2'": (
        "config: epochs: '2' is not allowed; allowed: a number greater than 0 and of at most 1000000 or null "
        "(this is text: write 2, without quotes)"
    ),
    "learning_rate: 1e-5": (
        "config: learning_rate: '1e-5' is not allowed; allowed: a number greater than 0 and of at most 1000 or null "
        "(this is text: write 1.0e-05, without quotes)"
    ),
    "repeats: true": "config: repeats: true is not allowed; allowed: a whole number of at least 1",
    "epochs: yes": (
        "config: epochs: true is not allowed; allowed: a number greater than 0 and of at most 1000000 or null"
    ),
    "device: on": "config: device: true is not allowed; allowed: auto, cpu, cuda",
    "repeats: 3.0": "config: repeats: 3.0 is not allowed; allowed: a whole number of at least 1",
    "epochs: 2020-01-01": (
        "config: epochs: 2020-01-01 is not allowed; allowed: a number greater than 0 and of at most 1000000 or null"
    ),
    "repeats:": "config: repeats: null is not allowed; allowed: a whole number of at least 1",
    # what a text program has put in place of a character
    "device: cu–da": (
        "config: device: 'cu–da' is not allowed (U+2013, en dash, stands in it: type - (or --)); did you mean 'cuda'? "
        "allowed: auto, cpu, cuda"
    ),
    "seed: –1": (
        "config: seed: '–1' is not allowed (U+2013, en dash, stands in it: type - (or --)); allowed: a whole number of "
        "at least 0 and less than 2147483648"
    ),
    "gate:\n \u00a0steps: 20": (
        "config: gate.\u00a0steps: 20 has an unknown key (U+00A0, no-break space, stands in it: type a plain space); "
        "did you mean 'steps'? allowed: seed, steps"
    ),
    "device: “cpu”": (
        "config: device: '“cpu”' is not allowed (U+201C, left double quotation mark, stands in it: type \"); "
        "did you mean 'cpu'? allowed: auto, cpu, cuda"
    ),
    "device: CPU": "config: device: 'CPU' is not allowed; did you mean 'cpu'? allowed: auto, cpu, cuda",
    # out of bounds
    "learning_rate: 1.0e+30": (
        "config: learning_rate: 1e+30 is not allowed; allowed: a number greater than 0 and of at most 1000 or null"
    ),
    "epochs: 0": "config: epochs: 0 is not allowed; allowed: a number greater than 0 and of at most 1000000 or null",
    "epochs: .inf": (
        "config: epochs: Infinity is not allowed; allowed: a number greater than 0 and of at most 1000000 or null"
    ),
    "margin: 1": "config: margin: 1 is not allowed; allowed: a number of at least 0 and less than 1",
    "seed: -1": ("config: seed: -1 is not allowed; allowed: a whole number of at least 0 and less than 2147483648"),
    "comparisons: [{strategy: cpu, threads: [1, 0]}]": (
        "config: comparisons[0].threads[1]: 0 is not allowed; "
        "allowed: a whole number of at least 1 and of at most 1024 or null"
    ),
    "comparisons: [{strategy: cpu, nodes: []}]": (
        "config: comparisons[0].nodes: [] is not allowed; allowed: a whole number of at least 1, or a list of these"
    ),
    # the wrong shape
    "segment: 7": "config: segment: 7 is not allowed; allowed: a block with the keys epochs, steps, minutes",
    "segment: {}": "config: segment: {} gives nothing; allowed: exactly one of epochs, steps, minutes",
    "segment: {epochs: 1, steps: 2}": (
        'config: segment: {"epochs": 1, "steps": 2} gives epochs and steps; '
        "allowed: exactly one of epochs, steps, minutes"
    ),
    "segment: {minutes: 90}": ("config: segment.minutes: 90 is not allowed; allowed: at most 60 (runtime_minutes)"),
    "strategy_folders: here": ("config: strategy_folders: 'here' is not allowed; allowed: a list, each non-empty text"),
    "dataset_mirror: https://me:geheim@example.org/x": (
        "config: dataset_mirror: the address has a user in it, whom all users of the machine would see; "
        "write user and password to ~/.netrc"
    ),
    "dataset_mirror: example.org": (
        "config: dataset_mirror: 'example.org' is not allowed; "
        "allowed: an address (http://…, https://… or file://…) or null"
    ),
    "comparisons: [{nodes: 1}]": "config: comparisons[0]: gives neither a strategy nor a command; allowed: one of them",
    "comparisons: [{strategy: cpu, options: {a: [1, [2]]}}]": (
        "config: comparisons[0].options.a[1]: [2] is not allowed; allowed: a number, text, true, false, null"
    ),
    "comparisons: [{strategy: cpu, options: 3}]": (
        "config: comparisons[0].options: 3 is not allowed; allowed: a block of names and values"
    ),
    "packages: {1: [einops]}": "config: packages: 1 is not allowed as a key; allowed: text",
    "packages: {torch: a}": "config: packages.torch: 'a' is not allowed; allowed: a list, each non-empty text",
    "[1]": "config: [1] is not allowed; allowed: keys and values",
}


def test_a_strategys_own_setting_in_the_wrong_place_is_told_the_right_one() -> None:
    (line,) = refusal("comparisons: [{strategy: pipeline, micro_batches: 4}]")
    assert line.startswith("config: comparisons[0].micro_batches: 4 has an unknown key; allowed: ")
    assert line.endswith("(a strategy's own settings stand under options)")


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


def test_a_misspelt_key_is_guessed_and_a_strange_one_is_not() -> None:
    (close,), (strange,) = refusal("epoch: 3"), refusal("zzz: 3")
    assert close.startswith("config: epoch: 3 has an unknown key; did you mean 'epochs'? allowed: ")
    assert strange.startswith("config: zzz: 3 has an unknown key; allowed: checkpoint_every_epochs, ")


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


def schema(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts/schema.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_schema_defaults_and_documentation_are_in_step_with_the_code() -> None:
    """`make schema` would change none of the three files."""
    done = schema("--check")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_file_out_of_step_is_named_and_mended(tmp_path: Path) -> None:
    assert schema("--root", str(tmp_path)).returncode == 0
    assert schema("--root", str(tmp_path), "--check").returncode == 0
    edited = tmp_path / "config/README.md"
    edited.write_text(edited.read_text().replace("`epochs`", "`epoch`"))
    done = schema("--root", str(tmp_path), "--check")
    assert (done.returncode, done.stderr.splitlines()) == (
        1,
        ["config/README.md: is out of step with the code; run 'make schema'"],
    )
    assert schema("--root", str(tmp_path)).stdout == "wrote config/README.md\n"
    assert schema("--root", str(tmp_path), "--check").returncode == 0


def test_the_documentation_has_every_key() -> None:
    text = (ROOT / "config/README.md").read_text()
    for key in [*Config.model_fields, *Comparison.model_fields]:
        assert f"| `{key}` |" in text
    for task in built_in():
        assert f"| `{task}` |" in text
    example = text.split("```yaml\n")[1].split("```")[0]
    assert len(load(yaml.safe_load(example)).comparisons) == 2
