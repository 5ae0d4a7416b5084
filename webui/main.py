"""Start the dashboard: `sfill-web --config FILE`."""

from __future__ import annotations

import sys

import click
from waitress.server import create_server

from db.engine import Database, DatabaseError
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
    click.echo(f"sfill-web: dashboard at http://{settings.host}:{server.effective_port}/")
    sys.stdout.flush()
    server.run()


if __name__ == "__main__":
    main()
