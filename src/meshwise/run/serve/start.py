"""A serving plan as processes: the engine that it was made for, with exactly its split; what is missing is told before anything starts."""

import os
import shlex
import shutil
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

from meshwise import units
from meshwise.catalogue import chips, here
from meshwise.cost.serve.layouts import ServeLayout
from meshwise.cost.serve.question import ServeQuestion
from meshwise.errors import DoesNotFit, UserError, quoted
from meshwise.export import llamacpp
from meshwise.export.engines import commands
from meshwise.plan.ask import ServeAsk
from meshwise.plan.serve.plan import ServePlan
from meshwise.plan.serve.search import Option, priced, search, weighed
from meshwise.run.bench.speeds import Setting
from meshwise.run.serve import llama_bench, xllamacpp
from meshwise.run.serve.allocations import DRY_RUN
from meshwise.run.serve.process import Program, free_port, private, says

RPC_NAMES = ("ggml-rpc-server", "rpc-server")
"""As it is called, and as it was."""
INSIDE = "xllamacpp"
LOOPBACK = ("loopback", "localhost", "127.0.0.1")
SERVER_ONLY = ("-dev", "-ot", "--n-cpu-moe", "--rpc")
"""Flags of llama-server that the embedded one does not take."""
WISHED = {"-lv": "4", "--cache-ram": "0"}
"""Where llama-server has them: it says what it allocates on each device, and keeps no prompts of others in memory that no plan counts, nor
takes time from a first token to put them there."""
INSTALL = {
    "linux": "pip install xllamacpp for a CPU, or unpack a release of llama.cpp and name its folder with --engine-path",
    "darwin": "brew install llama.cpp, or pip install xllamacpp",
    "win32": "winget install llama.cpp, or pip install xllamacpp",
}


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What a user says of how to run a plan; what is empty is looked for."""

    folder: str = ""
    """Of the engine's programs, or 'xllamacpp'."""
    host: str = "127.0.0.1"
    port: int = 0
    """0: a free one."""
    file: str = ""
    """The model's .gguf, where it is not where the plan says."""
    rpc: dict[str, str] = field(default_factory=dict[str, str])
    """Addresses of 'host1', ...; 'loopback' starts its servers here."""
    threads: int = 0


@dataclass(frozen=True)
class Planned:
    """A way of serving that can be started, and asked what it should do."""

    ask: ServeAsk
    question: ServeQuestion
    layout: ServeLayout

    def at_own(self) -> Option | None:
        """At the setting that it was planned for, one user."""
        return self.at(Setting(prompt=self.ask.prompt, output=self.ask.output, users=1))

    def at(self, setting: Setting) -> Option | None:
        """What the planner says of this way at another setting; none where it does not fit."""
        context = max(self.question.work.context, setting.prompt + setting.output)
        ask = replace(self.ask, prompt=setting.prompt, output=setting.output, users=setting.users, context=context, fix=())
        q = ask.question(self.question.model)
        found = weighed(q, self.layout)
        return priced(q, found) if found.fits else None


def planned(ask: ServeAsk) -> Planned:
    """The best way of a question; a plan that was saved is asked again, which gives the same."""
    q = ask.question()
    found = search(q)
    if not found.options:
        from meshwise.plan.serve.plan import refuse

        raise refuse(q, found)
    return Planned(ask, q, found.options[0].layout)


def for_settings(one: Planned, settings: list[Setting]) -> Planned:
    """The same way, with room for the longest and the most of these."""
    prompt, output = max(s.prompt for s in settings), max(s.output for s in settings)
    users = max(s.users for s in settings)
    # Prompts are made of words, whose tokens are known only about: a sixteenth of room, and 32.
    context = max(one.ask.context, (prompt + output) * 17 // 16 + 32)
    ask = replace(one.ask, prompt=prompt, output=output, users=users, context=context, fix=())
    q = ask.question(one.question.model)
    if not weighed(q, one.layout).fits:
        raise DoesNotFit(f"{one.layout.name} has no room for {users} users with {prompt + output:,} tokens each")
    return Planned(ask, q, one.layout)


def ask_here(model: str, on: str, engine: str = "") -> ServeAsk:
    """A question about this machine: its GPUs where the catalogue has them, else its processor."""
    cards = here.gpus()
    chip = chips.known_chip(cards[0].removeprefix("NVIDIA ")) if cards else None
    if cards and chip is None and not on:
        raise UserError(f"the catalogue has no {cards[0]}; say with --on what it is most like (meshwise show chips)")
    number = 1 if engine == "transformers" else len(cards)  # what it is for; --on or a plan has it share layers over several
    return ServeAsk(model=model, on=on or (f"{number}x{chip.key}" if chip else "cpu"), engine=engine)


def programs(one: Planned, wish: Wish) -> list[Program]:
    """Every process of the plan, the server last."""
    engine = one.question.engine.name
    if engine == "ollama":
        raise UserError("ollama runs as a service of its own: start it as the plan says, and give its URL to 'meshwise bench'")
    if engine == "transformers":
        raise UserError("the transformers engine serves nobody: 'meshwise bench plan.json' measures it")
    if one.layout.replicas > 1:
        raise UserError(
            f"the plan has {one.layout.replicas} copies, which need a load balancer: plan with --fix replicas=1 to run one"
        )
    server = _lines(one)[-1]
    wish = wish if wish.port else replace(wish, port=free_port())
    if engine == "vllm":
        words = [_found("vllm", wish.folder, "pip install vllm"), *server[1:], "--host", wish.host, "--port", str(wish.port)]
        return [Program(name="vllm", command=tuple(words), host=wish.host, port=wish.port)]
    return [*helpers(one, wish), _llama_server(_flags(server, wish), wish)]


def helpers(one: Planned, wish: Wish) -> list[Program]:
    """The processes of a plan beside its server."""
    return _rpc(_lines(one)[:-1], wish)


def _lines(one: Planned) -> list[list[str]]:
    """The words of every command of a plan, the server's last. llama.cpp is told each card's layers: what is free when it starts may be
    other than what was planned with."""
    q = one.question
    layout = llamacpp.with_layers(q, one.layout) if q.engine.name == "llama.cpp" else one.layout
    lines = (shlex.split(line, comments=True) for line in commands(q, layout)[q.engine.name])
    return [words for words in lines if words]


def _flags(server: list[str], wish: Wish) -> list[str]:
    """llama-server's, with the file and the addresses that were given."""
    words = _with_rpc(_with_file(server, wish.file), wish)
    return [*words[1:], *(["-t", str(wish.threads)] if wish.threads else [])]


def _llama_server(words: list[str], wish: Wish) -> Program:
    layers = int(words[words.index("-ngl") + 1])
    end = ["--host", wish.host, "--port", str(wish.port)]
    own = "" if wish.folder == INSIDE else _look("llama-server", wish.folder)
    if own:
        known = says([own, "--help"]).replace(",", " ").split()
        more = [word for flag, value in WISHED.items() if flag in known for word in (flag, value)]
        return Program(name="llama-server", command=(own, *words, *end, *more), host=wish.host, port=wish.port)
    only = [flag for flag in SERVER_ONLY if flag in words]
    if wish.folder == INSIDE and only:
        raise UserError(f"xllamacpp does not take {', '.join(only)}, which this plan needs; llama-server does")
    inside = (wish.folder == INSIDE or (not wish.folder and not layers)) and not only
    if not inside or not xllamacpp.installed():
        missing = INSIDE if wish.folder == INSIDE else "llama-server"
        raise UserError(f"no {missing} found{_where(wish.folder)}: {INSTALL.get(sys.platform, INSTALL['linux'])}")
    start = (sys.executable, "-m", "meshwise.run.serve.xllamacpp")
    return Program(name="xllamacpp", command=(*start, *words, *end), host=wish.host, port=wish.port)


def dry_run_command(one: Planned, wish: Wish) -> tuple[str, ...]:
    """llama.cpp's own dry run of the plan; nothing where it is another engine's or the program is not there.

    Weights stay in the order of the file, as the plan counts them: a processor's second copies are not memory that must be had.
    """
    own = _look(DRY_RUN, wish.folder) if one.question.engine.name == "llama.cpp" and wish.folder != INSIDE else ""
    return (own, *_flags(_lines(one)[-1], wish), "--no-repack", "-fitp", "on") if own else ()


def timer_command(one: Planned, wish: Wish) -> tuple[str, ...]:
    """llama-bench with the plan's split."""
    if one.question.engine.name != "llama.cpp":
        raise UserError(f"--llama-bench times llama.cpp, and this is {one.question.engine.name}'s")
    own = _found(llama_bench.NAME, wish.folder, INSTALL.get(sys.platform, INSTALL["linux"]))
    return (own, *llama_bench.flags(_flags(_lines(one)[-1], wish)))


def _with_file(words: list[str], given: str) -> list[str]:
    at = words.index("-m") + 1
    file = given or words[at]
    if not os.path.isfile(file):
        name = Path(words[at]).name
        raise UserError(
            f"there is no {quoted(file, 200)} here: name the model's file with --model-file, or make one of random weights with "
            f"'meshwise make-gguf MODEL --out {name}'"
        )
    return [*words[:at], file, *words[at + 1 :]]


def _rpc(lines: list[list[str]], wish: Wish) -> list[Program]:
    """RPC servers that are to run here: those of hosts that were said to be at loopback."""
    found: list[Program] = []
    for words in lines:
        settings = dict(word.split("=", 1) for word in words if "=" in word.split("-")[0])
        rest = [word for word in words if word.partition("=")[0] not in settings]
        host, port = rest[rest.index("-H") + 1], rest[rest.index("-p") + 1]
        if wish.rpc.get(host, "") in LOOPBACK:
            found.append(_rpc_server(int(port), "127.0.0.1", wish, settings))
    return found


def _rpc_server(port: int, address: str, wish: Wish, settings: dict[str, str]) -> Program:
    own = next(filter(None, (_look(name, wish.folder) for name in RPC_NAMES)), "")
    if not own:
        hint = INSTALL.get(sys.platform, INSTALL["linux"])
        raise UserError(
            f"no {' or '.join(RPC_NAMES)} found{_where(wish.folder)}: it is part of llama.cpp built with GGML_RPC=ON ({hint})"
        )
    command = (own, "-H", address, "-p", str(port), *(("-t", str(wish.threads)) if wish.threads else ()))
    return Program(name=f"rpc-server {port}", command=command, environment=settings, host=address, port=port, health="")


def rpc_servers(one: Planned, wish: Wish) -> list[Program]:
    """The RPC servers of one host of a plan, bound to a private address of this machine."""
    lines = _lines(one)
    ((host, address),) = wish.rpc.items()
    own = [words for words in lines if "-H" in words and words[words.index("-H") + 1] == host]
    if not own:
        hosts = sorted({words[words.index("-H") + 1] for words in lines if "-H" in words})
        raise UserError(f"the plan has no RPC servers on {quoted(host)}; it has {', '.join(hosts) or 'none'}")
    found: list[Program] = []
    for words in own:
        settings = dict(word.split("=", 1) for word in words[: words.index("-H")] if "=" in word)
        found.append(_rpc_server(int(words[words.index("-p") + 1]), private(address), wish, settings))
    return found


def _with_rpc(words: list[str], wish: Wish) -> list[str]:
    if "--rpc" not in words:
        return words
    at = words.index("--rpc") + 1
    places: list[str] = []
    for place in words[at].split(","):
        host, _, port = place.partition(":")
        if host not in wish.rpc:
            raise UserError(
                f"the plan lies over hosts: say where {host}'s RPC servers are with --rpc {host}=ADDRESS, or start them here with "
                f"--rpc {host}=loopback"
            )
        places.append(f"{private(wish.rpc[host])}:{port}")
    return [*words[:at], ",".join(places), *words[at + 1 :]]


def rpc_addresses(text: str) -> dict[str, str]:
    """'host1=10.0.0.5,host2=loopback'."""
    found: dict[str, str] = {}
    for piece in filter(None, (word.strip() for word in text.split(","))):
        host, equals, address = piece.partition("=")
        if not equals or not address:
            raise UserError(
                f"--rpc {quoted(piece)}: expected a host of the plan and its address, such as host1=10.0.0.5 or host1=loopback"
            )
        found[host] = address
    return found


def _look(name: str, folder: str) -> str:
    """A program in the folder that was named, or on PATH."""
    if not folder:
        return shutil.which(name) or ""
    given = Path(folder)
    if given.is_file() and given.name == name:
        return str(given)
    return shutil.which(name, path=str(given)) or shutil.which(name, path=str(given / "bin")) or ""


def _found(name: str, folder: str, hint: str) -> str:
    own = _look(name, folder)
    if not own:
        raise UserError(f"no {name} found{_where(folder)}: {hint}")
    return own


def _where(folder: str) -> str:
    return f" in {quoted(folder, 200)}" if folder and folder != INSIDE else " on PATH" if not folder else ""


def memory_sum(one: Planned) -> str:
    """What the planner counted for each card, to stand beside what an engine says when it runs out."""
    found = weighed(one.question, one.layout)
    parts = [units.show(need.bytes, "bytes", binary=True, digits=3) for need in found.footprints]
    cards = ", ".join(f"card {i}: {text}" for i, text in enumerate(parts[1:]))
    return f"the plan counted {cards}; host: {parts[0]}"


def plan_ask(made: ServePlan) -> ServeAsk:
    """The question of a saved plan, without what was seen of it."""
    return replace(made.ask, measured=0.0, engine=made.engine, context=made.context)
