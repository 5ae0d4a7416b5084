"""Start of `sfill`: one line for every mistake, and exit codes (2 bad input, 1 failure).

A command's module is imported when it is asked for: reading the ledger takes SQLAlchemy, for whose
start `sfill off` has no time.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from pathlib import Path

import click

from slurm_plugin.cli.settings import SettingsError, load_settings

MODULES = {
    "audit": "audit",
    "events": "events",
    "jobs": "jobs",
    "off": "switch",
    "on": "switch",
    "status": "status",
}


class Commands(click.Group):
    """The commands of MODULES, each from the module named there."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Their names, sorted."""
        return sorted(MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """One of them, or None."""
        if cmd_name not in MODULES:
            return None
        module = importlib.import_module(f"slurm_plugin.cli.{MODULES[cmd_name]}")
        command: click.Command = getattr(module, cmd_name)
        return command


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--config", metavar="FILE", help="Configuration (default: SFILL_CONF, /etc/sfill/sfill.toml)."
)
@click.pass_context
def sfill(context: click.Context, config: str | None) -> None:
    """Inference in the bubbles of training GPUs: what runs, what was used, and the switch.

    A bubble is a stretch of at least 100 us in which a GPU that training holds computes nothing
    for it; a host job is training that lends its bubbles, a fill job inference that runs in them;
    intrusion is how long ready training work waited for fill.
    """
    context.obj = load_settings(config)


def main(arguments: list[str] | None = None) -> None:
    """Run `sfill` and exit."""
    words = sys.argv[1:] if arguments is None else arguments
    if sys.stdout is None:  # closed by whoever started us; off and on work all the same
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - until the program ends
    try:
        code = sfill.main(args=words or ["--help"], prog_name="sfill", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as error:
        complain(error.format_message().replace("\n", " "))
        sys.exit(error.exit_code)
    except SettingsError as error:
        complain(str(error))
        sys.exit(2)
    except (BrokenPipeError, SystemExit):
        # The reader (head, less) has enough. click, when it meets the broken pipe, calls exit(1),
        # which it does for nothing else outside its standalone mode.
        _drop_output()
        sys.exit(0)
    except OSError as error:
        _drop_output()
        complain(f"the answer can't be written ({error.strerror or error})")
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)


def complain(sentence: str) -> None:
    """One sentence on standard error."""
    with contextlib.suppress(OSError):
        if sys.stderr is not None:
            sys.stderr.write(f"sfill: {sentence}\n")


def _drop_output() -> None:
    """Keeps Python from trying, and failing, to write what is left at its exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


if __name__ == "__main__":
    main()
