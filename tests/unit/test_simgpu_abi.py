"""The simulated driver's declarations are those of cuda.h, where a toolkit is at hand."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.unit.simgpu_machine import ROOT, build

HEADERS = sorted(Path("/usr/local").glob("cuda*/include/cuda.h"))
OURS = ROOT / "deploy/sandbox/simgpu/cuda_types.h"


def values(text: str) -> dict[str, int]:
    """NAME = number pairs of an enumeration."""
    pattern = r"\b(CU[A-Z0-9_]+)(?:\s*=\s*|[ \t]+)(0x[0-9a-fA-F]+|\d+)(?:\s*<<\s*(\d+))?\b"
    found = re.findall(pattern, text)
    return {name: int(number, 0) << int(shift or 0) for name, number, shift in found}


@pytest.mark.skipif(not HEADERS, reason="no CUDA toolkit here")
def test_our_constants_are_those_of_the_toolkit() -> None:
    theirs = values(HEADERS[-1].read_text())
    ours = values(OURS.read_text())
    assert len(ours) > 30
    for name, value in ours.items():
        assert theirs.get(name) == value, name


@pytest.mark.skipif(not HEADERS, reason="no CUDA toolkit here")
def test_our_structures_have_the_toolkits_layout(tmp_path: Path) -> None:
    program = (
        "#include <stddef.h>\n#include <stdio.h>\n#include {}\n"
        'int main(void) {{ printf("%zu %zu %zu %zu %zu %zu\\n", sizeof(CUlaunchConfig),\n'
        "offsetof(CUlaunchConfig, {}), sizeof(CUstreamBatchMemOpParams),\n"
        "offsetof(CUstreamBatchMemOpParams, {}.address),\n"
        "offsetof(CUstreamBatchMemOpParams, {}.{}),\n"
        "offsetof(CUstreamBatchMemOpParams, {}.flags)); }}\n"
    )
    theirs = ("hStream", "waitValue", "waitValue", "value64", "waitValue")
    ours = ("stream", "value", "value", "value", "value")
    printed = set()
    for name, header, members in (("a", HEADERS[-1], theirs), ("b", OURS, ours)):
        source = tmp_path / f"{name}.c"
        source.write_text(program.format(f'"{header}"', *members))
        subprocess.run(["cc", "-o", tmp_path / name, source], check=True)
        printed.add(subprocess.run([tmp_path / name], capture_output=True, check=True).stdout)
    assert len(printed) == 1


@pytest.mark.skipif(not HEADERS, reason="no CUDA toolkit here")
def test_every_exported_function_exists_in_the_toolkit() -> None:
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", build() / "lib/libcuda.so.1"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    exported = {line.split()[-1] for line in listed.splitlines()}
    header = HEADERS[-1].read_text()
    bare = {re.sub(r"_pts[zd]$|_ptds$", "", name) for name in exported}
    assert len(bare) > 100
    unknown = {n for n in bare if not re.search(rf"\b{re.sub(r'_v[0-9]$', '', n)}\b", header)}
    assert not unknown


def test_every_exported_function_is_known_to_procedure_lookup() -> None:
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", build() / "lib/libcuda.so.1"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    exported = {line.split()[-1] for line in listed.splitlines()}
    table = (ROOT / "deploy/sandbox/simgpu/symbols.def").read_text()
    named: set[str] = set()
    for kind, words in re.findall(r"^(ONE|TWO|AS|TWO_AS)\((.*)\)$", table, re.MULTILINE):
        parts = [part.strip() for part in words.split(",")]
        name = parts[1] if kind in ("AS", "TWO_AS") else parts[0]
        named.add(name)
        if kind.startswith("TWO"):
            named.add(name + parts[-2])
    assert exported == named
