"""Start the dashboard: `sfill-web --config FILE`."""

from __future__ import annotations

import sys
from typing import Any

import click
from waitress.server import MultiSocketServer, create_server

from db.engine import Database, DatabaseError
from db.host_port import http_url
from webui.app import create_app
from webui.settings import SettingsError, load_settings


@click.command()
@click.option(
    "--config",
    metavar="FILE",
    help="Configuration (default: SFILL_CONF, else /etc/sfill/sfill.toml).",
)
def main(config: str | None) -> None:
    """Serve the dashboard on this machine only (there is no sign-in yet)."""
    try:
        settings = load_settings(config)
        database = Database(settings.database_url, read_only=True)
    except (SettingsError, DatabaseError) as error:
        click.echo(f"sfill-web: {error}", err=True)
        sys.exit(2)
    app = create_app(settings, database)
    try:
        server = create_server(
            app, host=settings.host, port=settings.port, threads=settings.threads, ident="sfill-web"
        )
    except OSError as error:
        click.echo(f"sfill-web: cannot listen on {settings.listen}: {error.strerror}", err=True)
        sys.exit(1)
    click.echo(f"sfill-web: dashboard at {http_url(settings.host, port_of(server))}/")
    sys.stdout.flush()
    server.run()


def port_of(server: Any) -> int:
    """Where it listens; of several sockets (one for each address of localhost) the first's."""
    if isinstance(server, MultiSocketServer):
        return int(server.effective_listen[0][1])
    return int(server.effective_port)


if __name__ == "__main__":
    main()
