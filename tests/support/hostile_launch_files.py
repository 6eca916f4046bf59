"""Launch files that somebody made to hang `check`, to fill its memory or to break it, by name."""

from itertools import pairwise

MANY = 490_000
"""Characters of a file that is just not refused for its size."""
DIGITS = "9" * 5000
HEAD = "#!/bin/bash\n"
RUN = "\ntorchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4\n"


def scripts() -> dict[str, str]:
    """Return shell scripts."""
    found: dict[str, str] = {}
    for name, word in {
        "products": "{a,b}" * 40,
        "products of ranges": "{1..9999}" * 6,
        "nested": "{a," * 60 + "b" + "}" * 60,
        "open": "{" * 30_000,
        "closed": "{}" * 20_000,
        "commas": "{" + "," * 50_000 + "}",
        "many ranges": "{1..9}" * 300,
        "range of digits": f"{{1..{DIGITS}}}",
    }.items():
        found[f"braces, {name}"] = f"echo {word}{RUN}"
    double = {
        "array": 'a=(x x); for i in {1..60}; do a=("${a[@]}" "${a[@]}"); done',
        "text": 'a=xx; for i in {1..60}; do a="$a$a"; done',
        "appended text": "a=xx; for i in {1..60}; do a+=$a; done",
        "arguments": 'set -- x x; for i in {1..60}; do set -- "$@" "$@"; done',
        "function": 'f() { f "$@" "$@"; }; f a b',
        "export": 'export A=xx; for i in {1..60}; do export A="$A$A"; done',
        "heredoc": "a=xx; for i in {1..60}; do a=$(cat <<E\n$a$a\nE\n); done",
        "file": "echo xx > f; for i in {1..60}; do cat f f > g; cat g g > f; done",
        "read": 'a=xx; for i in {1..60}; do read a <<< "$a$a"; done',
        "eval": 'a="x "; for i in {1..60}; do eval a=\'"$a$a"\'; done',
        "replace": "a=aa; for i in {1..60}; do a=${a//a/aa}; done",
        "element": "for i in {1..60}; do a[0]=${a[0]}x${a[0]}; done",
        "sed": "a=aa; for i in {1..60}; do a=$(echo $a | sed s/a/aaaa/g); done",
        "tee": "echo aa | tee f; for i in {1..60}; do cat f f | tee -a f; done",
        "mapfile": 'a=xx; for i in {1..60}; do mapfile -t a <<< "$a$a"; done',
        "named": 'declare -A a; for i in {1..9999}; do a[$i]=$i; done; for i in {1..60}; do b=("${a[@]}" "${b[@]}" "${b[@]}"); done',
    }
    found |= {f"doubled, {name}": f"{text}{RUN}" for name, text in double.items()}
    chain = "\n".join(f"a{i}='{'+'.join([f'a{i + 1}'] * 900)}'" for i in range(19))
    found["arithmetic through variables"] = f"{chain}\na19=1\necho $((a0)){RUN}"
    for name, text in {
        "power": "echo $((9**9**9**9))",
        "brackets": f"echo $(({'(' * 20_000}1{')' * 20_000}))",
        "loop": "while ((1)); do ((i++)); done",
        "digits": f"echo $(({DIGITS} * {DIGITS}))",
        "base": f"echo $((99999999#{DIGITS}))",
        "unary": f"echo $(({'- ' * 50_000}1))",
        "assignments": "i=i+i; echo $((i))",
        "ternary": f"echo $(({'1?' * 3000}1{':1' * 3000}))",
        "count": "for ((i=0;;i++)); do :; done",
    }.items():
        found[f"arithmetic, {name}"] = f"{text}{RUN}"
    long = "a" * 2000
    for name, test in {
        "stars": f"[[ {long} =~ a*a*a*a*a*a*a*a*b ]]",
        "choices": f"[[ {long} =~ {'(a|a)' * 40}b ]]",
        "nested": f"[[ {long} =~ ((((a+)+)+)+)+b ]]",
        "optional": f"[[ {'a' * 60} =~ {'a?' * 60}{'a' * 60} ]]",
        "glob": f"[[ {long} == *a*a*a*a*a*a*a*b ]]",
        "extended": f"[[ {long} == +(+(+(a))) ]]",
        "extended b": f"[[ {long} == *(*(*(a|aa)))b ]]",
        "brackets": f"[[ a =~ {'(' * 5000} ]]",
        "class": f"[[ {long} =~ [[:alpha:]]*[[:alpha:]]*[[:alpha:]]*1 ]]",
        "counts": "[[ aaaa =~ (a{1,999}){1,999} ]]",
        "bracket": f"[[ a == [{long} ]]",
        "long": f"[[ {'a' * 100_000} =~ {'.*' * 1000}b ]]",
    }.items():
        found[f"test, {name}"] = f"if {test}; then echo x; fi{RUN}"
    for name, word in {
        "replace": "${x//*a*a*a*a*b/c}",
        "first": "${x/*a*a*a*b/c}",
        "shortest": "${x#*a*a*a*b}",
        "longest": "${x##*a*a*a*b}",
        "suffix": "${x%a*a*a*b*}",
        "whole suffix": "${x%%a*a*a*b*}",
        "end": "${x/%a*a*a*b*/c}",
        "case": "${x^^*a*a*b}",
        "slices": "${x:0:99999999999999999999}",
        "index": f"${{x[{DIGITS}]}}",
        "argument": f"${{{DIGITS}}}",
        "indirect": "${!x}",
        "length": "${#x[@]}",
    }.items():
        found[f"parameter, {name}"] = f"x={'a' * 20_000}\necho {word}{RUN}"
    found["case with stars"] = f"case {long} in {'*a' * 200}*b) echo;; esac{RUN}"
    for name, text in {
        "printf": "a=$(printf %999999999d 1)",
        "printf precision": "a=$(printf %.999999999f 1)",
        "printf words": "a=$(printf '%s' {1..9999}{1..999})",
        "seq": f"a=$(seq -s {'x' * 100_000} 1 9999)",
        "seq digits": f"a=$(seq {DIGITS})",
        "cut": "a=$(echo a | cut -d x -f 3999999999)",
        "cut digits": f"a=$(echo a | cut -d x -f {'9' * 400})",
        "head": f"a=$(echo a | head -n {DIGITS})",
        "expr": f"a=$(expr {DIGITS} + 1)",
        "bc": f"a=$(echo '{DIGITS}*{DIGITS}' | bc)",
        "tr": "a=$(echo a | tr a-z b)",
        "awk": "a=$(echo a | awk -F, '{print NF}')",
        "shift": f"set -- a; shift {DIGITS}",
        "break": f"for i in 1; do break {DIGITS}; done",
        "strange break": "for i in 1; do break ²; done",
        "return": f"f() {{ return {DIGITS}; }}; f",
        "basename": f"a=$(basename {'/' * 100_000})",
        "xargs": f"a=$(echo {'a ' * 100_000}| xargs)",
    }.items():
        found[f"command, {name}"] = f"{text}{RUN}"
    for name, letter in {
        "line": "a",
        "dollars": "$",
        "single quotes": "'",
        "double quotes": '"',
        "backslashes": "\\",
        "backquotes": "`",
        "braces": "${",
        "open": "$(",
        "blanks": " ",
        "brackets": "(",
        "semicolons": ";",
        "pipes": "|x",
        "ands": "x&&",
        "redirects": ">",
        "heredocs": "<<E ",
        "hashes": " #",
        "equals": "a=",
        "words": "a ",
        "lines": "a\n",
        "tests": "[[ a ]] ",
        "escapes": "$'\\x41'",
        "arithmetic": "$((",
        "ansi": "$'",
        "functions": "f(){ ",
        "ifs": "if a; then ",
        "carriage returns": "\r",
        "zeros": "\0",
        "continued": "\\\n",
        "quoted words": '"a" ',
        "parameters": "$a ",
    }.items():
        found[f"much, {name}"] = HEAD + letter * (MANY // len(letter))
    found["directive of blanks"] = f"#SBATCH {' ' * MANY}x{RUN}"
    found["directives of dashes"] = f"#SBATCH {'-' * MANY}{RUN}"
    found["directive of digits"] = f"#SBATCH --nodes={DIGITS}\n#SBATCH --ntasks-per-node={DIGITS}{RUN}"
    found["flag of digits"] = (
        f"torchrun pretrain_gpt.py --num-layers {DIGITS} --hidden-size {'9' * 300} --micro-batch-size 1e400{RUN}"
    )
    found["wrappers without an end"] = "srun -N\nmpirun -np\nsrun --nodes\n" + RUN
    found["branches"] = "".join(f"if [ $x{i} ]; then a{i}=1; else a{i}=2; fi\n" for i in range(8000)) + RUN
    found["branches of calls"] = 'f() { if [ "$x" ]; then f; else f; fi; }; f' + RUN
    found["variables"] = (
        "".join(f"a{i}={i}\n" for i in range(20_000)) + "".join(f'if [ "$b{i}" ]; then :; fi\n' for i in range(2000)) + RUN
    )
    found["evals"] = "eval " * 20_000 + RUN
    found["shells"] = "bash -c '" + "bash -c " * 20_000 + "'" + RUN
    return found


def trees() -> dict[str, str]:
    """Return YAML and JSON."""
    names = [chr(97 + i) for i in range(26)]

    def aliased(leaf: str, open_: str = "[", close: str = "]") -> str:
        lines = [f"{names[0]}: &{names[0]} {leaf}"]
        lines += [f"{b}: &{b} {open_}{','.join([f'*{a}'] * 9)}{close}" for a, b in pairwise(names)]
        return "\n".join(lines) + "\n"

    found = {
        f"aliases of {name}": aliased(leaf)
        for name, leaf in {"maps": "{}", "lists": "[]", "texts": "x", "lists of texts": "[x]"}.items()
    }
    found["merged aliases"] = "a: &a {x: 1}\n" + "".join(
        f"{b}: &{b} {{<<: *{a}, {b}1: *{a}, {b}2: *{a}}}\n" for a, b in pairwise(names)
    )
    found |= {
        f"{key} of thousands of digits": f"{text.format(DIGITS)}\nrun: torchrun train.py\n"
        for key, text in {
            "nodes": "num_nodes: {}", "accelerators": "resources: {{accelerators: {{H100: {}}}}}",
            "devices": "services: {{x: {{command: vllm serve x, deploy: {{resources: {{reservations: {{devices: [{{count: {}}}]}}}}}}}}}}",
            "GPUs": "servingEngineSpec: {{modelSpec: [{{modelURL: x/y, requestGPU: {}}}]}}",
            "litgpt": "checkpoint_dir: x\ndevices: '{0}'\nnum_nodes: '{0}'", "steps": "max_duration: {}ba\nmodel: {{name: mpt_causal_lm}}",
        }.items()
    }  # fmt: skip
    found["an alias of itself"] = "a: &a [*a]\n"
    found["a map of itself"] = "a: &a {b: *a, c: *a}\n"
    found["containers of aliases"] = "apiVersion: v1\nkind: JobSet\nmetadata: {name: x}\n" + aliased(
        "{containers: [{args: [x]}]}"
    )
    for text in (
        "e5",
        "E5",
        ".",
        "-",
        "+e5",
        ".e5",
        "1e",
        "1e5",
        "0x",
        "1_0",
        "_",
        "1__",
        "..",
        "1.e5",
        ".5",
        "nan",
        "inf",
        "1e999",
        "9" * 39,
        DIGITS,
        "0o7",
        "1:2",
    ):
        found[f"the value {text[:12]} {len(text)}"] = (
            f"adapter: lora\nrun_id: {text}\nsequence_len: {text}\nmicro_batch_size: {text}\n"
        )
    for name, letter in {
        "brackets": "[",
        "braces": "{",
        "dashes": "- ",
        "colons": "a: ",
        "keys": "a: 1\n",
        "lists": "- a\n",
        "quotes": '"',
        "anchors": "&a ",
        "tags": "!!a ",
        "lines": "a\n",
        "texts": "a",
        "blanks": " ",
        "questions": "? ",
        "documents": "---\n",
        "comments": "#\n",
        "folded": "a: >\n",
        "commas": "[,",
        "stars": "*a ",
        "tabs": "\t",
        "zeros": "\0",
        "percents": "%",
    }.items():
        found[f"much YAML of {name}"] = "adapter: lora\n" + letter * (MANY // len(letter))
    return found


def tables() -> dict[str, str]:
    """Return TOML."""
    return {
        "a key of 5,000 parts": ".".join(["a"] * 5000) + " = 1\n",
        "a section of 5,000 parts": f"[{'.'.join(['a'] * 5000)}]\nb = 1\n" + "".join(f"k{i} = 1\n" for i in range(40_000)),
        "a section of blanks": f"[a{' ' * MANY}b]\n",
        "a key of blanks": f"a{' ' * MANY}= 1\n",
        "lists": "a = " + "[" * 50_000,
        "tables": "a = " + "{a=" * 20_000,
        "digits": f"a = {DIGITS}\n[training]\nsteps = {'9' * 300}\nlocal_batch_size = {'9' * 300}\n",
        "sections": "".join(f"[a.b{i}]\nc = 1\n" for i in range(25_000)),
        "quotes": 'a = "' + '\\"' * 120_000 + '"\n',
        "quoted key": '"' + "a." * 240_000 + '" = 1\n',
    }


def others() -> dict[str, tuple[str, str]]:
    """Return files of the other kinds, each with its name: JSON, Python, Markdown, Modelfiles, Dockerfiles."""
    serve = "FROM vllm/vllm-openai\n"
    doubling = "".join(f"ENV A{n + 1}=$A{n}$A{n}\n" for n in range(60))
    return {
        "nested lists": ("x.json", "[" * 200_000),
        "nested tables": ("x.json", '{"a":' * 100_000),
        "closed nests": ("x.json", "[" * 900 + "]" * 900),
        "number of thousands of digits": ("x.json", f'{{"train_batch_size": {DIGITS}}}'),
        "negative number without end": ("x.json", f'{{"train_batch_size": -{DIGITS}}}'),
        "exponent": ("x.json", '{"train_batch_size": 1e999999999, "train_micro_batch_size_per_gpu": -1e-999999999}'),
        "not numbers": ("x.json", '{"train_batch_size": NaN, "zero_optimization": {"stage": Infinity}}'),
        "one key many times": ("x.json", "{" + '"zero_optimization": {"stage": 3}, ' * 12_000 + '"a": 1}'),
        "keys without end": ("x.json", "{" + ",".join(f'"k{n}": {n}' for n in range(35_000)) + "}"),
        "a key of 480 kB": ("x.json", '{"' + "a" * 480_000 + '": 1}'),
        "escapes": ("x.json", '{"a": "' + "\\u0041" * 80_000 + '"}'),
        "half an escape": ("x.json", '{"zero_optimization": "\\ud800"}'),
        "null everywhere": ("x.json", '{"zero_optimization": null, "fp16": null, "optimizer": null}'),
        "lists for tables": (
            "x.json",
            '{"zero_optimization": [3], "fp16": [true], "optimizer": [[[]]], "train_batch_size": [1]}',
        ),
        "tables for numbers": (
            "x.json",
            '{"train_batch_size": {"a": 1}, "gradient_accumulation_steps": {"b": []}, "zero_optimization": {"stage": {}}}',
        ),
        "zero bytes": ("x.json", "\x00" * 400_000),
        "byte order marks": ("x.json", "\ufeff" * 100_000 + "{}"),
        "brackets": ("x.py", "(" * 100_000),
        "a sum": ("x.py", "x = " + "1+" * 100_000 + "1\n"),
        "negations": ("x.py", "x = " + "-" * 100_000 + "1\n"),
        "attributes": ("x.py", "x" + ".a" * 100_000 + "\n"),
        "calls": ("x.py", "f" + "()" * 100_000 + "\n"),
        "powers": ("x.py", "x = 9 ** 9 ** 9 ** 9\n"),
        "a list repeated": ("x.py", "args = ['--num-layers', '4'] * 10 ** 12\n"),
        "a text repeated": ("x.py", "x = 'a' * 10 ** 15\n"),
        "decorators": ("x.py", "@a\n" * 100_000 + "def f(): pass\n"),
        "nested functions": ("x.py", "".join(" " * n + "def f():\n" for n in range(600))),
        "nested f-strings": ("x.py", "x = " + "f'{" * 2_000 + "\n"),
        "an integer of thousands of digits": ("x.py", f"n_layers = {DIGITS}\n"),
        "comparisons": ("x.py", "x = " + "1 < " * 90_000 + "1\n"),
        "lambdas": ("x.py", "x = " + "lambda: " * 50_000 + "1\n"),
        "fences": ("README.md", "```bash\n" * 60_000),
        "empty blocks": ("README.md", "```\n```\n" * 60_000),
        "fences of ticks": ("README.md", "`" * 490_000),
        "indents": ("README.md", "    " * 120_000),
        "a block of every line": ("README.md", "```sh\ntorchrun a.py --num-layers 4\n```\n" * 10_000),
        "links": ("README.md", "[a](" * 120_000),
        "parameters": ("Modelfile", "FROM llama3\n" + "PARAMETER num_ctx 4096\n" * 20_000),
        "long name": ("Modelfile", "FROM " + "a" * 480_000),
        "number": ("Modelfile", f"FROM llama3\nPARAMETER num_ctx {DIGITS}\n"),
        "open quotes": ("Modelfile", "FROM llama3\nSYSTEM " + '"' * 400_001),
        "variables that double": ("Dockerfile", serve + "ENV A0=x\n" + doubling + 'CMD ["--model", "$A60"]\n'),
        "lines that go on": ("Dockerfile", serve + "RUN \\\n" * 60_000),
        "stages": ("Dockerfile", serve * 20_000),
        "a list that does not end": ("Dockerfile", serve + "CMD [" + '"a",' * 100_000),
        "here-documents": ("Dockerfile", serve + "RUN <<A <<B\n" * 30_000),
    }
