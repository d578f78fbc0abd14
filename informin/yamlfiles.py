"""Read YAML files with limits, because a small file with aliases can expand to gigabytes."""

from pathlib import Path

import yaml

from informin.errors import UsageError, error_line
from informin.files import regular_text

MOST_CHARACTERS = 100_000  # takes up to 3 s; the largest study here has 3,000
LARGEST = 2**63  # of integers
REFUSED = ("binary", "omap", "pairs", "set")  # YAML's types that JSON does not have


def read_mapping(path: str | Path, name: str, needed: str) -> dict:
    """Read a YAML file that contains a mapping.

    Args:
        name: Name of the file in errors.
        needed: What the file should contain, for errors.

    Raises:
        UsageError: The file cannot be read or is not a mapping. Also as `parse_yaml`.
    """
    try:
        text = regular_text(path)
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a name with a zero byte
        raise UsageError(f"{name} cannot be read: {error_line(error)}", needed="a YAML file in UTF-8") from None
    values = parse_yaml(text, name)
    if not isinstance(values, dict):
        raise UsageError(f"{name}: found {type(values).__name__}", needed=needed)
    return values


def parse_yaml(text: str, name: str):
    """Parse a YAML text into JSON types; dates stay text.

    Args:
        name: Name of the text in errors.

    Raises:
        UsageError: The text has more than 100,000 characters, an alias, a duplicate key, or an unsupported value.
    """
    if len(text) > MOST_CHARACTERS:
        raise UsageError(
            f"{name} cannot be read: found {len(text):,} characters of YAML",
            needed=f"up to {MOST_CHARACTERS:,}",
            fix="Shorten or split it.",
        )
    try:
        return yaml.load(text, _Loader)
    except RecursionError:
        raise UsageError(
            f"{name} cannot be read: lists or mappings are nested too deeply", fix="Flatten them."
        ) from None
    except yaml.YAMLError as error:
        message = error_line(error).replace('in "<unicode string>", ', "at ")
        raise UsageError(f"{name} cannot be read: {message}", fix="Correct the YAML.") from None
    except Exception as error:  # ValueError, KeyError, ...: a value that does not match its tag
        raise UsageError(
            f"{name} cannot be read: a value does not match its tag ({error_line(error)})", fix="Correct the YAML."
        ) from None


class _Loader(yaml.SafeLoader):
    """Loader that rejects aliases and duplicate keys; the base loader keeps the last of the duplicates."""

    def compose_node(self, parent, index):
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()
            raise _refusal(f"found the alias *{event.anchor}; write the value out", event.start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        seen = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):  # the base class rejects others
            if key.value in seen:
                raise _refusal(f"found {key.value!r} twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> str:
        value = super().construct_scalar(node)
        if any(character == "\0" or "\ud800" <= character <= "\udfff" for character in value):
            raise _refusal(f"{value[:40]!r} contains a character that is not allowed", node.start_mark)
        return value

    def construct_integer(self, node: yaml.ScalarNode) -> int:
        value = self.construct_yaml_int(node)
        if abs(value) >= LARGEST:
            raise _refusal("found an integer of more than 63 bits", node.start_mark)
        return value

    def refuse(self, node: yaml.Node):
        raise _refusal(f"found {node.tag}, which is not supported", node.start_mark)


def _refusal(problem: str, mark: yaml.Mark) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, problem, mark)


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_integer)
_Loader.add_constructor("tag:yaml.org,2002:timestamp", _Loader.construct_scalar)
for _kind in REFUSED:
    _Loader.add_constructor(f"tag:yaml.org,2002:{_kind}", _Loader.refuse)
