"""The list of planted faults fits the code: each has its place and its tests, and no package is without."""

from planted.plant import ROOT, faults, noticed

FAULTS = faults()
PACKAGES = {path.name for path in (ROOT / "scripts/relay").iterdir() if path.is_dir() and path.name[0] != "_"}


def is_there(test: str) -> bool:
    """Whether the file has a test of that name; a file alone, whether it is there."""
    name, _, function = test.partition("[")[0].partition("::")
    file = ROOT / "tests" / name
    return file.is_file() and (not function or f"def {function.split('::')[-1]}(" in file.read_text())


def test_each_fault_has_its_place_and_its_tests() -> None:
    for fault in FAULTS:
        assert fault.planted() != (ROOT / fault.file).read_text()
        assert [test for test in fault.tests if not is_there(test)] == []
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    assert {fault.file.split("/")[2] for fault in FAULTS} == PACKAGES


def test_the_table_says_of_each_fault_which_test_has_noticed_it() -> None:
    rows = noticed()
    assert [*rows] == [fault.name for fault in FAULTS]
    assert [name for name, (_, _, test, _) in rows.items() if not is_there(test)] == []
