"""`sfilld`: the command."""

from __future__ import annotations

import asyncio
import logging
import resource
import signal
import sys

import click

from agent import VERSION, single
from agent.daemon import Agent
from agent.nvml import GpuError, Nvml
from agent.settings import AgentSettings, SettingsError, load

log = logging.getLogger(__name__)


@click.command()
@click.option("--config", help="Settings file; default: SFILL_CONF, else /etc/sfill/sfill.toml.")
@click.option("--node", help="Slurm name of this node, in place of the settings'.")
@click.version_option(VERSION)
def main(config: str | None, node: str | None) -> None:
    """Node agent of SpecInF for Slurm. Ends with 2 on bad settings, 1 without NVML or socket."""
    try:
        settings = load(config, node=node)
    except SettingsError as error:
        click.echo(f"sfilld: {error}", err=True)
        sys.exit(2)
    logging.basicConfig(
        level=settings.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    # Each attached process takes two descriptors and its connection one.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        asyncio.run(_run(settings))
    except (GpuError, OSError) as error:
        log.error("cannot go on: %s", error)
        sys.exit(1)


async def _run(settings: AgentSettings) -> None:
    _held = single.hold(settings)  # until the process ends
    agent = Agent(settings, Nvml())
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, agent.stop)
    await agent.run()


if __name__ == "__main__":
    main()
