"""catalogue: facts and fitted numbers about hardware and programs, as frozen records read from data/ and the user's folder.

    files.py         find, match, read and write data files; files in the user's folder override the built-in ones
    records.py       dataclasses <-> TOML, and back from JSON that meshwise wrote
    chips.py         Chip, Link, Node, Cluster; find_chip
    cards.py         find_card, chip_in_text: chips as tables and logs write them
    prices.py        Price, PublishedRun: what devices cost and of whom; what trainings took beside their steps
    clusters.py      '48x8xa100-80gb', 'jean-zay:48' -> Cluster
    pods.py          'tpu-v5p:16x20x28', '2 x v5e-256' -> Cluster
    rescale.py       the text of a cluster with other nodes, devices, chip or network
    here.py          this machine: its GPUs, its memory, its name as a cluster
    installed.py     this installation: version, extras, and the engines and programs that are found
    frameworks.py    Framework: what a training program overlaps, stores and supports
    engines.py       Engine, Runtime: what a serving program supports, and how it allocates memory
    rl_programs.py   RlProgram: what a program that trains on generated answers does; Overheads: what its phases cost
    quality.py       Quality: what formats of weights cost in quality, with sources
    releases.py      Release, Offer: open models, where their weights are, and their published scores
    power.py         Power: what chips draw by what they do, fitted on meters; hosts and grids
    calibrations.py  Calibration, ServeCalibration: fitted coefficients
    origins.py       Origin: what each calibration was fitted to, and the digest of its file
    modes.py         Mode: a state in which runs of a campaign are slower, whatever the model
    evidence.py      Measured: training runs that predictions were held against, and the range of their layouts
    levels.py        coefficients of architectures, frameworks and networks, and the calibration composed of them for a question
A new chip or cluster is one file: data/chips/NAME.toml, data/clusters/NAME.toml.
No printing.
"""
