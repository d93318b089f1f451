"""Every command and snippet in README.md and docs/ is run (tests/support/documents.py); every link leads somewhere."""

from __future__ import annotations

import re
import subprocess
import textwrap
import time
from pathlib import Path

import pytest

from tests.support.documents import ALIASES, NEEDS, ROOT, RUN, Block, DocumentFault, Shell, blocks_of, first_missing

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def parameters() -> list[object]:
    found: list[object] = []
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        if any(block.language in RUN and block.not_run is None for block in blocks_of(text)):
            needs = [need for match in NEEDS.finditer(text) for need in re.split(r"[ ,]+", match["names"])]
            marks = [pytest.mark.spark if need == "spark" else pytest.mark.services(need) for need in needs]
            found.append(pytest.param(path, id=name_of(path), marks=marks))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("path", parameters())
def test_a_document_does_what_it_says(path: Path, tmp_path: Path) -> None:
    problem = None
    try:
        Shell(tmp_path, name_of(path)).run(blocks_of(path.read_text(encoding="utf-8")))
    except DocumentFault as fault:
        problem = str(fault)
    if problem is not None:
        pytest.fail(problem, pytrace=False)


@pytest.mark.parametrize(
    ("where", "block"),
    [
        pytest.param(f"{name_of(path)}:{block.line}", block, id=f"{name_of(path)}:{block.line}")
        for path in DOCUMENTS
        for block in blocks_of(path.read_text(encoding="utf-8"))
        if block.not_run is not None
    ],
)
def test_a_block_that_is_not_run_says_why(where: str, block: Block) -> None:
    assert block.language in RUN, f"{where}: a {block.language or 'plain'} block is never run; drop the comment"
    assert block.not_run, f"{where}: give the reason: <!-- not run: reason -->"
    pytest.skip(f"{where} is not run: {block.not_run}")


def test_no_block_escapes_by_another_name_of_its_language() -> None:
    found = [
        f"{name_of(path)}:{block.line}: write ```{ALIASES[block.language]}, not ```{block.language}"
        for path in DOCUMENTS
        for block in blocks_of(path.read_text(encoding="utf-8"))
        if block.language in ALIASES
    ]
    assert not found, "\n".join(found)


def test_every_link_to_a_file_leads_somewhere() -> None:
    found = []
    for path in [*DOCUMENTS, ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]:
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text(encoding="utf-8")):
            if "://" not in target and not (path.parent / target).exists():
                found.append(f"{name_of(path)}: {target}")
    assert not found, "\n".join(found)


def test_every_module_that_the_architecture_names_exists() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    named = {name.removesuffix(".py") for name in re.findall(r"`((?:[a-z_]+/)+[a-z_]+(?:\.py)?)`", text)}
    assert len(named) > 40
    source = ROOT / "src" / "strobe"
    places = (source, source / "hosts" / "spark", ROOT)  # the tables of hosts/spark leave that out
    assert not [n for n in named if not any((p / n).is_dir() or (p / f"{n}.py").is_file() for p in places)]


# ── the runner itself ───────────────────────────────────────────────────────────────────────────────────────────────


def run(tmp_path: Path, document: str) -> Path:
    shell = Shell(tmp_path, "page.md")
    shell.run(blocks_of(textwrap.dedent(document)))
    return shell.directory


def test_files_directory_and_variables_are_kept_from_one_block_to_the_next(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
        ```console
        $ mkdir "a b" && cd "a b"
        $ export WORD='it"s'
        ```
        ```bash
        echo "$WORD" > said
        test "$(basename "$PWD")" = "a b"
        ```
        ```console
        $ cat said
        it"s
        ```
        """,
    )


def test_columns_may_stand_further_apart_than_in_the_document(tmp_path: Path) -> None:
    run(tmp_path, "```console\n$ echo 'took    when'; echo '10.21 s  now'\ntook   when\n10.21 s    now\n```\n")


def test_python_names_are_kept_and_a_named_block_is_written_to_its_file(tmp_path: Path) -> None:
    directory = run(
        tmp_path,
        """
        ```python
        # file: jobs/one.py
        print("from the file")
        ```
        ```python
        x = 41
        ```
        ```python
        import jobs.one, inspect
        def f(): return x + 1
        open("result", "w").write(f"{f()} {inspect.getsource(f)}")
        ```
        ```console
        $ python jobs/one.py
        from the file
        ```
        """,
    )
    assert (directory / "result").read_text() == "42 def f(): return x + 1\n"


@pytest.mark.parametrize(
    ("block", "fault"),
    [
        ("```console\n$ echo a; exit 3\n```", r"page.md:2: exit code 3, not 0"),
        ("```console\n$ true\n# exit 2\n```", r"exit code 0, not 2"),
        ("```bash\nfalse\ntrue\n```", r"exit code 1, not 0"),
        ("```bash\nset -u\necho $nothing_here\n```", r"nothing_here: unbound variable"),
        ("```console\n$ echo a; echo b\nb\na\n```", r"no line 'a' where expected"),
        ("```console\n$ echo 17 rows\n...\n18 rows\n```", r"no line '18 rows'"),
        ("```console\n$ echo a  b\na b c\n```", r"no line 'a b c'"),
        ("```console\n$ echo 'a b'\na  b\n```", r"no line 'a  b'"),
        ("```console\n$ no-such-command\n```", r"exit code 127"),
        ("```console\nstray\n$ true\n```", r"output before the first command"),
        ("```python\nassert 1 == 2\n```", r"line 2, in <module>(?s:.*)AssertionError"),
        ("```python\nraise SystemExit('stopped')\n```", r"exit code 1"),
        ("```python\nimport os; os._exit(9)\n```", r"exit code 9"),
        ("```python\n# file: ../outside.py\n```", r"outside the document's directory"),
        ("```console\n$ true", r"never closed"),
    ],
)
def test_a_block_that_does_not_do_what_it_says_is_a_fault(tmp_path: Path, block: str, fault: str) -> None:
    with pytest.raises(DocumentFault, match=fault):
        run(tmp_path, block)


def test_an_exit_code_can_be_foretold(tmp_path: Path) -> None:
    run(tmp_path, "```console\n$ echo sorry >&2; exit 2\n# exit 2\nsorry\n```")


def test_a_command_may_go_on_over_several_lines(tmp_path: Path) -> None:
    run(tmp_path, "```console\n$ cat <<END | \\\n>   tr a-z A-Z\n> one\n> two\n> END\nONE\nTWO\n```")


@pytest.mark.parametrize("expected", ["a\nc", "...\nb", "a\n...\nc", "", "...", "take ... ms", "a ... c"])
def test_expected_output_is_compared_leniently(expected: str) -> None:
    output = "a\nb\nc\ntook 3 ms\na to c\n"
    lines = expected.splitlines()
    assert (first_missing(lines, output) is None) == (expected != "take ... ms")


def test_what_a_document_leaves_in_the_background_lives_until_its_end(tmp_path: Path) -> None:
    directory = run(
        tmp_path, "```console\n$ sleep 600 & echo $! > pid\n$ kill -0 $(cat pid) && echo alive\nalive\n```\n"
    )
    pid = int((directory / "pid").read_text())
    for _ in range(1000):  # the signal has been sent; the process may take a moment to be gone
        if not alive(pid):
            return
        time.sleep(0.01)
    pytest.fail(f"process {pid} is still alive")


def alive(pid: int) -> bool:
    done = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return done.stdout.strip() not in ("", "Z")


def test_only_a_comment_right_before_a_block_keeps_it_from_running() -> None:
    blocks = blocks_of(
        "<!-- not run: takes a server -->\n\n```bash\nx\n```\n```bash\ny\n```\n"
        "<!-- not run: far away -->\ntext\n```bash\nz\n```\n<!-- not run -->\n```bash\nw\n```\n"
    )
    assert [block.not_run for block in blocks] == ["takes a server", None, None, ""]


def test_a_fence_inside_a_longer_fence_is_text() -> None:
    (block,) = blocks_of("````markdown\n```bash\nrm -r x\n```\n````\n")
    assert block.language == "markdown"
    assert "```bash" in block.text
