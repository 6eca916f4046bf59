"""The processes of a serving plan: the engine's programs with exactly its layout. Missing programs and files are refused first."""

import os
import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path

from meshwise.errors import UserError, quoted
from meshwise.programs.engines import commands
from meshwise.programs.serve import llamacpp
from meshwise.run.serve import llama_bench, xllamacpp
from meshwise.run.serve.allocations import DRY_RUN_PROGRAM
from meshwise.run.serve.ask import ServeRun
from meshwise.run.serve.deployment import Deployment
from meshwise.run.serve.process import Program, free_port, output_of, private_address

RPC_NAMES = ("ggml-rpc-server", "rpc-server")  # llama.cpp's RPC server: its name, and its former name
EMBEDDED = "xllamacpp"
LOOPBACK = ("loopback", "localhost", "127.0.0.1")
SERVER_ONLY = ("-dev", "-ot", "--n-cpu-moe", "--rpc")  # flags of llama-server that xllamacpp does not accept
FIRST_HOST = ("--master-addr", "--data-parallel-address", "--dist-init-addr")  # flags of vLLM and SGLang that name the first host
OPTIONAL = {"-lv": "4", "--cache-ram": "0"}
"""Given to a llama-server that knows them: log the allocations on each device; keep no prompts of other requests, which would use memory
that no plan counts and delay first tokens."""
_INSTALL = {
    "linux": "pip install xllamacpp for a CPU, or unpack a release of llama.cpp and name its folder with --engine-path",
    "darwin": "brew install llama.cpp, or pip install xllamacpp",
    "win32": "winget install llama.cpp, or pip install xllamacpp",
}
INSTALL = _INSTALL.get(sys.platform, _INSTALL["linux"])


def programs(deployment: Deployment, run: ServeRun) -> list[Program]:
    """Return every process of the plan, the server last."""
    engine = deployment.question.engine
    if not engine.server:
        raise UserError(f"the {engine.name} engine has no server: 'meshwise bench plan.json' measures it")
    if engine.by_hand:
        raise UserError(f"{engine.name} {engine.by_hand}: start it as the plan says, and give its URL to 'meshwise bench'")
    if deployment.layout.prefill:
        raise UserError(
            "the plan has servers for prompts and for outputs: start them as it says, and give the router's URL to 'meshwise bench'"
        )
    if deployment.layout.replicas > 1:
        raise UserError(
            f"the plan has {deployment.layout.replicas} replicas, which need a load balancer: plan with --fix replicas=1"
        )
    server = _commands(deployment)[-1]
    run = run if run.port else replace(run, port=free_port())
    if engine.install:
        spans = deployment.layout.hosts > 1
        server = _first_host(_commands(deployment)[0], run) if spans else server
        words = [_require(server[0], run.engine_path, engine.install), *server[1:], "--host", run.host, "--port", str(run.port)]
        return [Program(name=engine.name, command=tuple(words), host=run.host, port=run.port)]
    return [*rpc_helpers(deployment, run), _llama_server(_flags(server, run), run)]


def _first_host(server: list[str], run: ServeRun) -> list[str]:
    """Return an engine's command for the first host with its real address; the others are started there, as the plan says."""
    flag = next((word for word in FIRST_HOST if word in server), None)
    if flag is None:
        raise UserError("the plan spans several hosts: start it as the plan says, and give its URL to 'meshwise bench'")
    at = server.index(flag) + 1
    host, _, port = server[at].partition(":")
    if host not in run.addresses:
        raise UserError(
            f"the plan spans several hosts: give this machine's address with --rpc {host}=ADDRESS, and start the command of each "
            f"other host there, with the same {flag}"
        )
    address = private_address(run.addresses[host])
    return [*server[:at], f"{address}:{port}" if port else address, *server[at + 1 :]]


def with_flags(processes: list[Program], flags: str) -> list[Program]:
    """Return programs whose server, the last one, has further flags after those of its plan; engines take the last of a repeated flag."""
    try:
        words = shlex.split(flags)
    except ValueError as error:
        raise UserError(f"--engine-flags {quoted(flags)}: {error}") from None
    server = processes[-1]
    return [*processes[:-1], replace(server, command=(*server.command, *words))]


def rpc_helpers(deployment: Deployment, run: ServeRun) -> list[Program]:
    """Return the RPC servers of the plan that run on this machine: of hosts whose address is loopback."""
    servers: list[Program] = []
    for words in _commands(deployment)[:-1]:
        settings = dict(word.split("=", 1) for word in words if "=" in word.split("-")[0])
        rest = [word for word in words if word.partition("=")[0] not in settings]
        host, port = rest[rest.index("-H") + 1], rest[rest.index("-p") + 1]
        if run.addresses.get(host, "") in LOOPBACK:
            servers.append(_rpc_server(int(port), "127.0.0.1", run, settings))
    return servers


def rpc_servers(deployment: Deployment, run: ServeRun) -> list[Program]:
    """Return the RPC servers of the host that `--serve-rpc` names, bound to a private address of this machine."""
    lines = _commands(deployment)
    ((host, address),) = run.addresses.items()
    host_lines = [words for words in lines if "-H" in words and words[words.index("-H") + 1] == host]
    if not host_lines:
        hosts = sorted({words[words.index("-H") + 1] for words in lines if "-H" in words})
        raise UserError(f"the plan has no RPC servers on {quoted(host)}; it has {', '.join(hosts) or 'none'}")
    servers: list[Program] = []
    for words in host_lines:
        settings = dict(word.split("=", 1) for word in words[: words.index("-H")] if "=" in word)
        servers.append(_rpc_server(int(words[words.index("-p") + 1]), private_address(address), run, settings))
    return servers


def dry_run_command(deployment: Deployment, run: ServeRun) -> tuple[str, ...]:
    """Return the command of llama.cpp's own dry run; empty for another engine, or where the program is not installed.

    --no-repack: weights stay in the order of the file, as the plan counts them; repacked copies for a CPU are not memory that must be
    available.
    """
    llama = deployment.question.engine.name == "llama.cpp" and run.engine_path != EMBEDDED
    program = _find_program(DRY_RUN_PROGRAM, run.engine_path) if llama else ""
    return (program, *_flags(_commands(deployment)[-1], run), "--no-repack", "-fitp", "on") if program else ()


def llama_bench_command(deployment: Deployment, run: ServeRun) -> tuple[str, ...]:
    """Return the command of llama-bench with the plan's layout."""
    if deployment.question.engine.name != "llama.cpp":
        raise UserError(f"--llama-bench measures llama.cpp; this plan is for {deployment.question.engine.name}")
    program = _require(llama_bench.NAME, run.engine_path, INSTALL)
    return (program, *llama_bench.flags(_flags(_commands(deployment)[-1], run)))


def _commands(deployment: Deployment) -> list[list[str]]:
    """Return the words of every command of a plan, the server's last; llama.cpp gets the layers of each device as the plan has them."""
    q = deployment.question
    layout = llamacpp.with_layers(q, deployment.layout) if q.engine.name == "llama.cpp" else deployment.layout
    lines = (shlex.split(line, comments=True) for line in commands(q, layout)[q.engine.name])
    return [words for words in lines if words]


def _flags(server: list[str], run: ServeRun) -> list[str]:
    """Return llama-server's flags with the model file, addresses and threads that were given."""
    words = _with_rpc(_with_file(server, run.model_file), run)
    return [*words[1:], *(["-t", str(run.threads)] if run.threads else [])]


def _llama_server(words: list[str], run: ServeRun) -> Program:
    """Return llama-server; or xllamacpp if it is asked for, or if llama-server is missing and the layout only needs the CPU."""
    layers = int(words[words.index("-ngl") + 1])
    end = ["--host", run.host, "--port", str(run.port)]
    program = "" if run.engine_path == EMBEDDED else _find_program("llama-server", run.engine_path)
    if program:
        known = output_of([program, "--help"]).replace(",", " ").split()
        more = [word for flag, value in OPTIONAL.items() if flag in known for word in (flag, value)]
        return Program(name="llama-server", command=(program, *words, *end, *more), host=run.host, port=run.port)
    only = [flag for flag in SERVER_ONLY if flag in words]
    if run.engine_path == EMBEDDED and only:
        raise UserError(f"xllamacpp does not accept {', '.join(only)}, which this plan needs; llama-server does")
    embedded = (run.engine_path == EMBEDDED or (not run.engine_path and not layers)) and not only
    if not embedded or not xllamacpp.installed():
        missing = EMBEDDED if run.engine_path == EMBEDDED else "llama-server"
        raise UserError(f"no {missing} found{_in_folder(run.engine_path)}: {INSTALL}")
    start = (sys.executable, "-m", "meshwise.run.serve.xllamacpp")
    return Program(name="xllamacpp", command=(*start, *words, *end), host=run.host, port=run.port)


def _with_file(words: list[str], given: str) -> list[str]:
    """Replace the model file of a command by the one that was given; refuse a missing one."""
    at = words.index("-m") + 1
    file = given or words[at]
    if not os.path.isfile(file):
        name = Path(words[at]).name
        raise UserError(
            f"no file {quoted(file, 200)}: name the model's file with --model-file, or write one with random weights: "
            f"'meshwise make-gguf MODEL --out {name}'"
        )
    return [*words[:at], file, *words[at + 1 :]]


def _with_rpc(words: list[str], run: ServeRun) -> list[str]:
    """Replace the hosts of --rpc by their addresses."""
    if "--rpc" not in words:
        return words
    at, known = words.index("--rpc") + 1, run.addresses
    places: list[str] = []
    for place in words[at].split(","):
        host, _, port = place.partition(":")
        if host not in known:
            raise UserError(
                f"the plan spans several hosts: give the address of {host}'s RPC servers with --rpc {host}=ADDRESS, or start them "
                f"here with --rpc {host}=loopback"
            )
        places.append(f"{private_address(known[host])}:{port}")
    return [*words[:at], ",".join(places), *words[at + 1 :]]


def _rpc_server(port: int, address: str, run: ServeRun, settings: dict[str, str]) -> Program:
    program = next(filter(None, (_find_program(name, run.engine_path) for name in RPC_NAMES)), "")
    if not program:
        names = " or ".join(RPC_NAMES)
        raise UserError(f"no {names} found{_in_folder(run.engine_path)}: llama.cpp has it if built with GGML_RPC=ON ({INSTALL})")
    command = (program, "-H", address, "-p", str(port), *(("-t", str(run.threads)) if run.threads else ()))
    return Program(name=f"rpc-server {port}", command=command, environment=settings, host=address, port=port, health="")


def _find_program(name: str, folder: str) -> str:
    """Return the path of a program in a folder, or on PATH where none is given; '' if it is not there."""
    if not folder:
        return shutil.which(name) or ""
    given = Path(folder)
    if given.is_file() and given.name == name:
        return str(given)
    return shutil.which(name, path=str(given)) or shutil.which(name, path=str(given / "bin")) or ""


def _require(name: str, folder: str, hint: str) -> str:
    program = _find_program(name, folder)
    if not program:
        raise UserError(f"no {name} found{_in_folder(folder)}: {hint}")
    return program


def _in_folder(folder: str) -> str:
    return f" in {quoted(folder, 200)}" if folder and folder != EMBEDDED else " on PATH" if not folder else ""
