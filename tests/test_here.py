"""What the driver knows of its machine before any job starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from plans import plan
from relay.base.errors import UserError
from relay.config.config import load
from relay.launch import gpus
from relay.planning.plan import Plan
from relay.spec.site import Site, load_site
from relay.workflow import unready
from support.fake_cuda import driver_of_gpus

ROOT = Path(__file__).resolve().parents[1]
MNIST = {"task": "princeton-mnist", "repeats": 1, "comparisons": [{"strategy": "cpu"}]}


def planned(config: dict[str, object], site: Site | None = None) -> Plan:
    return plan(load(config), gpus=0, site=site)


def refusal(made: Plan, results: Path) -> str:
    with pytest.raises(UserError) as caught:
        unready.check(made, results)
    return str(caught.value)


def test_data_that_is_not_where_it_should_be_is_known_before_any_job(tmp_path: Path) -> None:
    root = tmp_path / "data"
    made = planned(MNIST | {"dataset_root": str(root)})
    assert refusal(made, tmp_path).startswith(f"config: dataset_root: '{root}' does not exist; expected a folder")
    root.mkdir()
    assert refusal(made, tmp_path).startswith(f"config: dataset_root: '{root}' holds no mnist: expected MNIST/raw/")
    root.rmdir()
    root.touch()
    assert refusal(made, tmp_path).startswith(f"config: dataset_root: '{root}' is a file; expected a folder")
    made = planned(MNIST | {"dataset_mirror": f"file://{tmp_path}/none"})
    assert "there is no folder" in refusal(made, tmp_path)


@pytest.mark.parametrize(
    ("shown", "count"),
    [(None, 8), ("2,5", 2), ("", 0)],
)
def test_gpus_are_those_that_cuda_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: str | None, count: int
) -> None:
    """What a list means is the driver's to say; that it is asked, and with the list, is what is tested here."""
    driver_of_gpus(tmp_path, monkeypatch, 8)
    if shown is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    assert gpus.count_gpus() == count
    if count == 2:
        made = plan(load({"comparisons": [{"strategy": "ddp", "devices_per_node": [2, 8]}]}))
        assert [each.setting.shape.devices for each in made.settings] == [2]
        assert made.skipped[0].reasons == ("devices_per_node is 8, 2 GPUs can be used here",)


@pytest.mark.parametrize("unfit", ["`", "%", "{", '"'])
def test_a_name_that_slurm_or_a_jobs_shell_would_read_otherwise_is_told_before_anything_is_submitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unfit: str
) -> None:
    folder = tmp_path / f"a'{unfit}b"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (line,) = (each for each in unready.unready(planned({}, load_site("generic", ROOT))) if "rename it" in each)
    assert line.endswith(f": Slurm jobs cannot work with {unfit} in a path; rename it")
    assert unready.unready(planned({})) == []  # on this machine it works
    (line,) = unready.unfit_paths("c$(touch C).yaml", "sound.yaml")
    assert line == "c$(touch C).yaml: Slurm jobs cannot work with $ in a path; rename it"


@pytest.mark.parametrize(("key", "path"), [("image", "/data/x$(id).sif"), ("python", "a;b"), ("image", "--bind=/")])
def test_a_path_that_a_shell_would_read_otherwise_is_refused(tmp_path: Path, key: str, path: str) -> None:
    text = (ROOT / "config/sites/generic.yaml").read_text().split("\nenvironment:")[0]
    (tmp_path / "x.yaml").write_text(f"{text}\nenvironment: {{{key}: {path!r}}}\n")
    with pytest.raises(UserError, match=rf"x\.yaml: environment\.{key}: .* is not allowed; allowed: a name or a path"):
        load_site(str(tmp_path / "x.yaml"), ROOT)
