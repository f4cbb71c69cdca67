"""The list of planted faults fits the code: each has its place and its tests, and no package is without."""

from planted.plant import ROOT, faults

FAULTS = faults()


def test_each_fault_has_its_place_and_its_tests() -> None:
    for fault in FAULTS:
        assert fault.planted() != fault.old
        assert [test for test in fault.tests if not (ROOT / "tests" / test.partition("::")[0]).is_file()] == []
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 64
