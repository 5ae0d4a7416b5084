"""The C parser of --fill= and --fill-host=: what it takes and says, and that no text upsets it.

Built here with AddressSanitizer and UBSan, so that a read past the end fails the test.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.spec import parse_fill, parse_host

SOURCES = Path(__file__).parents[2] / "slurm_plugin/spank"
FLAGS = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", "-g"]
SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


@pytest.fixture(scope="module")
def parser(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("spec") / "spec_check"
    files = [str(SOURCES / name) for name in ("spec.c", "spec_check.c")]
    subprocess.run(["cc", *FLAGS, *SANITIZE, "-o", str(program), *files], check=True)
    return program


def ask(parser: Path, lines: list[bytes]) -> list[str]:
    """One answer a line; the texts hold no newline and no NUL, as no option can."""
    done = subprocess.run([parser], input=b"\n".join(lines) + b"\n", capture_output=True)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return done.stdout.decode().splitlines()


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("fill mem=16G", "mem=16G"),
        ("fill mem=16384", "mem=16G"),
        ("fill mem=500M", "mem=500M"),
        ("fill mem=1k", "mem=1M"),
        ("fill mem=1025K", "mem=2M"),
        ("fill mem=1T", "mem=1024G"),
        ("host off", "off"),
        ("host observe", "observe"),
        ("host on", "on"),
        ("host on,mem=20G,slowdown=1%", "on,mem=20G,slowdown=1%"),
        ("host on,slowdown=0.5,mem=20480M", "on,mem=20G,slowdown=0.5%"),
        ("host on,slowdown=0.05%", "on,slowdown=0.05%"),
        ("host on,share=mps", "on,share=mps"),
        ("host on,share=timeslice,mem=1024", "on,mem=1G,share=timeslice"),
        ("host on,share=mps,slowdown=1,mem=20G", "on,mem=20G,slowdown=1%,share=mps"),
    ],
)
def test_what_is_allowed_becomes_canonical(parser: Path, text: str, canonical: str) -> None:
    assert ask(parser, [text.encode()]) == [f"ok {canonical}"]


@pytest.mark.parametrize(
    ("text", "names", "allowed"),
    [
        ("fill mem=banana", "mem=banana", "as in mem=16G"),
        ("fill mem=10000G", "mem=10000G", "the most is mem=1024G"),
        ("fill mem=1025G", "mem=1025G", "the most is mem=1024G"),
        ("fill mem=0", "mem=0", "above 0"),
        ("fill mem=-1G", "mem=-1G", "above 0"),
        ("fill mem=1.5G", "mem=1.5G", "whole number"),
        ("fill mem=16GB", "mem=16GB", "K, M, G or T"),
        ("fill mem= 16G", "mem= 16G", "K, M, G or T"),
        ("fill mem=99999999999999999999G", "mem=9999", "the most is mem=1024G"),
        ("fill mem=99999999999999999999K", "mem=9999", "the most is mem=1024G"),
        ("fill mem=18446744073709551615T", "mem=1844", "the most is mem=1024G"),
        ("host on,mem=18446744073709551616", "mem=1844", "the most is mem="),
        ("host on,slowdown=18446744073709551617%", "slowdown=1844", "from 0.01 to 20"),
        ("host on,slowdown=1.99999999999999999999%", "slowdown=1.9", "from 0.01 to 20"),
        ("fill mem=", "mem=", "as in mem=16G"),
        ("fill mem", "mem=", "as in mem=16G"),
        ("fill ", "empty", "mem=SIZE"),
        ("fill memory=16G", "'memory'", "mem=SIZE"),
        ("fill MEM=16G", "'MEM'", "mem=SIZE"),
        ("fill =16G", "key is missing", "mem=SIZE"),
        ("fill mem=1G,mem=2G", "mem=", "once"),
        ("fill mem=1G,", "key is missing", "mem=SIZE"),
        ("fill ,mem=1G", "key is missing", "mem=SIZE"),
        ("fill mem=\x1b[31m", "mem=?[31m", "K, M, G or T"),
        ("host ", "empty", "off, observe or on"),
        ("host maybe", "'maybe'", "off, observe or on"),
        ("host mem=1G", "'mem=1G'", "off, observe or on"),
        ("host on=1", "'on=1'", "off, observe or on"),
        ("host on,slowdown=", "slowdown=", "from 0.01 to 20"),
        ("host on,slowdown=0", "slowdown=0", "from 0.01 to 20"),
        ("host on,slowdown=21%", "slowdown=21%", "from 0.01 to 20"),
        ("host on,slowdown=1.001%", "slowdown=1.001%", "from 0.01 to 20"),
        ("host on,slowdown=1%,slowdown=2%", "slowdown=", "once"),
        ("host on,colour=red", "'colour'", "mem=SIZE"),
        ("host on,share=", "share=", "share=timeslice or share=mps"),
        ("host on,share", "share=", "share=timeslice or share=mps"),
        ("host on,share=MPS", "share=MPS", "share=timeslice or share=mps"),
        ("host on,share=mpsx", "share=mpsx", "share=timeslice or share=mps"),
        ("host on,share=mps,share=timeslice", "share=", "once"),
        ("host observe,mem=1G", "mem=", "'on' only"),
        ("host observe,share=mps", "share=", "'on' only"),
        ("host off,slowdown=1%", "slowdown=", "'on' only"),
    ],
)
def test_what_is_wrong_gets_one_sentence(parser: Path, text: str, names: str, allowed: str) -> None:
    (answer,) = ask(parser, [text.encode()])
    option = "--fill" if text.startswith("fill") else "--fill-host"
    assert answer.startswith(f"bad {option}: ")
    assert names in answer
    assert allowed in answer


def test_alone_means_the_sites_default(parser: Path) -> None:
    def run(*arguments: str) -> str:
        return subprocess.run(
            [parser, *arguments], capture_output=True, text=True, check=True
        ).stdout.strip()

    assert run("fill", "-", "8192", "16384") == "ok mem=8G"
    assert run("fill", "-", "16384", "8192") == "ok mem=8G"  # never more than the site allows
    assert run("host", "-") == "ok on"
    assert run("fill", "mem=17G", "8192", "16384").endswith("the most is mem=16G")


PIECES = [
    "mem",
    "slowdown",
    "share",
    "mps",
    "timeslice",
    "on",
    "off",
    "observe",
    "=",
    ",",
    "%",
    ".",
    "1",
    "16",
    "G",
    "K",
    " ",
]
TEXTS = st.one_of(
    st.lists(st.sampled_from(PIECES), max_size=12).map("".join).map(str.encode),
    st.binary(max_size=300).map(lambda raw: raw.replace(b"\n", b"").replace(b"\0", b"")),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(TEXTS, min_size=20, max_size=60))
def test_any_text_is_taken_or_refused_and_what_is_taken_stands(
    parser: Path, texts: list[bytes]
) -> None:
    lines = [option + b" " + text for text in texts for option in (b"fill", b"host")]
    answers = ask(parser, lines)
    assert len(answers) == len(lines)
    assert all(answer.startswith(("ok ", "bad ")) and answer.isprintable() for answer in answers)
    taken = [
        (line[:4], answer[3:])
        for line, answer in zip(lines, answers, strict=True)
        if answer.startswith("ok ")
    ]
    again = ask(parser, [option + b" " + text.encode() for option, text in taken]) if taken else []
    assert again == [f"ok {text}" for _, text in taken]


@pytest.mark.parametrize("text", ["mem=16G", "mem=500M"])
def test_the_agent_reads_a_fill_as_the_plugin_wrote_it(parser: Path, text: str) -> None:
    (answer,) = ask(parser, [f"fill {text}".encode()])
    mib = {"G": 1 << 30, "M": 1 << 20}[text[-1]] * int(text[4:-1])
    assert parse_fill(answer.removeprefix("ok ")).memory_bytes == mib


def test_the_agent_reads_a_host_as_the_plugin_wrote_it(parser: Path) -> None:
    (answer,) = ask(parser, [b"host on,share=mps,mem=20G,slowdown=0.5%"])
    spec = parse_host(answer.removeprefix("ok "))
    assert spec.mode == "on"
    assert spec.lend_bytes == 20 << 30
    assert spec.slowdown == pytest.approx(0.005)
    assert spec.share == "mps"
