"""What users write in YAML is what is read; what YAML would take for something else is refused in one line."""

import re
from pathlib import Path

import pytest

from refusals import refusal
from relay.spec.yaml_file import read

REFUSED = {
    b"epochs: 1\nseed: 2\nepochs: 3\n": "x: line 3: the key 'epochs' stands here and in line 1; keep one",
    b'{"a": 1, "a": 2}': "x: the key 'a' stands twice in one block; keep one",
    b"a: 1\nb:\n\tc: 2\n": "x: line 3, column 1: is no YAML: a tab stands here; indent with spaces",
    b"a: 1\n# caf\xe9\n": "x: line 2: is not UTF-8 text; save the file in the encoding UTF-8",
    b"a: b: c": "x: line 1, column 5: is no YAML: a colon is not allowed here; compare the indent with "
    "the line above, and see whether the colon there has a space after it",
    b"a:\n- 'b\n": "x: line 2, column 3: is no YAML: a quote is opened here, and not closed",
    b"a: [{b: 1}\n": "x: line 1, column 4: is no YAML: a bracket is opened here, and not closed",
    b"a:\n  - b\n  c: 2\n": "x: line 3, column 3: is no YAML: this does not belong here; look at "
    "indent, quotes and brackets",
    b"a: !!python/object:os.system 1": "x: line 1, column 4: is no YAML: could not determine a constructor for the tag "
    "'tag:yaml.org,2002:python/object:os.system'",
    b"a: 1\nb: &b {c: *b}\n": "x: line 2: *b stands within what it names; write the value instead",
    b"a0: &a0 x\n" + b"".join(b"a%d: &a%d [%s]\n" % (n + 1, n + 1, b", ".join([b"*a%d" % n] * 9)) for n in range(6)): (
        "x: line 7: *a5 makes more than 100,000 values of the file; write fewer aliases"
    ),
    b"a: 1\n? [b, c]\n: 2\n": "x: line 2: a list or a block is not allowed as a key; allowed: text",
    b'{"a": "\\ud800"}': "x: a control character ('\\ud800') stands in a text; a terminal would obey it: remove it",
}


@pytest.mark.parametrize("content", REFUSED)
def test_what_is_no_yaml_is_one_line_that_names_the_place(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(content)
    assert refusal(read, tmp_path / "x", "x") == REFUSED[content]


def test_what_is_too_large_for_a_file_of_settings_is_told(tmp_path: Path) -> None:
    for begin, more, most, told in (
        ("#", "#", 1_000_000, "x: has more than 1,000,000 bytes, which is no file of this kind"),
        ("a: b", "b", 10_000, " has 10,001 characters; allowed: at most 10,000"),
    ):
        (tmp_path / "x").write_text(begin + more * (most - 1))
        read(tmp_path / "x", "x")
        (tmp_path / "x").write_text(begin + more * most)
        assert told in refusal(read, tmp_path / "x", "x")


def test_what_a_terminal_would_obey_is_refused(tmp_path: Path) -> None:
    for text in (r'a: "\e[31m"', r'{"a": "\u001b[31m"}', r'"\x9b": 1'):
        (tmp_path / "x").write_text(text)
        told = refusal(read, tmp_path / "x", "x")
        assert re.fullmatch("x: a control character .* stands in a text; a terminal would obey it: remove it", told)
    (tmp_path / "x").write_text(r"a: 'C:\u001b\r'" + "\nb: |\n  two\n  lines\n")
    assert read(tmp_path / "x", "x") == {"a": r"C:\u001b\r", "b": "two\nlines\n"}


def test_numbers_are_decimal_as_they_are_written(tmp_path: Path) -> None:
    """PyYAML alone reads 7200, 8, 31, 1000 and a date in the first five, and fails on the next two, as JSON does."""
    long, file = "9" * 5000, tmp_path / "x"
    file.write_text(f'{{"a": {long}}}')
    assert read(file, "x") == {"a": long}
    text = f"[2:00:00, 010, 0x1f, 1_000, 2020-01-01, 2020-13-45, {long}, 0, -3, 2.5, 1.5e3, -.5, .inf, 1e-3]"
    file.write_text(text)
    assert read(file, "x") == [
        *("2:00:00", "010", "0x1f", "1_000", "2020-01-01", "2020-13-45", long),
        *(0, -3, 2.5, 1500.0, -0.5, float("inf"), "1e-3"),
    ]
