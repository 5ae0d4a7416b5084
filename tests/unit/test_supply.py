"""Supply: a twin lends what fits one GPU, and no step of ours makes Slurm call it invalid."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from db.wire.messages import Gpu
from slurm_plugin.cluster.interface import Twin
from slurm_plugin.supply import (
    NOTHING,
    REASON_NOTHING,
    REASON_OFF,
    REASON_SILENT,
    PartitionMemory,
    Step,
    TwinMemory,
    Wanted,
    next_step,
    partition_step,
    wanted_of,
)
from tests.unit.fake_slurm import CEILING, FakeNode
from tests.unit.ledger_records import gpu, report


def lending(*free_and_used: tuple[int, int]) -> list[Gpu]:
    return [
        gpu(f"GPU-{n}", host_job_id=1, host_mode="on", lendable_slots=free, used_slots=used)
        for n, (free, used) in enumerate(free_and_used)
    ]


def count_of(*gpus: Gpu) -> int:
    sent = report(gpus=list(gpus))
    return wanted_of(sent, off=False, silent=False).count


def test_a_twin_lends_what_is_in_use_and_the_largest_room_on_one_gpu() -> None:
    assert count_of(*lending((16, 0), (12, 4))) == 4 + 16
    assert count_of(*lending((3, 2), (5, 7))) == 9 + 5
    assert count_of(*lending((0, 6))) == 6


def test_a_gpu_that_is_only_observed_or_free_lends_nothing() -> None:
    observed = gpu("GPU-0", host_job_id=1, host_mode="observe", lendable_slots=9)
    free = gpu("GPU-1", lendable_slots=9)
    assert count_of(observed, free) == 0
    assert count_of(observed, free, *lending((2, 0))) == 2
    assert count_of() == 0


def test_off_silence_and_nothing_each_lend_nothing_and_say_why() -> None:
    some = report(gpus=lending((8, 0)))
    assert wanted_of(some, off=True, silent=False) == Wanted(0, REASON_OFF)
    assert wanted_of(some, off=False, silent=True) == Wanted(0, REASON_SILENT)
    assert wanted_of(None, off=False, silent=False) == Wanted(0, REASON_SILENT)
    off_here = report(gpus=lending((8, 0)), off=True)
    assert wanted_of(off_here, off=False, silent=False) == Wanted(0, REASON_OFF)
    assert wanted_of(report(), off=False, silent=False) == Wanted(0, REASON_NOTHING)


def test_no_more_is_lent_than_slurm_conf_allows() -> None:
    assert (
        wanted_of(report(gpus=lending((80, 0))), off=False, silent=False, max_slots=32).count == 32
    )


def twin(count: int = CEILING, used: int = 0, *flags: str, reason: str = "") -> Twin:
    return Twin("f1", frozenset({"IDLE", *flags}), reason, count, used)


def step(seen: Twin, count: int, memory: TwinMemory | None = None, now_s: float = 0.0) -> Step:
    wanted = Wanted(count, REASON_NOTHING)
    return next_step(seen, wanted, memory or TwinMemory(), now_s=now_s, raise_after_s=2.0)


def test_nothing_to_lend_drains_once_and_leaves_the_count() -> None:
    assert step(twin(), 0) == Step(drain=REASON_NOTHING)
    assert not step(twin(6, 0, "DRAIN", reason=REASON_NOTHING), 0).changes
    # The reason follows, where it is ours.
    assert step(twin(6, 0, "DRAIN", reason=REASON_SILENT), 0) == Step(drain=REASON_NOTHING)


def test_a_twin_drained_at_a_low_count_is_put_back_to_its_ceiling_once_nothing_is_in_use() -> None:
    memory = TwinMemory(highest=CEILING)
    low = (2, "DRAIN", REASON_NOTHING)
    assert step(twin(low[0], 1, low[1], reason=low[2]), 0, memory) == NOTHING
    assert step(twin(low[0], 0, low[1], reason=low[2]), 0, memory) == Step(count=CEILING)
    assert step(twin(CEILING, 0, low[1], reason=low[2]), 0, memory) == NOTHING
    # What its slurmd offers less than slurm.conf is the ceiling then.
    lower = TwinMemory(highest=CEILING, ceiling=CEILING - 4)
    assert step(twin(low[0], 0, low[1], reason=low[2]), 0, lower) == Step(count=CEILING - 4)


def test_something_to_lend_sets_the_count_and_resumes_in_one_step() -> None:
    drained = twin(CEILING, 0, "DRAIN", reason=REASON_NOTHING)
    assert step(drained, 6) == Step(count=6, resume=True)
    assert step(twin(6, 0, "DRAIN", reason=REASON_SILENT), 6) == Step(resume=True)


def test_a_drain_of_an_operator_is_respected() -> None:
    for reason in ("bad fan", "", "Kill task failed"):
        seen = twin(6, 0, "DRAIN", reason=reason)
        assert not step(seen, 9).changes
        assert not step(seen, 0).changes


def test_lower_counts_are_published_at_once_and_higher_ones_once_they_last() -> None:
    memory = TwinMemory()
    assert step(twin(6), 4, memory, 0.0) == Step(count=4)
    assert not step(twin(4), 6, memory, 1.0).changes
    assert not step(twin(4), 6, memory, 2.9).changes
    assert step(twin(4), 6, memory, 3.0) == Step(count=6)
    # One that falls back in between starts anew.
    assert not step(twin(6), 8, memory, 4.0).changes
    assert not step(twin(6), 6, memory, 5.0).changes
    assert not step(twin(6), 8, memory, 6.5).changes


def test_a_twin_in_use_is_resumed_with_what_it_should_lend() -> None:
    assert step(twin(9, 2, "DRAIN", reason=REASON_OFF), 12) == Step(count=12, resume=True)
    assert step(twin(9, 2, "FAIL", reason="sfill: about to lend"), 9) == Step(resume=True)


def test_the_count_holds_while_a_slurmd_is_about_to_register() -> None:
    assert not step(twin(6, 2, "NOT_RESPONDING"), 4).changes
    assert step(twin(6, 2), 4) == Step(count=4)


def test_what_slurm_calls_invalid_goes_back_to_its_count_and_registers_again() -> None:
    memory = TwinMemory()
    reason = "gres/fill count changed and jobs are using them (6 != 32)"
    found = step(twin(32, 2, "DRAIN", "INVALID_REG", reason=reason), 9, memory)
    assert (found.count, found.resume, found.register) == (6, False, True)
    assert found.note is not None and reason in found.note
    again = step(twin(6, 2, "DRAIN", "INVALID_REG", reason=reason), 9, memory)
    assert again == Step(register=True)
    assert memory.ready  # it starts nothing, so it holds up nobody
    assert step(twin(6, 2, "DRAIN", reason=reason), 9, memory) == Step(resume=True)
    assert not step(twin(6, 2), 9, memory, 0.0).changes
    assert step(twin(6, 2), 9, memory, 2.0) == Step(count=9)


def test_a_twin_that_turns_invalid_under_a_drain_of_ours_is_set_back_to_slurm_confs_count() -> None:
    memory = TwinMemory()
    step(twin(32, 0), 6, memory)
    found = step(twin(6, 2, "DRAIN", "INVALID_REG", reason=REASON_OFF), 6, memory)
    assert (found.count, found.register) == (32, True)


def test_a_ceiling_that_slurm_complains_about_is_kept() -> None:
    memory = TwinMemory()
    reason = "gres/fill count reported lower than configured (32 < 40)"
    assert step(twin(40, 0, "DRAIN", "INVALID_REG", reason=reason), 40, memory).count == 32
    assert step(twin(32, 0, "DRAIN", reason=reason), 40, memory) == Step(resume=True)
    assert not step(twin(32), 40, memory, 100.0).changes


def test_a_twin_that_is_invalid_for_another_reason_is_left_alone() -> None:
    seen = twin(6, 0, "DRAIN", "INVALID_REG", reason="Low RealMemory (reported:1 < 100.00%)")
    assert step(seen, 9) == Step()
    assert step(seen, 0) == Step()


WORLD = st.lists(
    st.one_of(
        st.tuples(st.just("wanted"), st.integers(0, 40)),
        st.tuples(st.just("use"), st.integers(0, 8)),
        st.tuples(st.sampled_from(["registers", "reconfigure"]), st.just(0)),
    ),
    max_size=25,
)


# A count that is more than slurm.conf's was asked for, then nothing, and the slurmd registers.
ABOVE_CEILING = [("wanted", 0), ("wanted", 33), ("wanted", 0), ("registers", 0), ("wanted", 1)]


@given(WORLD)
@example(ABOVE_CEILING)
@settings(max_examples=300, deadline=None)
def test_whatever_happens_the_record_comes_to_what_is_wanted(world: list[tuple[str, int]]) -> None:
    """Against a node that behaves as Slurm does, with a slurmd that registers when asked."""
    node, memory, wanted, now_s = FakeNode("f1"), TwinMemory(), 0, 0.0

    def rounds(number: int) -> None:
        nonlocal now_s
        for _ in range(number):
            now_s += 1.0
            found = next_step(
                node.twin(), Wanted(wanted, REASON_NOTHING), memory, now_s=now_s, raise_after_s=2.0
            )
            if found.drain is not None:
                node.drain = found.drain
            if found.count is not None:
                assert found.count >= 1
                node.count = found.count
            if found.resume:
                assert not node.invalid
                node.drain = None
            elif found.register or not node.responding:
                node.register()

    for what, number in world:
        if what == "wanted":
            wanted = number
        elif what == "use":
            node.used = min(number, node.count) if node.drain is None or number == 0 else node.used
        elif what == "reconfigure":
            node.count = node.ceiling
            node.register()
        else:
            node.register()
        rounds(1)
    rounds(20)
    node.register()
    rounds(20)
    stuck = node.invalid and node.used
    # Seldom a twin must wait for its fills to end: drained by us, with the count of its last
    # registration not known.
    node.used = 0 if stuck else node.used
    # Too high a count shows at a registration only, and while nothing of ours drains the twin.
    for _ in range(2):
        node.register()
        rounds(20)
    if wanted == 0:
        assert node.drain is not None
    else:
        assert node.drain is None and not node.invalid
        assert node.count == min(wanted, CEILING)


def test_the_partition_goes_up_once_everything_is_published() -> None:
    memory = PartitionMemory()
    assert not partition_step("DOWN", 0, all_ready=False, memory=memory)
    assert partition_step("DOWN", 0, all_ready=True, memory=memory)
    assert not partition_step("UP", 1, all_ready=True, memory=memory)


def test_a_reload_of_slurm_conf_is_told_from_an_operator_who_takes_the_partition_down() -> None:
    memory = PartitionMemory()
    assert not partition_step("DOWN", 1, all_ready=True, memory=memory)  # our mark is still there
    assert not partition_step("DOWN", 0, all_ready=True, memory=memory)  # then a reload: still his
    assert not partition_step("UP", 0, all_ready=True, memory=memory)
    assert partition_step("DOWN", 0, all_ready=True, memory=memory)
    assert not partition_step("INACTIVE", 1, all_ready=True, memory=memory)
