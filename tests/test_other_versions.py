"""A row says where its runs, or its proof, were made with other libraries, data or code than the others."""

from pathlib import Path

import pytest
import torch

from gate_runs import FEW_STEPS, Gates, planned, shortened
from own_gates import judged, own_strategy
from relay.base.errors import UserError
from relay.base.files import CHECKSUM_BYTES
from relay.equivalence import reference as plain_reference
from relay.status import finished
from results_tree import Tree

OLDER = {"torch": "2.12.0+cpu", "python": "3.11.2", "cuda": None}
SAME = {"torch": "2.13.0+cpu", "python": "3.12.1", "cuda": None}
SPEEDS = [100.0, 101.0, 102.0]


@pytest.mark.slow
def test_a_run_with_another_torch_than_its_verdict_is_not_proven(tree: Tree) -> None:
    tree.setting("cpu", SPEEDS, name="proven", verdict={"versions": SAME})
    tree.setting("ddp", [9000.0, 9001.0], name="other", devices_per_node=2, verdict={"versions": OLDER})
    row = tree.row("ddp")
    assert (row["equivalent"], row["standing"], row["max_loss_difference"]) == (False, None, None)
    assert row["reason"] == (
        "all 2 repeats: proven with other versions than it ran with: torch 2.12.0+cpu, not 2.13.0+cpu; "
        "`rm -r results/equivalence/gates/gate-other` lets it be proven again"
    )
    assert tree.row("cpu")["standing"] == "fastest"
    assert tree.compare() == 0
    assert "proven with other versions" in tree.html


def test_no_bit_of_a_reference_changes_unseen(tmp_path: Path) -> None:
    """torch reads a changed number as it stands: every right strategy would be struck out."""
    path = tmp_path / "reference.pt"
    known = {"algorithm": {"losses": torch.arange(1000.0)}, "made_with": {"versions": {"torch": "2.13.0"}}}
    plain_reference.write(path, known)
    assert torch.equal(plain_reference.read(path)["algorithm"]["losses"], known["algorithm"]["losses"])
    assert finished.reference(path) == ""
    content = path.read_bytes()
    number = content.index(known["algorithm"]["losses"][500:502].numpy().tobytes())
    changed = [content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :] for place in (0, 40, number)]
    for other in (*changed, content[:-1], content[:20], b"", content[CHECKSUM_BYTES:]):  # torch's own file is the last
        path.write_bytes(other)
        with pytest.raises(UserError, match=r"reference.pt: is damaged \(its bytes were changed, or .*\); remove it"):
            plain_reference.read(path)
        assert "is damaged" in finished.reference(path)


@pytest.mark.slow
def test_a_reference_made_with_another_torch_proves_nothing(gates: Gates, tmp_path: Path, capfd) -> None:
    known = plain_reference.read(gates.reference(shortened(planned("cpu")[1], FEW_STEPS)))
    known["made_with"]["versions"]["torch"] = "2.12.0"
    (older := tmp_path / "older" / "reference.pt").parent.mkdir()
    plain_reference.write(older, known)
    found = judged(gates, own_strategy(tmp_path / "strategies", "right"), trained=older)
    assert (found.status, found.verdict) == (1, None)
    told = f"{older}: was made with torch 2.12.0, here it is {torch.__version__}; `rm -r {older.parent}`"
    assert told in capfd.readouterr().err
