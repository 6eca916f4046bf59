"""serve: serving programs, one file each.

    setup.py         a serving plan, or a question with a layout, as facts
    declared.py      what all of them have in common
    lengths.py       lengths as engines write them: 4k, 4K, 32768
    vllm.py          vllm serve, over several hosts with its own --nnodes
    sglang.py        python -m sglang.launch_server
    tensorrt_llm.py  trtllm-serve and its YAML
    llamacpp.py      llama-server, ggml-rpc-server on other hosts, and a preset of models
    ollama.py        ollama serve with a Modelfile
    dynamo.py        a DynamoGraphDeployment of vLLM workers
    transformers.py  meshwise bench, since transformers has no server

Each has `PROGRAM` (entry points `meshwise.programs`): `export --to` writes it, `check` reads it. Those that `meshwise serve` plans for
also have
`lines(question, layout) -> list[str]` (entry points `meshwise.programs`), made from the same table of keys; one that can run layouts of
another engine also
has `RUNS_LAYOUTS_OF` and `can(question, layout)`.
Imports export.{program,facts,forms,kinds}, plan, cost, models, catalogue. Imported by export.{engines,write,check} through entry
points, run.serve.
"""
