"""A dataset from a copy that the user has: extracted or packed, sound or damaged."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from datasets_requests import assert_is, corrupt, laid_out, names, one_line, prepare_public
from datasets_server import StandIn, known
from relay.base.errors import UserError
from relay.datasets.cifar10 import read_cifar_batch
from relay.datasets.files import check_file

pytest_plugins = ["datasets_requests"]


def test_a_copy_is_taken_extracted_or_packed(tmp_path: Path, stand_in: StandIn) -> None:
    laid_out(stand_in, tmp_path / "extracted")
    packed = tmp_path / "packed"
    packed.mkdir()
    for name, content in stand_in.archives.items():
        (packed / name).write_bytes(content)
    for root in (tmp_path / "extracted", packed):
        prepare_public(stand_in, tmp_path / f"from-{root.name}", root=root)
        assert_is(tmp_path / f"from-{root.name}", stand_in)
    assert names(packed) == set(stand_in.archives)


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (corrupt, r"corrupted: MD5 is [0-9a-f]{32}, expected [0-9a-f]{32}"),
        (Path.unlink, r"No such file|holds no mnist"),
    ],
)
def test_a_damaged_copy_is_one_line_and_leaves_nothing(tmp_path: Path, stand_in: StandIn, damage, expected) -> None:
    folder = laid_out(stand_in, tmp_path / "root")
    damage(folder / list(stand_in.members)[-1])
    (tmp_path / "out").mkdir()
    with pytest.raises(UserError, match=expected) as error:
        prepare_public(stand_in, tmp_path / "out" / "it", root=tmp_path / "root")
    assert list(stand_in.members)[-1] in one_line(error)
    assert names(tmp_path / "out") == set()


def test_content_with_the_right_md5_and_another_sha256_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    collision = dataclasses.replace(known("file", b"content"), sha256="0" * 64)
    with pytest.raises(UserError, match=r"file: corrupted: SHA-256 is [0-9a-f]{64}, expected 0{64}"):
        check_file(tmp_path / "file", collision)


def test_a_pickle_that_calls_a_function_is_refused(tmp_path: Path) -> None:
    mark = tmp_path / "called"
    harmful = f"cos\nsystem\n(S'touch {mark}'\ntR.".encode()
    with pytest.raises(UserError, match=r"asks for os\.system"):
        read_cifar_batch("data_batch_1", harmful)
    assert not mark.exists()
