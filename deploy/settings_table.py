"""Write SETTINGS.md: every setting with its default, bounds and meaning, from the code itself.

python -m deploy.settings_table            # writes SETTINGS.md
python -m deploy.settings_table --check    # ends with 1 when it is out of date
"""

from __future__ import annotations

import sys
import types
import typing
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import annotated_types
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from pydantic_settings import BaseSettings

from agent.settings import AgentSettings
from slurm_plugin.cli.settings import CliSettings
from slurm_plugin.settings import ControllerSettings
from webui.settings import WebSettings

TARGET = Path(__file__).parents[1] / "SETTINGS.md"

CLASSES: tuple[tuple[str, str, type[BaseSettings]], ...] = (
    ("agent", "Node agent (`sfilld`)", AgentSettings),
    ("controller", "Controller (`sfillctld`)", ControllerSettings),
    ("web", "Dashboard (`sfill-web`)", WebSettings),
    ("cli", "Command line (`sfill`)", CliSettings),
)


@dataclass(frozen=True)
class Variable:
    """An environment variable that is no setting of a section."""

    name: str
    who: str  # sets it
    allowed: str
    meaning: str


VARIABLES = (
    Variable("SFILL_CONF", "operator", "a path", "the settings file, where --config names none"),
    Variable(
        "SFILL_FILL",
        "user",
        "what `--fill=` takes, as `mem=16G`",
        "submission: the job is a fill job",
    ),
    Variable(
        "SFILL_FILL_HOST",
        "user",
        "what `--fill-host=` takes, as `on`",
        "submission: how the job lends",
    ),
    Variable(
        "SFILL_LOG",
        "user",
        "0, 1, 2 (1)",
        "what the interposer writes to standard error: nothing, problems, all",
    ),
    Variable(
        "SFILL_ATTACH_MS",
        "user",
        "1 to 10000 (50)",
        "longest wait for the agent at a process's first CUDA call, in ms; a training then goes on"
        " without us",
    ),
    Variable(
        "SFILL_ROLE",
        "SPANK plugin",
        "monitor, gate",
        "what the interposer asks to be; the agent decides",
    ),
    Variable(
        "SFILL_SOCKET", "SPANK plugin", "a path (/run/sfill/sfilld.sock)", "the agent's socket"
    ),
    Variable("LD_PRELOAD", "SPANK plugin", "paths", "the interposer, before what the user had"),
    Variable(
        "CUDA_VISIBLE_DEVICES", "SPANK plugin", "a GPU's UUID", "fill jobs: the GPU they were given"
    ),
    Variable(
        "CUDA_MPS_PIPE_DIRECTORY",
        "SPANK plugin",
        "a path",
        "under MPS: the training's control daemon, for its steps and for fills beside it",
    ),
    Variable(
        "CUDA_MPS_CLIENT_PRIORITY", "SPANK plugin", "1", "fill jobs under MPS: below the training's"
    ),
    Variable(
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
        "SPANK plugin",
        "1 to 100",
        "fill jobs under MPS: the agent's `mps_thread_percentage`",
    ),
    Variable(
        "SFILL_MPS_PIPE",
        "SPANK plugin",
        "a path",
        "the pipe directory that we set, so that a job submitted from within does not keep it",
    ),
)

HEAD = """\
# Settings

Written by `python -m deploy.settings_table`; change the code, not this file.

The daemons, `sfill` and `sfill-web` read one TOML file (`--config`, else `SFILL_CONF`, else
`/etc/sfill/sfill.toml`), each its own section. A variable in the environment wins over the file:
lists and tables are given there as JSON. A key that is unknown or out of bounds ends the program
with one sentence and exit code 2.
"""


def main() -> None:
    """Write or check SETTINGS.md."""
    text = settings_page()
    if "--check" not in sys.argv[1:]:
        TARGET.write_text(text, encoding="utf-8")
    elif not TARGET.exists() or TARGET.read_text(encoding="utf-8") != text:
        print("SETTINGS.md is out of date: run python -m deploy.settings_table")
        sys.exit(1)


def settings_page() -> str:
    """The whole page."""
    parts = [HEAD, *(_section(*entry) for entry in CLASSES), _environment()]
    return "\n".join(parts)


def _section(section: str, title: str, settings: type[BaseSettings]) -> str:
    prefix = settings.model_config.get("env_prefix", "")
    lines = [
        f"## {title}: section `[{section}]`, variables `{prefix}*`",
        "",
        "| key | allowed | default | meaning |",
        "| --- | --- | --- | --- |",
    ]
    for name, info in settings.model_fields.items():
        meaning = _cell(info.description or "")
        lines.append(f"| `{name}` | {_cell(_allowed(info))} | {_default(info)} | {meaning} |")
    return "\n".join(lines) + "\n"


def _environment() -> str:
    lines = [
        "## Environment of jobs and commands",
        "",
        "| variable | set by | allowed (default) | meaning |",
        "| --- | --- | --- | --- |",
    ]
    for one in VARIABLES:
        cells = (_cell(text) for text in (one.who, one.allowed, one.meaning))
        lines.append(f"| `{one.name}` | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _default(info: FieldInfo) -> str:
    value = info.get_default(call_default_factory=True, validated_data={})
    if value is PydanticUndefined:
        return "must be given"
    if isinstance(value, Enum):
        value = value.value
    if value is None or value in ("", [], {}):
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value}`"


def _allowed(info: FieldInfo) -> str:
    """Type and bounds in words."""
    return _type(info.annotation) + _bounds(info.metadata)


def _type(annotation: Any) -> str:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return " or ".join("none" if one is type(None) else _type(one) for one in arguments)
    if origin is typing.Literal:
        return ", ".join(str(one) for one in arguments)
    if origin is list:
        return f"list, each {_type(arguments[0])}"
    if origin is dict:
        return f"table, of each name a {_type(arguments[1])}"
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return ", ".join(str(one.value) for one in annotation)
    names = {bool: "true, false", int: "whole number", float: "number", str: "text", Path: "path"}
    return names.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _bounds(metadata: list[Any]) -> str:
    words = []
    for one in metadata:
        if isinstance(one, annotated_types.Ge):
            words.append(f"from {one.ge}")
        elif isinstance(one, annotated_types.Gt):
            words.append(f"above {one.gt}")
        elif isinstance(one, annotated_types.Le):
            words.append(f"to {one.le}")
        elif isinstance(one, annotated_types.Lt):
            words.append(f"below {one.lt}")
        elif pattern := getattr(one, "pattern", None):
            words.append(f"as {pattern}")
    return " " + " ".join(words) if words else ""


def _cell(text: str) -> str:
    """Text that cannot end a table's cell."""
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    main()
