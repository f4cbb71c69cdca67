"""The comparison's report: a page that is well formed, escapes what it is given and loads nothing."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

from pyarrow import parquet

from relay.comparison import drawing, terminal, words
from relay.comparison.columns import COMPARISON, Column, read_csv, write_csv
from relay.comparison.page import evidence
from relay.config.config import Config, load
from relay.spec.labels import setting_labels
from results_tree import Tree, told

# Other options of a task are another model or other data: each has an answer of its own, and no speed is compared

NARROW: dict[str, Any] = {"task_options": {"width": 4}, "metrics": ("dice",)}
WIDE: dict[str, Any] = {"task_options": {"width": 8}, "metrics": ("dice",)}


def learnt(dice: float, loss: float) -> dict[str, Any]:
    """What a run's summary says of a segmentation."""
    evaluation = {"step": 22, "test_loss": loss, "test_accuracy": None, "test_metrics": {"dice": dice}}
    return {"test_accuracy": None, "test_metric": dice, "test_loss": loss, "evaluations": [evaluation]}


def test_each_has_an_answer_and_what_has_learnt_most_comes_first(tree: Tree) -> None:
    """One process trains the narrow network, two processes the wide one."""
    for width, (dice, loss), strategy, devices, speed in (
        (NARROW, (0.287, 0.7), "cpu", 1, 1000.0),
        (WIDE, (0.889, 0.1), "ddp", 2, 760.0),
    ):
        speeds = [speed, 1.01 * speed, 0.99 * speed]
        tree.setting(strategy, speeds, summary=learnt(dice, loss), devices_per_node=devices, **width)
    wide, narrow = tree.answers()
    assert [wide.trained, narrow.trained] == ["lenet-digits (width=8)", "lenet-digits (width=4)"]
    assert (wide.certainty, narrow.certainty) == ("alone", "alone")
    assert "width=8) is recommended. Its test dice is 0.889. Ask Slurm for 1 node" in words.told("sentence", wide)
    assert "Its test dice is 0.287." in words.told("sentence", narrow)
    for answer in (wide, narrow):
        assert "speed does not compare them" in told(answer)
        assert not [claim for claim in ("may not pay", "ideal double", "times as fast") if claim in told(answer)]


def test_page_escapes_what_it_is_given(full: Tree) -> None:
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; [bold]" in full.html
    assert full.html.count("<script") == 1
    assert full.html.count("<pre ") == full.html.count("data-copy=") > 1, "each block has its button"
    assert "&lt;img src=x&gt;" in full.html
    assert "hook=&lt;b&gt;$x_1$" in full.html


def test_no_name_turns_a_page_or_breaks_a_table(tree: Tree) -> None:
    name = "a\u202eb \\| c\nd"
    tree.setting("cpu", [100.0, 101.0], options={"hook": name}, summary={"reason": name})
    assert tree.compare() == 0
    assert "\u202e" not in tree.html
    row = next(line for line in (tree.root / "comparison.md").read_text().splitlines() if line.startswith("| cpu"))
    assert len(re.findall(r"(?<!\\)(?:\\\\)*\|", row)) == 13, "12 columns"
    done = subprocess.run(["bash", "-n", tree.root / "recommendation.sbatch"], capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")


def test_of_very_many_settings_the_first_are_drawn(tree: Tree) -> None:
    for place in range(drawing.MOST_SETTINGS + 2):
        tree.setting("cpu", [100.0 + place], warmup_steps=place)
    assert tree.compare() == 0
    assert f"Of 42 settings, the first {drawing.MOST_SETTINGS} of the table are drawn." in tree.html


# The evidence on the page: what a reader needs to check a figure, from the records themselves


def test_the_whole_config_is_there_and_loads_again(tree: Tree) -> None:
    ddp = {"strategy": "ddp", "devices_per_node": [2, 4], "segment": {"epochs": 1}}
    given = load({"epochs": 3, "comparisons": [ddp]})
    assert load(given.written()) == given
    assert set(given.written()) == set(Config.model_fields)
    assert given.written()["comparisons"][0]["strategy"] == "ddp"
    tree.setting("cpu", [900.0])
    tree.more = {"config": given.written()}
    found = evidence(tree.inputs(), tree.root)
    assert "devices_per_node:" in found["config"]
    assert not found["shrunk"]


# The table of settings as Parquet and as Markdown: the same rows as the CSV, and readable by the usual tools.


def test_parquet_has_the_rows_of_the_csv_with_their_types(full: Tree) -> None:
    table = parquet.read_table(full.root / "comparison.parquet")
    assert table.to_pylist() == read_csv(full.root / "comparison.csv", COMPARISON)
    types = {"string": "str", "int64": "int", "double": "float", "bool": "bool"}
    found = {field.name: types[str(field.type)] for field in table.schema}
    assert found == {name: column.type for name, column in COMPARISON.items()}
    assert table.schema.field("gpu_power_watts").metadata[b"unit"] == b"W"


def test_no_text_of_a_csv_is_a_formula(tmp_path: Path) -> None:
    columns = {"strategy": Column(), "speed": Column("float")}
    rows = [{"strategy": name, "speed": -1.5} for name in ("=1+1", "@x", "'quoted", "ddp")]
    write_csv(tmp_path / "x.csv", columns, rows)
    assert (tmp_path / "x.csv").read_text().splitlines()[1:3] == ["'=1+1,-1.5", "'@x,-1.5"]
    assert read_csv(tmp_path / "x.csv", columns) == rows


# What a call for some strategies shows at its end: their speeds and proofs, without a comparison.


def test_each_setting_has_its_speed_and_whether_it_is_proven(full: Tree) -> None:
    *settings, _ = terminal.alone(json.loads(full.write_plan().read_text()), full.root, ["ddp"])
    told = {line.partition("): ")[2] for line in settings}
    assert len(told) == 3
    assert "19,900 ±13 % images/s in 3 repeats; proven to train the same as one process" in told
    assert any(re.search("41,000 .* NOT proven: probably .*: algorithm: losses differ by 0.25", line) for line in told)
    assert any(line.startswith("failed: repeats 2 and 3: RuntimeError") for line in told), told


# The comparison in words: numbers, and names of settings that tell them apart.


def test_settings_that_look_alike_are_told_apart(tree: Tree) -> None:
    tree.setting("ddp", [100.0, 101.0], devices_per_node=2, global_batch_size=64)
    tree.setting("ddp", [200.0, 201.0], devices_per_node=2, global_batch_size=128)
    tree.setting("ddp", [300.0, 301.0], devices_per_node=2, global_batch_size=128, cpus_per_task=2)
    tree.setting("ddp", [400.0, 401.0], devices_per_node=2, global_batch_size=128, warmup_steps=5)
    labels = setting_labels(tree.rows())
    assert len(set(labels)) == 4
    assert labels[-1] == "2 procs, 1 thread, resident, batch 64"
    assert labels[-2] == "2 procs, 1 thread, resident, batch 128, 1 CPU, ddp-2"
    assert labels[1] == "2 procs, 1 thread, resident, batch 128, 2 CPUs"
