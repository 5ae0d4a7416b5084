"""The controller's HTTP interface: agents' reports, the operator's switch, health, metrics."""

from __future__ import annotations

import time

from flask import Flask, Response, jsonify, request
from flask.typing import ResponseReturnValue
from pydantic import ValidationError
from werkzeug.exceptions import HTTPException

from db.engine import DatabaseError
from db.wire.messages import Report, SwitchRequest
from slurm_plugin.controller.identity import RefusedError
from slurm_plugin.controller.metrics import metrics_text
from slurm_plugin.controller.service import Controller

SCHEME = "Munge "


def make_app(controller: Controller) -> Flask:
    """The WSGI application of a controller."""
    app = Flask("sfillctld")
    app.config["MAX_CONTENT_LENGTH"] = controller.settings.max_body_bytes

    @app.post("/v1/report")
    def report() -> ResponseReturnValue:
        """A report of an agent: JSON, with `Authorization: Munge` over the body's SHA-256."""
        body = request.get_data()
        header = request.headers.get("Authorization", "")
        credential = header[len(SCHEME) :].strip() if header.startswith(SCHEME) else ""
        who = controller.identity.signed(credential, body)
        message = Report.model_validate_json(body)
        controller.identity.may_report_for(who, message.node)
        answer = controller.report(message)
        return Response(answer.model_dump_json(), mimetype="application/json")

    @app.post("/v1/switch")
    def switch() -> ResponseReturnValue:
        """`sfill off` and `sfill on`: the body is a munge credential that carries the request."""
        credential = request.get_data(as_text=True).strip()
        who = controller.identity.privileged(credential)
        controller.switch(SwitchRequest.model_validate_json(who.payload), who)
        return jsonify({"off": controller.store.off})

    @app.get("/v1/health")
    def health() -> ResponseReturnValue:
        """Whether database and Slurm are there; 200 even if not, since the controller itself is."""
        now_s = time.monotonic()
        return jsonify(
            {
                "database": controller.store.well,
                "slurm": not controller.publisher.trouble,
                "trouble": controller.publisher.trouble,
                "off": controller.store.off,
                "nodes": len(controller.nodes.all()),
                "silent": sorted(controller.nodes.silent(now_s=now_s)),
                "events_waiting": controller.journal.waiting,
                "requeues_waiting": controller.requeuer.waiting,
                "faults": sorted(controller.faults.values()),
            }
        )

    @app.get("/metrics")
    def metrics() -> ResponseReturnValue:
        """The same and the supply, for Prometheus."""
        return Response(metrics_text(controller), mimetype="text/plain; version=0.0.4")

    @app.errorhandler(RefusedError)
    def refused(error: RefusedError) -> ResponseReturnValue:
        return jsonify({"error": str(error)}), error.status

    @app.errorhandler(ValidationError)
    def malformed(error: ValidationError) -> ResponseReturnValue:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "body"
        return jsonify({"error": f"{where}: {first['msg']}"}), 400

    @app.errorhandler(DatabaseError)
    def not_stored(error: DatabaseError) -> ResponseReturnValue:
        return jsonify({"error": str(error)}), 503

    @app.errorhandler(HTTPException)
    def other(error: HTTPException) -> ResponseReturnValue:
        return jsonify({"error": error.description or error.name}), error.code or 500

    return app
