"""sfillctld: `python -m slurm_plugin.controller.main --config /etc/sfill/sfill.toml`."""

from __future__ import annotations

import errno
import logging
import signal
import sys
import threading
from types import FrameType

import click
from waitress.server import create_server

from db.engine import DatabaseError
from slurm_plugin.cluster import CommandCluster
from slurm_plugin.controller.app import make_app
from slurm_plugin.controller.service import Controller
from slurm_plugin.settings import ControllerSettings, SettingsError, load_settings

log = logging.getLogger("sfillctld")

BAD_SETTINGS = 2


@click.command()
@click.option("--config", type=str, default=None, help="Settings file; default: SFILL_CONF.")
def main(config: str | None) -> None:
    """Publish supply to Slurm and take in what the nodes report."""
    try:
        settings = load_settings(config)
    except SettingsError as error:
        click.echo(f"sfillctld: {error}", err=True)
        sys.exit(BAD_SETTINGS)
    logging.basicConfig(
        level=settings.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    # Each migration step at info level says nothing that an operator needs.
    logging.getLogger("alembic").setLevel(logging.WARNING)
    try:
        serve(settings)
    except DatabaseError as error:
        click.echo(f"sfillctld: {error}", err=True)
        sys.exit(BAD_SETTINGS)
    except OSError as error:
        click.echo(f"sfillctld: cannot listen on {settings.listen}: {error.strerror}", err=True)
        sys.exit(1)


def serve(settings: ControllerSettings) -> None:
    """Run until SIGTERM or SIGINT."""
    cluster = CommandCluster(
        gres=settings.gres,
        timeout_s=settings.command_timeout_s,
        slurm_conf=settings.slurm_conf,
        slurm_bin=settings.slurm_bin,
    )
    controller = Controller(settings, cluster)
    try:
        server = create_server(
            make_app(controller),
            host=settings.host,
            port=settings.port,
            threads=settings.threads,
            # One connection a node, and some more.
            connection_limit=4096,
            max_request_body_size=settings.max_body_bytes,
            ident="sfillctld",
        )
    except ValueError as error:  # waitress, of a host that no name server knows
        raise OSError(errno.EADDRNOTAVAIL, "this host has no such address") from error
    ending = threading.Event()

    def end(_signal: int, _frame: FrameType | None) -> None:
        ending.set()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    controller.start()
    thread = threading.Thread(target=server.run, name="http", daemon=True)
    thread.start()
    log.info("sfillctld answers on %s", settings.listen)
    ending.wait()
    log.info("sfillctld ends")
    server.close()
    controller.stop()


if __name__ == "__main__":
    main()
