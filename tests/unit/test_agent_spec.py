"""What --fill and --fill-host may say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.spec import (
    SpecError,
    parse_fill,
    parse_host,
    parse_percent,
    parse_share,
    parse_size,
)
from db.wire.messages import HostMode, ShareMode


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("16G", 16 << 30),
        ("512M", 512 << 20),
        ("2048", 2 << 30),
        ("1t", 1 << 40),
        ("3GiB", 3 << 30),
        ("0" * 20 + "2G", 2 << 30),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "0", "0G", "-1G", "banana", "1.5G", "16 G", "1X", "١G", "8388608T", "9" * 5000]
)
def test_bad_size_is_one_sentence_that_names_the_key(text: str) -> None:
    with pytest.raises(SpecError, match=r"^mem=.*\bmem=16G$"):
        parse_size(text)


def test_fill() -> None:
    assert parse_fill("").memory_bytes is None
    assert parse_fill("mem=4G").memory_bytes == 4 << 30


@pytest.mark.parametrize("text", ["memory=4G", "mem", "mem=4G,mem=5G", "on", "mem=4G,x=1"])
def test_fill_refuses_what_it_does_not_know(text: str) -> None:
    with pytest.raises(SpecError, match=r"--fill .*mem=16G"):
        parse_fill(text)


def test_host() -> None:
    spec = parse_host("on,mem=20G,slowdown=1%")
    assert (spec.mode, spec.lend_bytes, spec.slowdown) == (HostMode.ON, 20 << 30, 0.01)
    assert (spec.share, parse_host("on,share=mps").share) == (None, ShareMode.MPS)
    assert parse_host("on,share=timeslice").share == ShareMode.TIMESLICE
    assert parse_host("").mode is None
    assert parse_host("observe").mode == HostMode.OBSERVE
    assert parse_host("mem=2G").mode == HostMode.ON


@pytest.mark.parametrize("text", ["maybe", "mem=2G,on", "on,off", "on,mem=1G,mem=2G", "on,slow=1"])
def test_host_refuses_what_it_does_not_know(text: str) -> None:
    with pytest.raises(SpecError, match="--fill-host"):
        parse_host(text)


@pytest.mark.parametrize("text", ["", "MPS", "both"])
def test_bad_share_names_what_is_allowed(text: str) -> None:
    with pytest.raises(SpecError, match="share=timeslice or share=mps"):
        parse_share(text)


@pytest.mark.parametrize("text", ["-1%", "50%", "x", "", "1%%"])
def test_bad_slowdown_names_what_is_allowed(text: str) -> None:
    with pytest.raises(SpecError, match="from 0% to 20%"):
        parse_percent(text)


@given(st.text(max_size=40))
def test_no_text_ends_in_anything_but_a_spec_or_a_sentence(text: str) -> None:
    for parse in (parse_fill, parse_host):
        try:
            parse(text)
        except SpecError as error:
            assert "\n" not in str(error) or "\n" in text
