"""The recommended script has what every job of the site has: its reservation, and its mail."""

from __future__ import annotations

from results_tree import Tree

pytest_plugins = ["results_tree"]

FLAGS = ["--reservation=course", "--mail-type=END,FAIL", "--mail-user=me@example.org"]


def test_the_recommended_block_asks_for_them(tree: Tree) -> None:
    tree.setting("cpu", [1000.0, 1001.0, 999.0])
    tree.rules = {"site_flags": FLAGS}
    assert tree.compare() == 0
    lines = (tree.root / "recommendation.sbatch").read_text().splitlines()
    assert [line for line in lines if "reservation" in line or "mail" in line] == [f"#SBATCH {f}" for f in FLAGS]
