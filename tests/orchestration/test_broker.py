"""Who trains what, and who goes on, without Ray."""

from __future__ import annotations

import pytest
from broker_calls import begun, report, soon, take, trial

from tutti.errors import Fault
from tutti.orchestration.broker.broker import Broker
from tutti.orchestration.broker.failure_kind import Failure

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(20)]


async def test_a_report_is_answered_once_tune_asks_for_the_next_one():
    broker = Broker(retries=0)
    attempt = await begun(broker)
    answer = await soon(report(broker, attempt, {"epoch": 1}))
    assert await broker.next_report("t0000", 0) == {"epoch": 1}
    assert not answer.done()  # Tune has the report, and may still stop the trial
    request = await soon(broker.next_report("t0000", 1))
    assert await answer is True
    assert await report(broker, attempt, {"final": True}) is False  # at once: there is nothing to wait for
    assert await request == {"final": True}


async def test_a_worker_that_waits_long_hears_now_and_then_that_there_is_no_word_yet():
    broker = Broker(retries=0)
    attempt = await begun(broker)
    assert await broker.report("t0000", attempt, {"epoch": 1}) == 1
    assert await broker.await_decision("t0000", attempt, 1, 0) is None
    assert await broker.take("another", 0) == ()
    assert await broker.wait_for_trial(0) is False


async def test_a_stopped_trial_is_told_so_and_its_pool_takes_the_next():
    broker = Broker(retries=0)
    attempt = await begun(broker)
    answer = await soon(report(broker, attempt, {"epoch": 1}))
    await broker.next_report("t0000", 0)
    await broker.stop("t0000")
    assert await answer is False
    await broker.submit(trial(1))
    assert await broker.wait_for_trial()
    assert await take(broker, "one") == (trial(1), 1)


async def test_a_trial_that_waits_is_not_trained_once_it_is_stopped():
    broker = Broker(retries=0)
    await broker.submit(trial(0))
    await broker.stop("t0000")
    assert await broker.take("one", 0) == ()
    assert await broker.next_report("t0000", 0) == {}  # nobody waits for what will never come


@pytest.mark.parametrize("noticed", [True, False], ids=["by its host", "as its new workers ask for a trial"])
async def test_a_lost_trial_goes_to_the_next_pool_before_all_others_and_the_old_one_is_not_heard(noticed):
    broker = Broker(retries=1)
    first = await begun(broker, "one")
    await broker.submit(trial(1))
    if noticed:
        assert await broker.report_loss("one", Failure("it died")) is True
    again, attempt = await take(broker, "one")
    assert again == trial(0)
    assert await report(broker, first, {"epoch": 1}) is False  # a worker that was thought to be dead
    answer = await soon(report(broker, attempt, {"epoch": 2}))
    assert await broker.next_report("t0000", 0) == {"epoch": 2}
    assert not answer.done()
    await broker.report_loss("one", Failure("it died too"))
    assert await answer is False
    assert await broker.next_report("t0000", 1) == {"failed": "it died too"}
    assert await take(broker, "three") == (trial(1), 1)


async def test_a_report_that_its_next_workers_repeat_from_the_state_is_decided_on_once():
    broker, repeated = Broker(retries=2), {"epoch": 1, "repeated": True}
    first = await begun(broker)
    assert await broker.report("t0000", first, {"epoch": 1}) == 1
    await broker.report_loss("one", Failure("it died"))  # before it heard of the decision
    _, second = await take(broker, "one")
    answer = await soon(report(broker, second, repeated))
    assert not answer.done()
    assert await broker.next_report("t0000", 0) == {"epoch": 1}
    request = await soon(broker.next_report("t0000", 1))
    assert await answer is True
    assert not request.done()
    await broker.report_loss("one", Failure("it died before it reported its next epoch"))
    _, third = await take(broker, "one")
    assert await broker.report("t0000", third, {"epoch": 2, "repeated": True}) == 2
    assert await request == {"epoch": 2, "repeated": True}


async def test_a_worker_that_died_as_it_waited_takes_no_trial_from_the_one_in_its_place():
    broker = Broker(retries=0)
    dead = await soon(broker.take("one"))  # Ray does not end the call of a worker that has died
    assert await broker.report_loss("one", Failure("it died")) is False
    alive = await soon(broker.take("one"))
    await broker.submit(trial(0))
    assert await alive == (trial(0), 1)
    assert await dead == ()


@pytest.mark.parametrize("out_of_memory", [False, True])
async def test_a_trial_given_to_a_worker_that_had_died_as_it_waited_is_neither_lost_nor_halved(out_of_memory):
    """Ray does not end the call of a worker that has died, so that it may take a trial before its host knows."""
    broker = Broker(retries=0)
    dead = await soon(broker.take("one"))
    await broker.submit(trial(0))
    assert await dead == (trial(0), 1)
    assert await broker.report_loss("one", Failure("it died", out_of_memory=out_of_memory)) is False
    again, attempt = await take(broker, "one")
    assert again == trial(0)
    assert await report(broker, attempt, {"final": True}) is False
    assert await broker.next_report("t0000", 0) == {"final": True}


async def test_the_loss_of_a_pool_harms_no_other_pool_s_trial_nor_one_that_has_ended():
    broker = Broker(retries=0)
    first = await begun(broker, "one")
    await broker.submit(trial(1))
    _, second = await take(broker, "two")
    assert await report(broker, first, {"final": True}) is False
    await broker.report_loss("one", Failure("it died"))
    assert await broker.next_report("t0000", 0) == {"final": True}
    assert await broker.take("one", 0) == ()
    assert await broker.report("t0001", second, {"epoch": 1}) == 1


async def test_a_loss_of_idle_workers_counts_only_where_they_have_taken_no_trial_since_the_one_before():
    broker = Broker(retries=0)
    attempt = await begun(broker)
    await report(broker, attempt, {"final": True})
    assert await broker.take("one", 0) == ()
    assert [await broker.report_loss("one", Failure("it died")) for _ in range(2)] == [True, False]


async def test_tune_s_own_actor_may_die_and_another_goes_on_where_it_was():
    broker = Broker(retries=0)
    attempt = await begun(broker)
    first = await soon(report(broker, attempt, {"epoch": 1}))
    await broker.next_report("t0000", 0)
    request = await soon(broker.next_report("t0000", 1))
    assert await first is True
    second = await soon(report(broker, attempt, {"epoch": 2}))
    assert await request == {"epoch": 2}  # and dies with it
    assert await broker.submit(trial(0)) == (2, 1)
    await broker.stop("t0000", 1)  # the old actor's last call comes late
    assert await broker.next_report("t0000", 1) == {"epoch": 2}
    assert not second.done()
    assert await broker.take("another", 0) == ()  # it is trained only once


async def test_a_trial_that_was_stopped_may_be_asked_for_again_and_its_old_worker_is_not_heard():
    broker = Broker(retries=0)
    old = await begun(broker)
    await broker.stop("t0000")
    assert await broker.submit(trial(0)) == (2, 0)
    assert await report(broker, old, {"epoch": 1}) is False  # also while nobody has taken it yet
    config, attempt = await take(broker, "two")
    assert config == trial(0)
    assert attempt != old


async def test_what_pools_wait_for_is_said_once_with_the_next_trial():
    broker = Broker(retries=1)
    await broker.post_notice("no room")  # for which nobody waits yet
    for number in (0, 1):
        await broker.submit(trial(number))
    for text in ("no room", "no room", "some are given up"):
        await broker.post_notice(text)
    assert await broker.next_report("t0000", 0) == {"notice": "no room"}
    assert await broker.next_report("t0000", 1) == {"notice": "some are given up"}
    await take(broker, "one")
    assert await broker.report("t0000", 1, {"epoch": 1}) == 3
    assert not (await soon(broker.next_report("t0001", 0))).done()


async def test_a_trial_that_an_earlier_run_left_in_a_stage_of_which_it_completed_no_epoch_begins_anew_too():
    broker = Broker(retries=1)
    await broker.submit(trial(0, fitted=True, in_new_stage=True))
    await take(broker, "one")
    await broker.report_loss("one", Failure("no memory", out_of_memory=True))
    again, _ = await take(broker, "one")
    assert again == trial(0, halved="no memory")


async def test_nobody_waits_for_the_report_of_a_trial_once_the_study_is_over():
    broker = Broker(retries=0)
    await begun(broker)
    request = await soon(broker.next_report("t0000", 0))
    await broker.close()
    assert await request == {}


@pytest.mark.parametrize("trained", [False, True])
async def test_at_the_end_every_pool_goes_home_and_it_is_known_whether_one_was_busy(trained):
    broker = Broker(retries=0)
    attempt = await begun(broker)
    idle = await soon(broker.take("two"))
    answer = await soon(report(broker, attempt, {"final": True} if trained else {"epoch": 1}))
    assert await broker.close() is trained
    assert await idle is None
    assert await answer is False
    assert await broker.is_over()
    assert await broker.wait_for_trial() is False  # an isolated host starts no workers in vain


async def test_a_trial_that_would_fail_so_again_fails_at_once():
    broker = Broker(retries=5)
    await begun(broker)
    assert await broker.report_loss("one", Failure("KeyError: 'a'", final=True)) is True
    assert await broker.next_report("t0000", 0) == {"failed": "KeyError: 'a'"}
    assert await broker.take("one", 0) == ()


async def test_a_halted_study_sends_its_pools_home_and_tells_tune_of_no_trial_s_end():
    first, second = (Fault(name, "be written whole", "No space left on device", "make room") for name in ("a", "b"))

    broker = Broker(retries=0)
    attempt = await begun(broker)
    request = await soon(broker.next_report("t0000", 0))
    idle = await soon(broker.take("another"))
    assert await broker.halt_fault() is None
    await broker.halt(first)
    await broker.halt(second)
    assert await broker.halt_fault() == first
    assert await idle is None
    assert await broker.take("one") is None
    assert await report(broker, attempt, {"epoch": 1}) is False
    assert await broker.is_over()
    assert not request.done()  # an empty report would be the trial's end
    await broker.close()
    assert await request == {}


async def test_the_placement_group_of_a_pool_is_known_to_the_host_that_replaces_its_own():
    broker = Broker(retries=0)
    for pool, group in (("one", "first"), ("two", "other"), ("one", "second")):
        await broker.register_placement_group(pool, group)
    assert await broker.placement_groups("one") == ["second"]
    assert await broker.placement_groups("three") == []
    assert await broker.placement_groups() == ["second", "other"]
