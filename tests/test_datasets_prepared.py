"""The folder of a prepared dataset: made once, whole or not at all, and checked by the jobs that read it."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from datasets_requests import (
    DIGITS,
    SYNTHETIC,
    corrupt,
    make_digits,
    make_synthetic,
    names,
    one_line,
    truncate,
)
from relay.base.errors import UserError
from relay.datasets import arrays
from relay.datasets.manifest import MANIFEST, verify
from relay.datasets.prepare import prepare

# The prepared folder


def test_a_second_preparation_does_nothing_and_a_damaged_one_is_made_anew(tmp_path: Path) -> None:
    out = tmp_path / "digits"
    made = prepare(DIGITS, make_digits, out)
    before = (out / MANIFEST).stat().st_mtime_ns
    assert prepare(DIGITS, make_digits, out) == made
    assert (out / MANIFEST).stat().st_mtime_ns == before
    corrupt(out / "train-inputs.npy")
    assert prepare(DIGITS, make_digits, out) == made
    verify(out, full=True)
    assert names(tmp_path) == {"digits"}


def test_a_folder_that_holds_anything_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match=r"output: .* holds other files; expected a new, empty or prepared folder"):
        prepare(DIGITS, make_digits, tmp_path)
    assert names(tmp_path) == {"thesis.tex"}


def test_processes_that_prepare_the_same_folder_at_once_all_succeed(tmp_path: Path) -> None:
    with ProcessPoolExecutor(4) as pool:
        made = list(pool.map(prepare, [SYNTHETIC] * 4, [make_synthetic] * 4, [tmp_path / "out"] * 4))
    assert all(one == made[0] for one in made)
    assert verify(tmp_path / "out", full=True) == made[0]
    assert names(tmp_path) == {"out"}


def half_made(folder: Path) -> None:
    """A preparation that fails when its first file is written."""
    (folder / "first").write_text("half")
    raise UserError("the second file is missing")


def test_nothing_half_made_is_used(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the second file is missing"):
        prepare(DIGITS, half_made, tmp_path / "digits")
    assert names(tmp_path) == set()


# What jobs read


def test_what_a_job_writes_into_its_arrays_never_reaches_the_files(tmp_path: Path) -> None:
    prepare(DIGITS, make_digits, tmp_path / "digits")
    inputs, _ = arrays.load(tmp_path / "digits", "train")
    assert isinstance(inputs, np.memmap)
    assert inputs.flags.c_contiguous
    inputs[:] = 0
    inputs.flush()
    verify(tmp_path / "digits", full=True)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (truncate, "bytes, the manifest says"),
        (Path.unlink, "No such file"),
    ],
)
def test_a_damaged_array_stops_a_job_with_one_line(tmp_path: Path, damage, said) -> None:
    prepare(DIGITS, make_digits, tmp_path / "digits")
    path = tmp_path / "digits" / "test-inputs.npy"
    damage(path)
    with pytest.raises(UserError, match=said) as error:
        verify(tmp_path / "digits")
    assert str(path) in one_line(error)
