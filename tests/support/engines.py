"""Stand-ins for an engine's programs, and a serving plan to start them with."""

import sys
from pathlib import Path

from meshwise.plan.ask import ServeAsk
from meshwise.run.serve.ask import ServeRun
from meshwise.run.serve.deployment import Deployment, deployment

SERVER = """#!{python}
import http.server, sys, time
args = sys.argv[1:]
print("args", *args, flush=True)
{before}
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.send_header("Content-Length", "2"); self.end_headers(); self.wfile.write(b"{{}}")
    def log_message(self, *a): pass
if "--help" in args: sys.exit()
host = args[args.index("--host" if "--host" in args else "-H") + 1]
port = args[args.index("--port" if "--port" in args else "-p") + 1]
http.server.HTTPServer((host, int(port)), H).serve_forever()
"""


def server(folder: Path, name: str, before: str = "") -> Path:
    """Write a stand-in for one of llama.cpp's programs: it prints its arguments, and answers or fails."""
    file = folder / name
    file.write_text(SERVER.format(python=sys.executable, before=before))
    file.chmod(0o755)
    return file


def script(folder: Path, name: str, body: str) -> None:
    """Write a program with this body."""
    file = folder / name
    file.write_text(f"#!{sys.executable}\nimport sys\n{body}\n")
    file.chmod(0o755)


def plan(folder: Path, on: str = "2xrtx4060ti-16gb", fix: tuple[str, ...] = ()) -> tuple[Deployment, ServeRun]:
    """Return the best layout of a model on these devices, and the settings that start it with the programs of a folder."""
    model = folder / "m.gguf"
    model.write_bytes(b"")
    planned = deployment(ServeAsk(model="llama-3-8b:q4_k_m", on=on, context=4096, fix=fix))
    return planned, ServeRun(engine_path=str(folder), model_file=str(model), port=0)
