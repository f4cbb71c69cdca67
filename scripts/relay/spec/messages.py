"""Mistakes in the config, a line for each: the key, its value, and what is allowed, as the schema has it."""

from __future__ import annotations

import difflib
import json
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from relay.spec.hints import hint

if TYPE_CHECKING:  # a job's Python may be without it
    from pydantic import ValidationError

Schema = Mapping[str, Any]
# What text programs, web pages and PDFs put in place of characters that a keyboard has.
LOOK_ALIKES = (
    dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2212", "-")
    | dict.fromkeys("\u2018\u2019\u201a\u2032", "'")
    | dict.fromkeys("\u201c\u201d\u201e\u2033\u00ab\u00bb", '"')
    | dict.fromkeys("\u00a0\u2009\u202f\u3000", " ")
    | dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff", "")
)

# Names that other programs have for a key, of the config or of a site.
MEANT = {
    "lr": ("learning_rate",),
    "batch_size": ("global_batch_size",),
    "cpus": ("cpus_per_task", "cpus_per_node"),
    "gpus": ("devices_per_node", "gpus_per_node"),
    "gpus_per_node": ("devices_per_node",),
    "processes_per_node": ("devices_per_node",),
    "num_workers": ("data_workers",),
    "time": ("runtime_minutes", "max_minutes"),
    "steps": ("epochs",),
    "max_steps": ("epochs",),
    "mem": ("memory_mb_per_node",),
}
MOST_KEYS = 8  # of a block that a line names


def show(value: Any) -> str:
    """A value as the user wrote it, near enough: text quoted, the rest as YAML spells it, long ones cut."""
    if isinstance(value, str):
        text = f"'{value}'".replace("\n", "\\n")  # one line for each mistake
    else:
        try:
            text = json.dumps(value, ensure_ascii=False)
        except TypeError:  # YAML knows dates and sets, JSON does not
            text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def near(value: Any, names: Iterable[str], likeness: float = 0.6) -> str:
    """`did you mean …? ` for a misspelt name, else nothing."""
    names = list(names)
    text = "".join(LOOK_ALIKES.get(character, character) for character in str(value)).strip()
    close = [name for name in names if name.casefold() in (text.casefold(), *MEANT.get(text, ()))]
    close = close or difflib.get_close_matches(text, names, n=1, cutoff=likeness)
    return f"did you mean '{close[0]}'? " if close else ""


def look_alike(text: str) -> str:
    """` (…)` for text with a character that a text program has put in place of a plain one, else nothing."""
    for character in text:
        if (plain := LOOK_ALIKES.get(character)) is not None:
            instead = {"": "leave it out", " ": "type a plain space", "-": "type - (or --)"}.get(plain, f"type {plain}")
            return f" (U+{ord(character):04X}, {unicodedata.name(character).lower()}, stands in it: {instead})"
    return ""


def unknown(sentence: str, name: Any, allowed: Iterable[str], documented: str = "") -> str:
    """`… is unknown; did you mean …? allowed: …` for a misspelt name.

    With a suggestion, a long list is left out: `documented` says what has all of it.
    """
    names = sorted(allowed)
    meant = near(name, names)
    page = f"{documented} has all" if meant and documented and len(names) > MOST_KEYS else ""
    return f"{sentence}{look_alike(str(name))}; {meant}{page or 'allowed: ' + (', '.join(names) or 'none')}"


def describe(schema: Schema, whole: Schema) -> str:
    """What a part of the JSON schema `whole` allows, in words."""
    schema = resolved(schema, whole)
    if "anyOf" in schema:
        return _describe_union(schema["anyOf"], whole)
    if "enum" in schema:
        return ", ".join(map(str, schema["enum"]))
    kind = schema.get("type")
    if isinstance(kind, list):
        return "a number, text, true, false, null"
    if kind in ("integer", "number"):
        bounds = _bounds(schema)
        return ("a whole number" if kind == "integer" else "a number") + (f" {bounds}" if bounds else "")
    if kind == "array":
        count, items = schema.get("minItems"), describe(schema["items"], whole)
        some = "a list of at least one" if count else "a list"
        return f"{f'{count} values' if count and count == schema.get('maxItems') else some}, each {items}"
    if kind == "object":
        keys = schema.get("properties")
        named = ", ".join([*(keys or ())][:MOST_KEYS]) + (" and others" if keys and len(keys) > MOST_KEYS else "")
        return f"a block with the keys {named}" if keys else "a block of names and values"
    if schema.get("pattern", "").endswith(r"\.py$"):
        return "a file of your own (.py)"
    if "pattern" in schema:
        return "an address (http://…, https://… or file://…)"
    if kind == "string":
        return "non-empty text" if schema.get("minLength") else "text"
    return "true or false"


def _describe_union(parts: Sequence[Schema], whole: Schema) -> str:
    """`X or null` for an optional value, `X or a list of these` for an axis."""
    single = [p for p in parts if p.get("type") not in ("array", "null")]
    words = [describe(p, whole) for p in single]
    if {"type": "null"} in parts:
        words = [f"{words[0]}, null"] if "enum" in resolved(single[0], whole) else [*words, "null"]
    several = any(p.get("type") == "array" for p in parts)
    return " or ".join(words) + (", or a list of these" if several else "")


def _bounds(schema: Schema) -> str:
    texts = {
        "minimum": "of at least {}",
        "exclusiveMinimum": "greater than {}",
        "maximum": "of at most {}",
        "exclusiveMaximum": "less than {}",
    }
    return " and ".join(text.format(schema[key]) for key, text in texts.items() if key in schema)


def resolved(schema: Schema, whole: Schema) -> Schema:
    while "$ref" in schema:
        schema = whole["$defs"][schema["$ref"].rsplit("/", 1)[-1]]
    return schema


def _block(schema: Schema, whole: Schema) -> Schema:
    """The block itself where it may be null as well."""
    parts = (resolved(p, whole) for p in schema.get("anyOf", [schema]))
    return next(p for p in parts if p.get("type") == "object")


def _at(location: Sequence[str | int], whole: Schema) -> Schema:
    """The part of the schema that a place in the config answers to."""
    schema = resolved(whole, whole)
    for step in location:
        if isinstance(step, int):
            parts = [resolved(p, whole) for p in schema.get("anyOf", [schema])]
            # A number is an entry of a list, or a key that YAML has read as one.
            inner = (p.get("items") or p.get("additionalProperties") for p in parts)
            schema = next(each for each in inner if each)
        else:
            block = _block(schema, whole)
            schema = block.get("properties", {}).get(step) or block["additionalProperties"]
        schema = resolved(schema, whole)
    return _block(schema, whole) if location and _is_optional_block(schema, whole) else schema


def _is_optional_block(schema: Schema, whole: Schema) -> bool:
    """Whether it is a block or null: its mistakes are explained by the block's keys."""
    parts = [resolved(p, whole) for p in schema.get("anyOf", [])]
    return any(p.get("type") == "object" and "properties" in p for p in parts)


def _written(location: Sequence[str | int], raw: Any) -> list[str | int]:
    """The place as the user wrote it: an axis given as one value has no index, though it was made a list."""
    place: list[str | int] = []
    for step in location:
        if isinstance(step, int) and not isinstance(raw, list):
            break
        place.append(step)
        try:
            raw = raw[step]
        except (KeyError, IndexError, TypeError):
            raw = None
    return place


def _line(error: Mapping[str, Any], raw: Any, whole: Schema, further: Mapping[str, str]) -> str:
    location, value, kind = list(error["loc"]), error["input"], error["type"]
    if location[-1:] == ["[key]"]:
        location, kind = location[:-2], kind if kind == "refused" else "invalid_key"
    path = "".join(f"[{s}]" if isinstance(s, int) else f".{s}" for s in _written(location, raw)).lstrip(".")
    if kind == "refused":  # a check that says itself what is allowed; one between several keys names them, too
        return f"{path}: {error['msg']}" if path else str(error["msg"])
    if kind == "invalid_key":
        return f"{path + ': ' if path else ''}{show(value)} is not allowed as a key; allowed: text"
    if kind == "extra_forbidden":
        return f"{path}{_unknown_key(error, raw, whole, further)}"
    schema = _at(location, whole)
    allowed = describe(schema, whole)
    if kind == "missing":
        return f"{path}: missing; allowed: {allowed}"
    if kind == "not_one":
        keys = allowed.split("keys ")[1]
        return f"{path}: {show(value)} {error['msg']}; allowed: exactly one of {keys}"
    refused = "is unknown" if kind == "unknown_task" else "is not allowed"
    meant = near(value, names_within(schema, whole), likeness=0.7)  # 'gpu' is no misspelt 'cpu'
    refusal = f"{show(value)} {refused}{look_alike(show(value))}"
    return f"{path}: {refusal}; {meant}allowed: {allowed}{hint(value, allowed, location)}"


def _unknown_key(error: Mapping[str, Any], raw: Any, whole: Schema, further: Mapping[str, str]) -> str:
    """What is said of a key that its block does not have: where it stands instead, or what it may be."""
    location = list(error["loc"])
    keys, name = _at(location[:-1], whole)["properties"], str(location[-1])
    names = MEANT.get(name, (name,))
    meant = names[0]
    if not set(names) & set(keys) and (where := _elsewhere([*location[:-1], meant], whole, further)):
        where = where if meant == name else f"{meant}, {where}"
        of_command = _of_command(location, raw) if "options" in keys else ""
        return f": {show(error['input'])} is not allowed here; allowed: {where}{of_command}"
    page = "workflow/schemas/site.schema.json" if whole.get("title") == "Site" else "config/README.md"
    place = " (a strategy's own settings stand under options)" if "options" in keys else ""
    return unknown(" is no known key", name, keys, page) + place


def _elsewhere(location: Sequence[str | int], whole: Schema, further: Mapping[str, str]) -> str:
    """Where a key is allowed that is not allowed at this place; '' for a key that no place has."""
    name, top = str(location[-1]), whole["properties"]
    if len(location) > 1 and name in top:
        return f"beside `{location[0]}`" + (", one for all of them" if isinstance(location[1], int) else "")
    lists = [block for block, part in top.items() if name in _keys(part.get("items", {}), whole)]
    blocks = [block for block, part in top.items() if name in _keys(part, whole)]
    places = [f"in an entry of `{block}`" for block in lists] + [f"under `{block}`" for block in blocks]
    return " or ".join(places) or further.get(name, "")


def _keys(schema: Schema, whole: Schema) -> Collection[str]:
    """The keys of a block, which may be null as well; none of what is no block."""
    parts = [resolved(part, whole) for part in schema.get("anyOf", [schema])]
    return [key for part in parts for key in part.get("properties", {})]


def _of_command(location: Sequence[str | int], raw: Any) -> str:
    """How a command's comparison gives it another value of its own; '' for a strategy's."""
    for step in location[:-1]:
        raw = raw[step]
    return " (of a command: `options: {lr: …}`, and {lr} among its words)" if raw.get("command") else ""


def names_within(schema: Schema, whole: Schema) -> list[str]:
    """The names that a part of the schema allows, among other values or not."""
    schema = resolved(schema, whole)
    below = [name for part in schema.get("anyOf", []) for name in names_within(part, whole)]
    return [name for name in [*schema.get("enum", []), *below] if isinstance(name, str)]


def error_lines(error: ValidationError, raw: Any, schema: Schema, further: Mapping[str, str]) -> list[str]:
    """A line for each mistake, each once, in the order of the file. `further`: keys of another file → where that is."""
    lines = (_line(e, raw, schema, further) for e in error.errors(include_url=False))
    return list(dict.fromkeys("\n".join(lines).split("\n")))
