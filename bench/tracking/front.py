"""MLflow's server with a start page: its bare address opens the comparison. `bench.tracking.ui` runs this module.

Unless the browser's storage says otherwise, MLflow opens its pages for chats, which do not show the comparison.
"""

import json
import os
import sys
from pathlib import Path

import uvicorn
from mlflow.server import app as flask_app
from mlflow.server.constants import ARTIFACT_ROOT_ENV_VAR, BACKEND_STORE_URI_ENV_VAR
from mlflow.server.fastapi_app import app
from mlflow.server.handlers import initialize_backend_stores
from starlette.responses import HTMLResponse
from starlette.routing import Route

# Keys and values of MLflow's own pages: the choice "Model training", the banner about usage data, sending such data,
# and the assistant that opens once.
SCRIPT = """<script>
(function () {
  var bare = location.hash === "" || location.hash === "#/";
  try {
    var key = "mlflow.workflowType_v1";
    if (bare || localStorage.getItem(key) === null) localStorage.setItem(key, '"machine_learning"');
    localStorage.setItem("mlflow.telemetry.info.alert.dismissed_v1", "true");
    localStorage.setItem("mlflow.settings.telemetry.enabled_v1", "false");
    localStorage.setItem("mlflow.assistant.fab.autoOpenedOnFirstLoad_v1", "true");
  } catch (error) {}  // a browser without storage: the address says it, too
  if (bare) location.replace(LANDING);
})();
</script>"""
GRACE_S = 3
# MLflow's pages do not fit narrow screens: on a phone they are shown like on a wide screen, but smaller.
NARROW, WIDE = "width=device-width,initial-scale=1,shrink-to-fit=no", "width=1280"


def page(landing: str) -> str:
    """MLflow's page, which opens `landing` (a path with its hash) if the address has no hash."""
    index = Path(str(flask_app.static_folder), "index.html").read_text()
    return index.replace(NARROW, WIDE).replace("<head>", "<head>" + SCRIPT.replace("LANDING", json.dumps(landing)), 1)


def main(store: str, artifacts: str, host: str, port: int, landing: str) -> None:
    """Serve until SIGTERM."""
    os.environ |= {BACKEND_STORE_URI_ENV_VAR: store, ARTIFACT_ROOT_ENV_VAR: artifacts}
    initialize_backend_stores(store, store, artifacts)
    content = page(landing)
    app.router.routes.insert(0, Route("/", lambda request: HTMLResponse(content)))
    uvicorn.run(app, host=host, port=port, timeout_graceful_shutdown=GRACE_S)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5])
