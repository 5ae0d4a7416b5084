"""The Flask application: views, security headers, the local copy of Plotly, errors."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import re
from functools import cache
from pathlib import Path

from flask import Flask, Response, jsonify, render_template, request
from sqlalchemy.exc import SQLAlchemyError
from werkzeug.exceptions import HTTPException

from db.engine import Database
from db.host_port import bracketed
from db.schema import why_unreadable
from webui.parameters import BadParameterError
from webui.settings import WebSettings
from webui.views import audit, events, jobs, overview

# Everything a page needs comes from here; nothing inline runs.
POLICY = "; ".join(
    (
        "default-src 'self'",
        "img-src 'self' data:",
        "object-src 'none'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)
LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")


def create_app(settings: WebSettings, database: Database) -> Flask:
    """The dashboard on an open database."""
    app = Flask(__name__)
    app.json.sort_keys = False  # type: ignore[attr-defined]
    app.extensions["database"] = database
    app.register_blueprint(overview.pages)
    app.register_blueprint(jobs.pages)
    app.register_blueprint(audit.pages)
    app.register_blueprint(events.pages)
    local_names = {*LOCAL_NAMES, bracketed(settings.host)}
    static_version = _version(Path(app.static_folder or ""))

    @app.context_processor
    def for_templates() -> dict[str, object]:
        return {
            "refresh_s": settings.refresh_s,
            "version": static_version,
            "map_style_ids": _map_style_ids,
        }

    @app.before_request
    def local_name_only() -> Response | None:
        """A foreign page that lets its own name point at 127.0.0.1 must read nothing here."""
        host = request.host
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if name in local_names:
            return None
        return _failure(421, "This dashboard answers only under localhost or 127.0.0.1.")

    @app.after_request
    def headers(response: Response) -> Response:
        response.headers["Content-Security-Policy"] = POLICY
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = "same-origin"
        response.headers["Cross-Origin-Opener-Policy"] = "same-origin"
        response.headers["Cross-Origin-Resource-Policy"] = "same-origin"
        if not request.path.startswith("/static/"):
            response.headers["Cache-Control"] = "no-store"
        return response

    @app.get("/static/vendor/plotly.min.js")
    def plotly_script() -> Response:
        """Plotly's script out of the installed Python package: no third-party host is asked."""
        response = Response(_plotly_gzip(), mimetype="text/javascript")
        response.headers["Content-Encoding"] = "gzip"
        response.headers["Cache-Control"] = "public, max-age=86400"
        return response

    app.register_error_handler(BadParameterError, lambda error: _failure(400, f"{error}."))
    app.register_error_handler(HTTPException, _http_failure)

    @app.errorhandler(SQLAlchemyError)
    def database_failure(error: SQLAlchemyError) -> Response:
        cause = why_unreadable(database, error)
        return _failure(503, f"The database cannot be read just now ({cause}).")

    return app


def _failure(status: int, sentence: str) -> Response:
    """The same sentence as JSON for data and as a page for people."""
    sentence = sentence[:1].upper() + sentence[1:]
    if request.path.startswith("/api/"):
        response = jsonify({"error": sentence})
    else:
        response = Response(render_template("error.html", status=status, sentence=sentence))
    response.status_code = status
    return response


def _http_failure(error: HTTPException) -> Response:
    status = error.code or 500
    if status == 404:
        own = error.description if _own_words(error) else None
        return _failure(404, own or "There is no such page.")
    return _failure(status, error.description or error.name)


def _own_words(error: HTTPException) -> bool:
    return error.description != type(error).description


@cache
def _plotly() -> str:
    spec = importlib.util.find_spec("plotly")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("the Python package plotly is not installed")
    script = Path(spec.origin).parent / "package_data" / "plotly.min.js"
    return script.read_text(encoding="utf-8")


@cache
def _plotly_gzip() -> bytes:
    return gzip.compress(_plotly().encode(), compresslevel=6, mtime=0)


@cache
def _map_style_ids() -> list[str]:
    """Ids under which Plotly's map part looks for its style sheet before it adds an inline one.

    We draw no maps and forbid inline styles, so pages hold an empty element under each.
    """
    return sorted(set(re.findall(r'getElementById\("([0-9a-f]{64})"\)', _plotly())))


def _version(folder: Path) -> str:
    """Changes whenever a static file does, so that browsers may keep them."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
