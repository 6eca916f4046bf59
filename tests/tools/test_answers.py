"""tools/answers.py: the questions that pages show an answer to."""

import answers

PAGE = """
<!-- [[[cog
names = ("1x2x3", "4x5x6")
shown.command("meshwise plan --batch 8 " + " ".join(f"--shape {name}" for name in names))
shown.error("meshwise plan llama --bacth 4")
shown.command("meshwise serve llama --verbose | head -3")
shown.command("meshwise plan --help")
]]] -->

```console
$ meshwise plan --batch 8 --shape 1x2x3 --shape 4x5x6
```

```console
$ meshwise plan llama --bacth 4
meshwise: unknown option --bacth
```

```console
$ meshwise serve llama --verbose | head -3
```

```console
$ meshwise plan --help
```

<!-- [[[end]]] -->

```console
$ meshwise plan path/to/config.json --on my-cluster.toml
```
"""


def test_questions_are_those_that_cog_answered():
    assert answers.shown(PAGE) == ["plan --batch 8 --shape 1x2x3 --shape 4x5x6", "serve llama"]


def test_readme_tables_and_more_are_asked_once():
    asked = answers.questions()
    readme = answers.shown((answers.ROOT / "README.md").read_text())
    assert readme
    assert {*readme, *answers.MORE_QUESTIONS, "validate bloom_prequel"} <= set(asked)
    assert len(asked) == len(set(asked))
