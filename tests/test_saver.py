"""The ranks of a training save and load together: what one of them meets, all of them know."""

import errno
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from damaged import change_a_byte
from preloaded import spawned
from relay.base.errors import UserError
from relay.chain import ChainError
from relay.chain.peers import Peers
from relay.chain.saving import Parts, Saver
from relay.chain.sealed import Folder, damage
from relay.process.ranks import Ranks
from relay.training.checkpoint import Trained


class Numbers:
    """A content of which each rank has a number of its own."""

    def __init__(self, number: int) -> None:
        self.number = number

    def save(self, folder: Path, step: int) -> Parts:
        return Parts({"number": self.number}, {})

    def load(self, place: Path, own: Mapping[str, Any]) -> None:
        self.number = own["number"]

    def prove(self, place: Path) -> None:
        assert damage(place) is None


def test_each_rank_goes_on_with_its_own_and_damage_in_one_share_is_known_to_all(tmp_path: Path) -> None:
    spawned(_goes_on, 2, tmp_path)


def _goes_on(ranks: Ranks, folder: Path) -> None:
    Saver(Folder(folder), Numbers(ranks.rank + 5), ranks, "first").save(3)
    content = Numbers(0)
    saver = Saver(Folder(folder), content, ranks, "second")
    place = saver.folder.place(3)
    assert saver.damage(place) is None
    saver.load(place)
    assert (content.number, saver.saved) == (ranks.rank + 5, 3)
    assert saver.longest_save_seconds > 0
    ranks.barrier()
    if ranks.rank == 1:
        change_a_byte(place / "rank-1.pt")
    ranks.barrier()
    assert "rank-1.pt does not have the checksum" in (saver.damage(place) or "")


def test_an_error_without_words_is_told_by_its_name() -> None:
    with pytest.raises(ChainError, match=r"^TimeoutError\(\)$"):
        Peers().alike(lambda: (_ for _ in ()).throw(TimeoutError()))


def test_an_error_is_told_though_the_peers_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Peers, "gather", lambda *_: int("closed by peer"))
    with pytest.raises(ZeroDivisionError):
        Peers().alike(lambda: 1 // 0)


def test_rank_0_alone_looks_where_checkpoints_are_and_all_raise_its_refusal(tmp_path: Path) -> None:
    """Another node may fail to look, and the others would wait for it."""
    spawned(_looks, 2, tmp_path)


def _looks(ranks: Ranks, folder: Path) -> None:
    def within(*_: Any) -> list[Path]:
        if ranks.rank:
            raise OSError(errno.EIO, "not on this node")
        raise UserError("the folder is another user's")

    strategy: Any = None
    with mock.patch("relay.training.checkpoint.within", within), pytest.raises(UserError, match="another user's"):
        Trained(strategy, ranks, folder).go_on(Saver(Folder(folder), Numbers(0), ranks, "first"), 0, 9)


def test_an_error_of_one_ranks_own_ends_all_of_them(tmp_path: Path) -> None:
    """The others had waited for it until the timeout."""
    spawned(_one_fails, 2, tmp_path)


def _one_fails(ranks: Ranks, folder: Path) -> None:
    content = Numbers(0)
    vars(content)["save"] = lambda *_: ranks.alike(lambda: Parts({"number": 1 // ranks.rank}, {}))
    kind = ChainError if ranks.rank else ZeroDivisionError
    with pytest.raises(kind, match="^rank 0 has failed: ZeroDivisionError: " if ranks.rank else "^integer division"):
        Saver(Folder(folder), content, ranks, "attempt").save(1)
