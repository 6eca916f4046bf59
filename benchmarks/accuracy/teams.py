"""The layouts of seven teams beside the planner's own pick: is theirs predicted, and does the pick promise too much?

python benchmarks/accuracy/teams.py
"""

from dataclasses import dataclass
from typing import Any

import meshwise as mw
from meshwise.errors import UserError


@dataclass(frozen=True)
class Team:
    """A published training: the question, the layout that the team used, and what it reports."""

    name: str
    question: dict[str, Any]
    layout: str
    """Axes in words of --fix."""
    seconds: float
    """Seconds of a step, as published or computed from what is."""
    source: str


def at_mfu(flops_per_gpu: float, model: str, batch: int, seq: int, devices: int) -> float:
    """Return the seconds of a step at this many FLOP/s per device: 6 FLOP per parameter and token, and causal attention."""
    return float(mw.count(model).model.flops(batch * seq, seq)) / flops_per_gpu / devices


def teams() -> list[Team]:
    """Return the teams. Figures are recalled from the publications named, not read again."""
    llama = {"model": "llama-3.1-405b", "framework": "Llama 3"}
    nemotron = {"model": "nemotron-4-340b", "framework": "megatron", "on": "768x8xh100-sxm", "batch": 2304, "seq": 4096}
    return [
        Team(
            "Llama 3 405B, 16,384 H100",
            {**llama, "on": "grand-teton:2048", "batch": 2048, "seq": 8192},
            "tp=8,pp=16,cp=1,dp=128",
            at_mfu(400e12, "llama-3.1-405b", 2048, 8192, 16384),
            "Llama 3 herd, Table 4: 400 TFLOP/s, 41% MFU",
        ),
        Team(
            "Llama 3 405B, 8,192 H100",
            {**llama, "on": "grand-teton:1024", "batch": 2048, "seq": 8192},
            "tp=8,pp=16,cp=1,dp=64",
            at_mfu(430e12, "llama-3.1-405b", 2048, 8192, 8192),
            "Llama 3 herd, Table 4: 430 TFLOP/s, 43% MFU",
        ),
        Team(
            "DeepSeek-V3, 2,048 H800",
            {
                "model": "deepseek-v3",
                "framework": "hai-llm",
                "on": "deepseek-h800:256",
                "batch": 15360,
                "seq": 4096,
                "precision": "fp8-block",
            },
            "tp=1,pp=16,ep=64,cp=1",
            2.664e6 * 3600 / 2048 / (14.8e12 / (15360 * 4096)),
            "DeepSeek-V3 report: 2.664M H800 hours for 14.8T tokens",
        ),
        Team(
            "BLOOM 176B, 384 A100",
            {"model": "bloom-176b", "framework": "megatron-deepspeed", "on": "jean-zay:48", "batch": 2048, "seq": 2048},
            "tp=4,pp=12,mbs=2",
            105.0,
            "BigScience chronicles: 104 to 106 s a step of 2,048 sequences",
        ),
        Team(
            "Nemotron-4 340B, 6,144 H100",
            nemotron,
            "tp=8,pp=12,cp=1",
            8.0,
            "Nemotron-4 340B, Table 2: 8.0 s, 41.0% MFU at batch 2,304",
        ),
        Team(
            "OLMo 2 32B, 1,024 H100",
            {"model": "olmo-2-32b", "framework": "fsdp", "on": "a3-megagpu-8g:128", "batch": 2048, "seq": 4096},
            "tp=1,pp=1,cp=1",
            2048 * 4096 / (1800 * 1024),
            "OLMo 2 32B: 1,800 tokens/s a GPU, 38% MFU; HSDP. Of 160 nodes, 128 divide its batch",
        ),
        Team(
            "Apertus 70B, 4,096 GH200",
            {"model": "apertus-70b", "framework": "megatron", "on": "alps:1024", "batch": 4096, "seq": 4096},
            "tp=4,pp=8,cp=1",
            4096 * 4096 / (723 * 4096),
            "Apertus report: 723 tokens/s a GPU on 4,096 GPUs",
        ),
    ]


def main() -> None:
    print(
        "| team | measured s/step | its layout | error | pick | faster than measured by |\n| --- | --- | --- | --- | --- | --- |"
    )
    for team in teams():
        try:
            best = mw.plan(**team.question).best
            own = mw.plan(**team.question, fix=[team.layout]).best
        except UserError as error:
            print(f"| {team.name} | {team.seconds:.3g} | {error} | | | |")
            continue
        error, gain = own.step / team.seconds - 1, 1 - best.step / team.seconds
        print(
            f"| {team.name} | {team.seconds:.3g} | {own.name}: {own.step:.3g} | {error:+.1%} | {best.name}: {best.step:.3g} | {gain:.1%} |"
        )


if __name__ == "__main__":
    main()
