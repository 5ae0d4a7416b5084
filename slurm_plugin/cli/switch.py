"""`sfill off` and `sfill on`: the operator's switch, carried out by sfillctld.

The request travels inside a munge credential, which tells the controller who asks: root and
SlurmUser may.
"""

from __future__ import annotations

import getpass
import json
import urllib.error
import urllib.request

import click

from db.wire import munge
from db.wire.messages import SwitchRequest
from slurm_plugin.cli.settings import CliSettings

PATH = "/v1/switch"


class SwitchError(click.ClickException):
    """The switch was not thrown; the text is one sentence."""


@click.command()
@click.option("--reason", default="", help="Why; kept in the audit log.")
@click.pass_obj
def off(settings: CliSettings, reason: str) -> None:
    """Stop filling on the whole cluster at once (root or SlurmUser)."""
    throw(settings, off=True, reason=reason)
    click.echo("Filling is off: no fill work starts from now on; `sfill on` resumes it.")


@click.command()
@click.option("--reason", default="", help="Why; kept in the audit log.")
@click.pass_obj
def on(settings: CliSettings, reason: str) -> None:
    """Resume filling on the whole cluster (root or SlurmUser)."""
    throw(settings, off=False, reason=reason)
    click.echo("Filling is on.")


def throw(settings: CliSettings, *, off: bool, reason: str) -> None:
    """Ask sfillctld; raise SwitchError unless it has said yes."""
    request = SwitchRequest(off=off, by=getpass.getuser(), reason=reason)
    try:
        credential = munge.encode(
            request.model_dump_json().encode(), socket=settings.munge_socket or None
        )
    except munge.MungeError as error:
        raise SwitchError(f"no munge credential could be made ({error})") from error
    _post(settings.controller_url + PATH, credential, settings.timeout_s)


def _post(url: str, credential: str, timeout_s: float) -> None:
    request = urllib.request.Request(
        url, data=credential.encode(), headers={"Content-Type": "text/plain"}, method="POST"
    )
    # A site's web proxy has no business between an operator and the controller.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=timeout_s):
            return
    except urllib.error.HTTPError as error:
        said = _said(error)
        if error.code in (401, 403):
            raise SwitchError(
                f"not allowed{said}; only root and SlurmUser may switch filling off and on"
            ) from error
        raise SwitchError(f"sfillctld at {url} answered {error.code}{said}") from error
    except (OSError, ValueError) as error:
        cause = getattr(error, "reason", None) or error
        raise SwitchError(f"sfillctld does not answer at {url} ({cause})") from error


def _said(error: urllib.error.HTTPError) -> str:
    """What the controller said in its answer, in brackets."""
    text = error.read(2000).decode(errors="replace").strip()
    try:
        found = json.loads(text)
        text = str(found.get("error", "")) if isinstance(found, dict) else text
    except ValueError:
        pass
    return f" ({text.splitlines()[0].rstrip('.')})" if text else ""
