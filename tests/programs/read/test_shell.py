"""Launch scripts as people write them: what is read, from where, and what stays unknown."""

import random
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwise.programs.read import shell
from meshwise.programs.source import Source
from meshwise.runs.run import Span


def read(text: str, beside: dict[str, str] | None = None, **given: str) -> shell.Script:
    return shell.read(Source("run.sh", text), given, [Source(name, body) for name, body in (beside or {}).items()])


def texts(script: shell.Script, number: int = -1) -> list[str]:
    return [word.text for word in script.commands[number].words]


def written(text: str, span: Span | None) -> str:
    """Return the characters of a span."""
    assert span
    return text[span.start : span.end]


def test_a_word_points_to_where_its_text_was_written() -> None:
    text = 'TP=8\nARGS=(--tp $TP "--pp 4")\nCMD="train.py ${ARGS[*]} --mbs 2"\nsrun bash -c "torchrun $CMD"\n'
    words = read(text).commands[0].words
    assert [word.text for word in words] == ["srun", "torchrun", "train.py", "--tp", "8", "--pp", "4", "--mbs", "2"]
    places = [(written(text, word.span), word.span.line) for word in words]
    assert places[3:] == [("--tp", 2), ("8", 1), ("--pp", 2), ("4", 2), ("--mbs", 3), ("2", 3)]


def test_a_size_in_a_comment_is_no_size() -> None:
    assert texts(read("TP=4 # TP=8\n#TP=16\ntrain --tp $TP # --tp 2\n")) == ["train", "--tp", "4"]


def test_arguments_and_the_environment_are_unknown_until_they_are_given() -> None:
    text = "NODES=$1\ntrain --nodes $NODES --data $DATA --tp ${TP:-8} --pp ${2:-4}\n"
    words = read(text).commands[0].words
    assert [word.text for word in words if word.unknown] == ["$1", "$DATA"]
    assert [word.text for word in words if not word.unknown] == ["train", "--nodes", "--data", "--tp", "8", "--pp", "4"]
    answered = read(text, NODES="16", TP="2", DATA="d", **{"2": "1"})  # pyright: ignore[reportArgumentType]
    assert texts(answered) == ["train", "--nodes", "16", "--data", "d", "--tp", "2", "--pp", "1"]


def test_both_branches_of_an_undecidable_test_are_followed_and_none_is_believed() -> None:
    text = 'TP=8; PP=2\nif nvidia-smi | grep -q H100; then TP=4; A=(--x --fp8); else A=(--x); fi\ntrain --tp $TP --pp $PP "${A[@]}"\n'
    script = read(text)
    both = [" ".join(word.text for word in one.words) for one in script.commands if one.words[0].text == "train"]
    assert both == ["train --tp 4 --pp 2 --x --fp8", "train --tp 8 --pp 2 --x"]
    assert [one.by for one in script.commands[-2:]] == [(("a test (run.sh:2)", 0),), (("a test (run.sh:2)", 1),)]
    assert not any(one.certain for one in script.commands[-2:])
    assert not read("if [ -d /data ]; then train; fi").commands[-1].certain


@pytest.mark.parametrize(
    ("text", "commands"),
    [
        ('if [ $1 = fp16 ]; then P="--fp16"; else P="--bf16"; fi\ntrain $P', ["train --fp16", "train --bf16"]),
        ('A="--bf16"; if [ $1 = 8 ]; then A="$A --tp 8"; fi\ntrain $A', ["train --bf16 --tp 8", "train --bf16"]),
        ("if [ $1 = a ]; then T=2; elif [ $1 = b ]; then T=2; else T=4; fi\ntrain --tp $T",
         ["train --tp 2", "train --tp 2", "train --tp 4"]),
        ('A=(--x)\ncase $SIZE in big) A+=(--l 64);; *) A+=(--l 32);; esac\ntrain "${A[@]}" --y',
         ["train --x --l 64 --y", "train --x --l 32 --y"]),
        ("if [ $1 = a ]; then T=2; fi\ntrain --tp ${T:-1}", ["train --tp 2", "train --tp 1"]),
        ("if [ $1 = a ]; then T=2; P=4; else T=4; P=2; fi\ntrain --tp $T --pp $P", ["train --tp 2 --pp 4", "train --tp 4 --pp 2"]),
    ],
)  # fmt: skip
def test_a_command_has_one_form_for_each_way_that_an_undecided_test_may_go(text: str, commands: list[str]) -> None:
    found = read(text).commands
    assert [" ".join(word.text for word in one.words) for one in found] == commands
    assert not any(word.unknown for one in found for word in one.words)
    assert not any(one.certain for one in found)


def test_more_undecided_tests_than_can_be_followed_leave_the_words_unknown() -> None:
    text = "".join(f"if [ $1 = {i} ]; then A{i}=1; else A{i}=2; fi\n" for i in range(8))
    words = read(text + "train " + " ".join(f"--a{i} $A{i}" for i in range(8))).commands[-1].words
    assert [bool(word.unknown) for word in words] == [False] + [False, True] * 8


def test_a_branch_that_exits_changes_nothing_after_it() -> None:
    text = "if [ $# -lt 2 ]; then echo usage; exit 1; fi\n[ -d /x ] || { TP=1; exit 1; }\nTP=8\ntrain --tp $TP\n"
    assert [(word.text, word.unknown) for word in read(text).commands[-1].words] == [("train", ""), ("--tp", ""), ("8", "")]


@pytest.mark.parametrize(
    "test",
    ['if [ "$STAGE" == "" ]; then STAGE=3; fi', 'if [ -z "$STAGE" ]; then STAGE=3; fi', '[ -n "$STAGE" ] || STAGE=3',
     '[[ -z $STAGE ]] && STAGE=3', 'if [ "x$2" = "x" ]; then STAGE=3; fi', 'if [[ $STAGE == "" ]]; then STAGE=3; else OTHER=1; fi'],
)  # fmt: skip
def test_a_default_written_as_a_test_is_the_default(test: str) -> None:
    text = f"STAGE=$2\n{test}\ntrain --stage $STAGE\n"
    assert texts(read(text)) == ["train", "--stage", "3"]
    answered = read(text, **{"1": "a", "2": "1"})  # pyright: ignore[reportArgumentType]
    assert texts(answered) == ["train", "--stage", "1"]


def test_a_script_that_says_its_usage_is_read_as_if_it_had_arguments() -> None:
    script = read('if [ -z "$1" ]; then echo usage; exit 1; fi\nTP=8\ntrain --tp $TP --data $1\n')
    assert texts(script) == ["train", "--tp", "8", "--data", "$1"]
    assert [word.text for word in script.commands[-1].words if word.unknown] == ["$1"]
    assert texts(read('[ -n "$1" ] || { echo usage; exit 1; }\ntrain --tp 8\n')) == ["train", "--tp", "8"]


def test_options_of_the_script_keep_their_defaults() -> None:
    loop = "TP=2\nwhile [[ $# -gt 0 ]]; do case $1 in --tp) TP=$2; shift 2;; *) shift;; esac; done\ntrain --tp $TP\n"
    script = read(loop)
    assert texts(script) == ["train", "--tp", "2"]
    assert any("options on the command line" in note for note in script.notes)
    looped = read(loop, **{"1": "--tp", "2": "16"})  # pyright: ignore[reportArgumentType]
    assert texts(looped) == ["train", "--tp", "16"]


def test_what_a_test_assumes_is_said() -> None:
    script = read('if [ "$FP8" = 1 ]; then A=--fp8; else A=--bf16; fi\ntrain $A\n')
    assert texts(script) == ["train", "--bf16"]
    assert any("$FP8 is taken as not set" in note for note in script.notes)
    assert texts(read('if [ "$FP8" = 1 ]; then A=--fp8; else A=--bf16; fi\ntrain $A\n', FP8="1")) == ["train", "--fp8"]


def test_a_heredoc_is_a_file_whose_values_point_to_their_variables() -> None:
    text = 'MBS=4\ncat <<EOF > ds.json\n{"mbs": $MBS,\n "stage": 3, "gas": ${1}}\nEOF\ntrain --ds ds.json\n'
    (file,) = read(text).files
    assert file.name == "ds.json"
    assert file.text == '{"mbs": 4,\n "stage": 3, "gas": $1}\n'
    at = file.text.index("4")
    assert (written(text, file.span(at, at + 1)), file.span(at, at + 1).line) == ("4", 1)
    at = file.text.index("3")
    assert (written(text, file.span(at, at + 1)), file.span(at, at + 1).line) == ("3", 4)


def test_a_template_filled_in_by_sed_is_a_file() -> None:
    script = read(
        'sed "s/MBS_HERE/4/" t.json | sed "s/GBS_HERE/${GBS:-64}/" > ds.json\n', {"t.json": '{"a": MBS_HERE, "b": GBS_HERE}'}
    )
    assert [(file.name, file.text) for file in script.files] == [("ds.json", '{"a": 4, "b": 64}')]
    template = {"t.json": '{"a": MBS_HERE, "b": GBS_HERE}'}
    partly = read('sed "s/MBS_HERE/$(nvidia-smi | wc -l)/;s/GBS_HERE/64/g" t.json > ds.json\n', template)
    assert [file.text for file in partly.files] == ['{"a": $nvidiasmiwcl, "b": 64}']


def test_companions_are_followed_and_no_other_file() -> None:
    beside = {"common.sh": "TP=8\nhelper() { torchrun train.py --tp $TP $@; }\n", "train.sh": "python t.py --lr $LR $1\n"}
    assert texts(read('source "$(dirname "$0")/common.sh"\nhelper --x\n', beside)) == ["torchrun", "train.py", "--tp", "8", "--x"]
    assert texts(read("export LR=1\nsrun -N 2 bash ./train.sh --y\n", beside)) == [
        "srun",
        "-N",
        "2",
        "python",
        "t.py",
        "--lr",
        "1",
        "--y",
    ]
    script = read(". ./secret.sh\ntrain --tp $TP\n")
    assert script.commands[-1].words[-1].unknown
    assert any("secret.sh is sourced, but was not given" in note for note in script.notes)


def test_directives_of_slurm_and_the_variables_it_sets() -> None:
    text = (
        "#!/bin/bash\n#SBATCH -N 4 --ntasks-per-node=8\n##SBATCH --nodes=9\n#SBATCH --gres=gpu:a100:8 # gpus\n#SBATCH --requeue\n\n"
        "X=1\n#SBATCH --nodes=7\n"
    )
    script = read(text + "srun train --n $SLURM_NNODES --w $SLURM_NTASKS --g $SLURM_GPUS_ON_NODE --r $SLURM_PROCID\n")
    said = {setting.key: setting.value for setting in script.directives}
    assert said == {"--nodes": "4", "--ntasks-per-node": "8", "--gres": "gpu:a100:8", "--requeue": True}
    words = script.commands[0].words
    assert [word.text for word in words[3:8:2]] == ["4", "32", "8"]
    assert words[-1].unknown
    assert written(text, words[3].span) == "4"


def test_a_script_of_slurm_knows_that_it_is_in_a_job() -> None:
    text = (
        '#SBATCH -N 2\nif [ -n "${SLURM_JOB_ID:-}" ]; then N=$SLURM_NNODES; else N=1; fi\ntrain --n $N --id ${SLURM_JOB_ID:-0}\n'
    )
    words = read(text).commands[-1].words
    assert [(word.text, bool(word.unknown)) for word in words[1:3]] == [("--n", False), ("2", False)]
    assert words[-1].unknown


def test_a_count_of_what_is_not_known_is_not_known() -> None:
    words = read("H=($(scontrol show hostnames))\ntrain --nodes ${#H[@]} --first ${H[0]}\n").commands[-1].words
    assert [bool(word.unknown) for word in words] == [False, False, True, False, True]
    devices = "G=0,1,2,3\ntrain $(echo $G | awk -F',' '{print NF}') $(echo $G | tr ',' '\\n' | wc -l)\n"
    assert texts(read(devices)) == ["train", "4", "4"]


def test_a_job_submitted_from_a_heredoc_is_read() -> None:
    script = read("N=2\nsbatch <<EOF\n#!/bin/bash\n#SBATCH --nodes=$N\nsrun train --tp \\$((2*4))\nEOF\n")
    assert [(setting.key, setting.value) for setting in script.directives] == [("--nodes", "2")]
    assert texts(script)[-4:] == ["srun", "train", "--tp", "8"]


def test_a_loop_with_an_unknown_list_invents_nothing() -> None:
    script = read("A=''\nfor h in $(scontrol show hostnames); do A=\"$A $h\"; done\ntrain $A --x\n")
    words = script.commands[-1].words
    assert [word.text for word in words if not word.unknown] == ["train", "--x"]


def test_lines_that_are_not_shell_are_noted_and_the_rest_is_read() -> None:
    script = read("DATA=<Specify path and file>\nTP=8\nif [ 1 = 1 ]; then\n  x=)\n  PP=2\nfi\ntrain --tp $TP --pp $PP\n")
    assert texts(script) == ["train", "--tp", "8", "--pp", "2"]
    assert len(script.notes) == 2


def test_windows_line_ends_are_read() -> None:
    text = 'TP=8\r\nARGS="--tp $TP \\\r\n --pp 2"\r\nif [ "$TP" = 8 ]; then\r\n  train $ARGS\r\nfi\r\n'
    script = read(text)
    assert texts(script) == ["train", "--tp", "8", "--pp", "2"]
    assert written(text, script.commands[0].words[2].span) == "8"


@pytest.mark.parametrize(
    "text",
    [
        "x=" + "$(" * 500, "{" * 3000, "$((" * 300, "if " * 400, "f() { f; }; f", "while true; do x=$x$x; done",
        "x=a; for i in {1..9999}; do x=$x$x; done",
        "echo {1..99999999}", "a[" * 200, "case x in" + " a)" * 300, "<<EOF", "x=${x//*/" + "*" * 50 + "}",
        "[[ aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa =~ (a+)+b ]]",
        "echo $((9**9**9))", "let x=1<<999999999", "f() { g; g; }; g() { f; f; }; f", "cat <<A <<B <<C", "'", "\"$(", "`", "${", "$'",
        "[[ (", "((", "&&", "|", ";;",
    ],
)  # fmt: skip
def test_hostile_text_ends_soon_and_quietly(text: str) -> None:
    assert isinstance(read(text), shell.Script)


FRAGMENTS = [*"(){}[]<>|&;$`'\"\\\n #=!*?~", "if ", "then\n", "fi\n", "for x in ", "do\n", "done\n", "case x in\n", "esac\n", "${",
"$((", "))", "<<EOF\n", "EOF\n",
             "x=1", "A=(", "+=", "[[ ", " ]]", "[ ", " ]", "function f ", "srun bash -c ", "$x", "source ./x.sh\n", "#SBATCH -N ",
             "echo ", "eval ", "\u2028", "\x00", "é"]  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(st.sampled_from(FRAGMENTS), st.text(string.printable, max_size=5)), max_size=40))
def test_any_text_is_read_without_an_error(parts: list[str]) -> None:
    assert isinstance(read("".join(parts), {"x.sh": "Y=1\n"}), shell.Script)


def test_mutated_scripts_are_read_without_an_error() -> None:
    base = (
        "#!/bin/bash\n#SBATCH --nodes=4\nTP=8\nA=(--tp $TP)\nif [ $TP -gt 4 ]; then A+=(--sp); fi\n"
        'cat > d.json <<EOF\n{"a": $TP}\nEOF\nsrun bash -c "torchrun ${A[@]}"\n'
    )
    chance = random.Random(7)
    for _ in range(400):
        text = base
        for _ in range(chance.randint(1, 6)):
            at = chance.randrange(len(text) + 1)
            text = text[:at] + chance.choice([*FRAGMENTS, ""]) + text[at + chance.choice([0, 0, 1, 5]) :]
        assert isinstance(read(text), shell.Script)
