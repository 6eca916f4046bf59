"""run: a plan as processes on machines, and measurements of them.

    train/        TrainRun -> launch -> processes -> report; sweeps, dry runs, generation from trained weights
    serve/        ServeRun -> programs of an engine -> a server; `bench` measures one beside its prediction
    bench/        BenchAsk, and a client that times the tokens of an OpenAI-compatible endpoint
    probe/        ProbeAsk: time this machine's kernels and links, and install the result as the cluster `here`
    preflight/    PreflightAsk: is a cluster what it says it is, and which part of it is slow
    text/         data files and tokenizers -> token files
    children.py   end child processes with their parent
    packages.py   optional packages, and the command that installs one
    scratch.py    files between processes that leave nothing behind
    meter.py      power of this machine's devices while something runs: NVML, rocm-smi, RAPL
    share.py      a bench as a row that anybody can check: nothing personal, shown before it is written
    callbacks.py  Say and Progress: how long functions report to their caller
Prints nothing: lines and progress go to callbacks.
"""
