"""Words that the reader finds equal those that bash prints, for scripts generated from a grammar of what launch scripts use."""

import re
import subprocess

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshwise.programs.read import shell
from meshwise.programs.source import Source

NAMES = st.sampled_from(["TP", "PP", "ARGS_A", "x", "GPUS"])
ARRAYS = st.sampled_from(["A", "B_ARR"])
NUMBERS = st.integers(0, 64).map(str)
TEXTS = st.sampled_from(
    ["8", "bf16", "--lr", "a/b.json", "gpt2-8b.yaml", "", "two words", " x ", "1,2,3", "x=y", "ab*", "7.sh", "-", "--a=b"]
)
BARE = st.sampled_from(["8", "--tp", "a/b.json", "x=y", "1,2", "a{b,c}d", "{1..3}", "v1.2_3", "a\\ b", "p%q", "@x", "a+b"])
PATTERNS = st.sampled_from(["*", ".*", "*/", "8*", "?", "[a-z]", "*.sh", "-*", ",*", "b*6", "x"])


def quoted(text: str) -> str:
    return "'" + text + "'"


@st.composite
def expressions(draw: st.DrawFn) -> str:
    """Arithmetic over numbers and variables that hold numbers."""
    operand = st.one_of(NUMBERS, st.sampled_from(["N", "M", "$N", "${M}"]))
    inner = st.recursive(
        operand,
        lambda child: st.one_of(
            st.tuples(child, st.sampled_from(["+", "-", "*", "<<", "&", "|", "^", "<", "<=", "==", "!=", "&&", "||"]), child)
            .filter(lambda t: t[1] != "<<")
            .map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
            st.tuples(child, st.sampled_from(["/", "%"]), st.integers(1, 9)).map(lambda t: f"{t[0]} {t[1]} {t[2]}"),
            st.tuples(child, child, child).map(lambda t: f"({t[0]} > 3 ? {t[1]} : {t[2]})"),
            child.map(lambda c: f"-{c}" if not c.startswith("-") else c),
        ),
        max_leaves=5,
    )
    return draw(inner)


@st.composite
def parameters(draw: st.DrawFn) -> str:
    """`$x` and `${x...}`."""
    form = draw(st.sampled_from(PARAMETERS))
    return filled(draw, form)


@st.composite
def words(draw: st.DrawFn) -> str:
    """A word of quoted and unquoted parts."""
    part = st.one_of(
        BARE,
        TEXTS.map(quoted),
        parameters(),
        st.lists(st.one_of(TEXTS, parameters()), max_size=3).map(lambda p: '"' + "".join(p) + '"'),
        st.sampled_from(["$'a\\tb'", "\\$x", '"\\$x"', '"a\\\\b"', '"\\q"']),
    )
    return "".join(draw(st.lists(part, min_size=1, max_size=3)))


def filled(draw: st.DrawFn, form: str, depth: int = 0) -> str:
    """Fill in a form: %v a variable, %a an array, %n a number, %e an expression, %p a pattern, %q a quoted text, %w a word, %t a test,
    %b a body, %d the depth."""
    name, array = draw(NAMES), draw(ARRAYS)
    parts = {
        "v": lambda: name,
        "a": lambda: array,
        "n": lambda: draw(NUMBERS),
        "e": lambda: draw(expressions()),
        "p": lambda: draw(PATTERNS),
        "q": lambda: quoted(draw(TEXTS)),
        "x": lambda: draw(DEFAULTS),
        "w": lambda: draw(words()),
        "t": lambda: filled(draw, draw(st.sampled_from(TESTS))),
        "b": lambda: "\n".join(draw(st.lists(statements(depth - 1), min_size=1, max_size=2))),
        "d": lambda: str(depth),
    }
    return re.sub(r"@([vaneqxpwtbd])@", lambda match: parts[match.group(1)](), form)


@st.composite
def statements(draw: st.DrawFn, depth: int = 2) -> str:
    """A statement of a launch script; `show` prints its words."""
    return filled(draw, draw(st.sampled_from(PLAIN if depth == 0 else PLAIN + NESTED + NESTED)), depth)


DEFAULTS = st.sampled_from(["d", "2", "a b", "${TP}", "$x$x", "'q r'", '"q  r"', ""])
PARAMETERS = [
    "${@v@}", "${@v@:-@x@}", "${@v@-@x@}", "${@v@:+@x@}", "${#@v@}", "${@v@%@p@}", "${@v@%%@p@}", "${@v@#@p@}", "${@v@##@p@}",
    "${@v@/[a-f]/R}", "${@v@//[0-9]/_}", "${@v@/#a/R}", "${@v@/%h/R}", "${@v@//,/ }", "${@v@:1}", "${@v@:1:2}", "${@v@: -2}",
    "${@v@^^}", "${@v@,,}", "${@v@^}",
    "${@a@[@]}", "${@a@[*]}", "${#@a@[@]}", "${@a@[1]}", "${@a@[@]:1}", "${!@a@[@]}", "${UNSET_@v@:-@x@}", "${@a@[@]/#/p}", "${@a@[@]%x}",
    "$(( @e@ ))", "$(basename a/b/c.json .json)", "$(seq 1 3)", "$(expr 4 \\* 3)", "$(echo $@v@ z)", "`echo t`", "$(dirname a/b/c)",
    "$(echo 1,2,3 | tr ',' '\\n' | wc -l)", "$(echo '4 * 8' | bc)", "${UNSET_@v@:-@n@}", "$(show_inner $@v@)",
]  # fmt: skip
TESTS = [
    '[ "$@v@" = @q@ ]', '[ "$@v@" != @q@ ]', '[ -z "$@v@" ]', '[ -n "$@v@" ]', "[[ $@v@ == @p@ ]]", '[[ $@v@ != @q@ && -n $@v@ ]]',
    "[[ ! -z $@v@ || $N -gt 3 ]]",
    "[ $N -ge @n@ ]", "(( N > @n@ ))", "[[ $N -lt M ]]", '[ "$N" -eq 1 -o "$M" -le 2 ]', "true", "! false", '[[ "$@v@" =~ ^[0-9]+$ ]]',
    '[ -n "$UNSET_Q" ]',
    '[ "$UNSET_Q" = 1 ]', "[[ -n $@v@ && ( $N -gt 2 || $M == 2 ) ]]",
]  # fmt: skip
PLAIN = [
    "@v@=@w@", '@v@="$@v@ @n@"', "@v@+=@w@", "@a@=(@w@ @w@ # c\n @w@)", "@a@+=(@w@)", "@a@[2]=@w@", "show @w@ \\\n  @w@",
    'show "${@a@[@]}" $@v@',
    "N=$(( @e@ ))", "(( M += 2 ))", "let N=M*2", "export @v@=@w@", ": ${NEW_@v@:=@n@}; show $NEW_@v@", "show @w@ # a comment",
    'set -- @w@ @w@; show $# "$@" $1; shift; show "$*"', "IFS=, read -ra @a@ <<< '1,2,3'; show ${@a@[@]}",
    'F() { local @v@=@w@; show $@v@ "$1"; }; F @w@; show $@v@', 'cat > out.txt <<EOF\nx $@v@ \\$y $(( 1 + N ))\nEOF\nshow "$(cat out.txt)"',
    "cat <<'EOF' > out.txt\n$a `b`\nEOF\nshow \"$(cat out.txt)\"", "declare -A MAP=([a]=@n@ [b]=@n@); show ${MAP[a]} ${MAP[b]}",
    "eval \"show @n@ '${#@v@}'\"", "printf -v @v@ '%s-%02d' a 7", "( @v@=sub; show $@v@ ); show $@v@", "show $(show_inner $@v@)",
    "CMD=\"show $@v@ @n@\"; $CMD", "CMD=(show @w@ @w@); \"${CMD[@]}\"",
]  # fmt: skip
NESTED = [
    "if @t@; then\n@b@\nelif @t@; then @b@\nelse\n@b@\nfi", "for i in @w@ 1 2; do\n@b@\nshow $i\ndone",
    "for ((j@d@=0; j@d@<2; j@d@++)); do @b@\nshow $j@d@\ndone", 'case "$@v@" in\n  8|@p@) @b@ ;;\n  b*)\n@b@\n;;\n  *) show other ;;\nesac',
    "@t@ && show yes || show no", "k@d@=0; while [ $k@d@ -lt 3 ]; do k@d@=$((k@d@+1)); [ $k@d@ = 2 ] && continue; @b@\ndone", "{ @b@\n}",
    "u@d@=0; until (( u@d@ > 1 )); do u@d@=2; @b@\ndone", "if ! @t@; then @b@\nfi",
]  # fmt: skip


SHOW = """show() { for each in "$@"; do printf '<%s>\\n' "$each"; done; printf 'end\\n'; }\n"""
PRELUDE = (
    "TP=8; PP=bf16; ARGS_A='--lr 1e-4  x'; x=a/b.sh; GPUS=0,1,2,3; N=4; M=2; A=(p 'q r' 3); B_ARR=()\n"
    + SHOW
    + 'show_inner() { echo "in $1"; }\n'
)


def by_bash(script: str, folder: str) -> list[list[str]] | None:
    """Return the words of each `show`; None if bash reports an error, such as a bad substitution. The scripts set variables and print."""
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, timeout=10, cwd=folder, env={"PATH": "/usr/bin:/bin"}
    )
    if done.stderr:
        return None
    return [re.findall(r"<(.*?)>\n", shown, re.DOTALL) for shown in done.stdout.split("end\n")[:-1]]


def by_reader(script: str) -> list[list[str]] | None:
    """Return the same from the reader, for which `show` is a command that is started; None if something is unknown."""
    found = shell.read(Source("x.sh", script.replace(SHOW, "")), {})
    if any(word.unknown for command in found.commands for word in command.words) or not all(c.certain for c in found.commands):
        return None
    assert {command.words[0].text for command in found.commands} <= {"show"}
    return [[word.text for word in command.words[1:]] for command in found.commands]


@pytest.mark.slow
@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(st.lists(statements(), min_size=1, max_size=3))
def test_words_are_those_that_bash_prints(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    script = PRELUDE + "\n".join(lines) + "\n"
    expected = by_bash(script, str(tmp_path_factory.getbasetemp()))
    if expected is not None:
        assert by_reader(script) == expected, script
