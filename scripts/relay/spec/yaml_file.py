"""Reads the YAML files that users write, and refuses what YAML would silently take for something else; and the base of
the models that their content is held against."""

import json
import re
from collections.abc import Hashable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

from relay.base.errors import UserError
from relay.spec.hints import hint
from relay.spec.messages import error_lines, show, unknown

MOST = 1_000_000  # bytes of a file
MOST_VALUES = 100_000  # in a file with aliases, which may name a block of aliases again and again
LONGEST = 10_000  # characters of a text
TEXT = re.compile(rf'"((?:[^"\\]|\\.){{{LONGEST + 1},}})"')  # in JSON
CONTROL = re.compile(r"\\u00[01][0-9a-f]|\\[bfr]|[\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")  # in JSON
# PyYAML's words for frequent mistakes, and plainer ones.
PLAINER = {
    "'\\t'": "a tab stands here; indent with spaces",
    "mapping values are not allowed": "a colon is not allowed here; compare the indent with the line above, and see "
    "whether the colon there has a space after it",
    "quoted scalar found unexpected end": "a quote is opened here, and not closed",
    "<stream end>": "a bracket is opened here, and not closed",
    "expected <block end>": "this does not belong here; look at indent, quotes and brackets",
}
MOST_DIGITS = 300  # of a whole number: longer ones are text

Model = TypeVar("Model", bound=BaseModel)
Natural = Annotated[int, Field(ge=1)]
Whole = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Text = Annotated[str, Field(min_length=1)]


class Block(BaseModel):
    """The base of all blocks. Unknown keys are refused, and so are values of a wrong type, such as '0.1' or yes."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


def validated(model: type[Model], raw: Mapping[str, Any], shown: str, further: Mapping[str, str]) -> Model:
    """What users wrote, as the model has it; what is left out has its default.

    Raises UserError with a line for each mistake: the file (as `shown`), the key, its value, and what is allowed.
    `further`: keys of another file → where that is.
    """
    try:
        return model.model_validate(dict(raw))
    except ValidationError as error:
        lines = error_lines(error, raw, model.model_json_schema(), further)
        raise UserError("\n".join(f"{shown}: {line}" for line in lines)) from None


def refused(message: str) -> PydanticCustomError:
    """What a model raises for what it does not take; `message` says what is allowed, and of several keys which."""
    return PydanticCustomError("refused", "{message}", {"message": message})


def fits(pattern: str, allowed: str) -> AfterValidator:
    """Makes a text one that matches the whole pattern, because it becomes part of a command; `allowed` are words."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise refused(f"{show(text)} is not allowed; allowed: {allowed}")
        return text

    return AfterValidator(check)


def one_of(*names: str) -> AfterValidator:
    """Makes a text one of these names."""

    def check(text: str) -> str:
        if text not in names:
            raise refused(unknown(f"{show(text)} is unknown", text, names))
        return text

    return AfterValidator(check)


class Strict(yaml.SafeLoader):
    """YAML with decimal numbers only, no dates, and each key of a block once, which is a text or a number.

    PyYAML follows YAML 1.1, where 2:00:00 is 7,200 (base 60), 010 is 8 (octal) and the last of two equal keys wins.
    Here the first two are text, as are dates, which the typed models refuse where they expect a number.
    """

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._values = 0  # so far, those of aliases included
        self._values_of: dict[yaml.Node | None, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event, before = self.peek_event(), self._values
        node = super().compose_node(parent, index)
        if not isinstance(event, yaml.AliasEvent):
            self._values += 1
            self._values_of[node] = self._values - before
            return node
        assert event.start_mark is not None  # as with every event of a text
        place = f"line {event.start_mark.line + 1}: *{event.anchor}"
        if node not in self._values_of:
            raise _Refused(f"{place} stands within what it names; write the value instead")
        self._values += self._values_of[node]
        if self._values > MOST_VALUES:
            raise _Refused(f"{place} makes more than {MOST_VALUES:,} values of the file; write fewer aliases")
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        first: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise _Refused(f"line {line}: a list or a block is not allowed as a key; allowed: text")
            if key.tag != "tag:yaml.org,2002:merge":
                if (before := first.get((key.tag, key.value))) is not None:
                    raise _Refused(f"line {line}: the key {show(key.value)} stands here and in line {before}; keep one")
                first[key.tag, key.value] = line
        return super().construct_mapping(node, deep)


Strict.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in pairs if tag.rpartition(":")[2] not in ("int", "float", "timestamp")]
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _tag, _pattern in (
    ("int", rf"[-+]?(0|[1-9][0-9]{{0,{MOST_DIGITS - 1}}})$"),
    ("float", r"[-+]?([0-9]*\.[0-9]+([eE][-+]?[0-9]+)?|\.inf)$"),
):
    Strict.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_pattern), list("-+.0123456789"))


class _Refused(yaml.YAMLError):
    """What is YAML, and is not allowed here; the text says why."""


def read(file: Path, shown: str) -> Any:
    """The content of a YAML or JSON file, None for an empty one. `shown` is how messages call the file.

    Raises UserError with one line for a file that cannot be read, is not UTF-8, or is neither YAML nor JSON.
    """
    try:
        with file.open("rb") as stream:
            content = stream.read(MOST + 1)
    except OSError as error:
        raise UserError(f"{shown}: cannot be read: {error.strerror}") from None
    if len(content) > MOST:
        raise UserError(f"{shown}: has more than {MOST:,} bytes, which is no file of this kind")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(f"{shown}: line {line}: is not UTF-8 text; save the file in the encoding UTF-8") from None
    try:
        value = _parsed(text)
        written = json.dumps(value, default=str, skipkeys=True, ensure_ascii=False)
        if control := CONTROL.search(written.replace("\\\\", "")):
            raise _Refused(
                f"a control character ({control[0]!a}) stands in a text; a terminal would obey it: remove it"
            )
        if too_long := TEXT.search(written):
            raise _Refused(f"{show(too_long[1])} has {len(too_long[1]):,} characters; allowed: at most {LONGEST:,}")
        return value
    except _Refused as error:
        raise UserError(f"{shown}: {error}") from None
    except yaml.MarkedYAMLError as error:
        raise UserError(f"{shown}: {_problem(error)}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UserError(f"{shown}: is no YAML: {' '.join(str(error).split())}") from None


def read_block(file: Path, shown: str) -> dict[str, Any]:
    """The keys and values of a file. Raises UserError, also for a file that holds something else, or nothing."""
    value = read(file, shown)
    if value is None:
        raise UserError(f"{shown}: is empty; allowed: keys and values")
    if not isinstance(value, dict):
        remedy = hint(value, "a block of names and values", [shown])
        raise UserError(f"{shown}: {show(value)} is not allowed; allowed: keys and values{remedy}")
    return value


def number(text: str) -> int | float | None:
    """The number that a text is in YAML or JSON; None where it is none."""
    try:
        value = _parsed(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return None
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _parsed(text: str) -> Any:
    """JSON first, as Snakemake does: its 1e-3 is a number, which it is not to PyYAML."""
    try:
        return json.loads(
            text, object_pairs_hook=_each_once, parse_int=lambda n: int(n) if len(n) <= MOST_DIGITS else n
        )
    except json.JSONDecodeError:
        return yaml.load(text, Loader=Strict)


def _each_once(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    block: dict[str, Any] = {}
    for key, value in pairs:
        if key in block:
            raise _Refused(f"the key {show(key)} stands twice in one block; keep one")
        block[key] = value
    return block


def _problem(error: yaml.MarkedYAMLError) -> str:
    """Where a file is no YAML, and why. What is not closed at the end is told where it was opened."""
    said = " ".join(f"{error.context or ''} {error.problem}".split())
    opened = re.search("unexpected end|stream end", said)
    mark = (opened and error.context_mark) or error.problem_mark
    place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    return f"{place}is no YAML: {next((plainer for words, plainer in PLAINER.items() if words in said), said)}"
