"""Is what is due called in order and never early, whichever clock wakes us?"""

import asyncio
import itertools
import time

import pytest
import uvloop

from inferometer.measure.load import schedule


class WithoutTimerFiles:
    """A C library such as that of other systems."""


@pytest.mark.parametrize("new_loop", [uvloop.new_event_loop, asyncio.new_event_loop])
@pytest.mark.parametrize("has_timer_files", [True, False])
def test_nothing_is_early_and_all_is_in_order(has_timer_files, new_loop, monkeypatch):
    if not has_timer_files:
        monkeypatch.setattr(schedule, "_libc", WithoutTimerFiles)
    called = []

    async def main():
        agenda = schedule.Agenda(asyncio.get_running_loop())
        over = asyncio.get_running_loop().create_future()

        def call(due_ns):
            called.append((due_ns, time.monotonic_ns()))
            if len(called) == 300:
                over.set_result(None)

        begin_ns = time.monotonic_ns() + 1_000_000
        for index in reversed(range(300)):
            agenda.add(begin_ns + 700_000 * (index // 2), call)
        assert agenda.next_ns() == begin_ns
        await asyncio.wait_for(over, 30)
        agenda.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())
    due_ns = [due for due, _ in called]
    assert due_ns == sorted(due_ns)
    assert all(now_ns >= due for due, now_ns in called)


def test_what_is_added_while_something_is_called_gets_its_turn():
    called = []

    async def main():
        agenda = schedule.Agenda(asyncio.get_running_loop())
        over = asyncio.get_running_loop().create_future()

        def again(due_ns):
            called.append(due_ns)
            if len(called) < 100:
                agenda.add(due_ns + 100_000, again)
            else:
                over.set_result(None)

        agenda.add(time.monotonic_ns() - 1_000_000_000, again)
        await asyncio.wait_for(over, 30)
        agenda.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
    assert {later - earlier for earlier, later in itertools.pairwise(called)} == {100_000}, (
        "late ones are made up for"
    )


def test_the_loop_gets_its_turn_between_many_that_are_late():
    order = []

    async def main():
        loop = asyncio.get_running_loop()
        agenda = schedule.Agenda(loop)
        over = loop.create_future()
        for _ in range(1000):
            agenda.add(
                1,
                lambda due_ns: (
                    order.append(due_ns) or (len(order) == 1001 and over.set_result(None))
                ),
            )
        loop.call_later(0.0005, order.append, "another")
        await asyncio.wait_for(over, 30)
        agenda.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
    assert order.index("another") < 1000
