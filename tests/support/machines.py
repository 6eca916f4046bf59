"""Twenty machines that people have: cards of 8 GB to eight H200, Macs, a Strix Halo, a DGX Spark, CPUs alone."""

MACHINES = (
    "1xrtx4060", "1xrtx3060-12gb", "1xrtx4060ti-16gb", "1xrtx3090", "1xrtx4090", "1xrtx5090", "2xrtx3090", "4xrtx3090",
    "1xrx7900xtx", "1xarc-b580", "1xl40s", "1xa100-80gb-sxm", "8xh100-sxm", "8xh200", "m4:16GB", "m4-max:64GB", "m2-ultra:192GB",
    "ryzen-ai-max-395", "1xgb10", "cpu:32GB",
)  # fmt: skip
