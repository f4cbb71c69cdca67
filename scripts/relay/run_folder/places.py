"""Where a run's files lie below the results directory."""

from dataclasses import dataclass
from pathlib import Path

from relay.spec.tasks import DatasetSpec


def dataset_folder(results: Path, dataset: DatasetSpec) -> Path:
    """Where the dataset lies once it is prepared."""
    return results / "datasets" / dataset.directory_name


FOLDER = "folder"  # in a run's work folder: where its script runs


@dataclass(frozen=True)
class Places:
    """The folders of one run."""

    results: Path
    run_id: str

    @property
    def run(self) -> Path:
        """Declared files: run.json, start.json and a state file for each segment."""
        return self.results / "runs" / self.run_id

    @property
    def work(self) -> Path:
        """Rolling checkpoints and records."""
        return self.results / "checkpoints" / self.run_id

    @property
    def folder(self) -> Path:
        """Where a script runs."""
        return self.work / FOLDER

    @property
    def code(self) -> Path:
        """Snapshots of the code, shared by all runs."""
        return self.results / "code"

    def state(self, step: int) -> Path:
        """The state file of the segment that ends at this step."""
        return self.run / f"step-{step}.json"
