"""What the broker does with trials that run out of memory, without Ray."""

from __future__ import annotations

import pytest
from broker_calls import begun, take, trial

from tutti.orchestration.broker.broker import Broker
from tutti.orchestration.broker.failure_kind import Failure

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(20)]


async def test_a_trial_that_runs_out_of_memory_begins_anew_with_half_its_batch_and_is_infeasible_the_second_time():
    broker = Broker(retries=5)
    await begun(broker)
    assert await broker.report_loss("one", Failure("no memory", out_of_memory=True)) is True
    again, attempt = await take(broker, "one")
    assert again == trial(0, halved="no memory")
    assert await broker.next_report("t0000", 0) == {"halved": "no memory"}  # for the study to keep
    await broker.report_loss("one", Failure("no memory again", out_of_memory=True))
    assert await broker.report("t0000", attempt, {"epoch": 1}) is None
    failed = {"failed": "out of memory, with half the batch too: no memory again", "infeasible": True}
    assert await broker.next_report("t0000", 1) == failed


async def test_a_trial_that_was_stopped_and_is_asked_for_again_keeps_its_halved_batch_and_its_losses():
    broker = Broker(retries=1)
    await begun(broker)
    await broker.report_loss("one", Failure("no memory", out_of_memory=True))
    _, attempt = await take(broker, "one")
    await broker.report("t0000", attempt, {"epoch": 1})
    for ticket in (2, 3):
        await broker.stop("t0000")
        assert await broker.submit(trial(0)) == (ticket, 0)
        assert (await take(broker, "one"))[0] == trial(0, halved="no memory", fitted=True)  # with its states
        await broker.report_loss("one", Failure("it died"))
    assert await broker.next_report("t0000", 0) == {"failed": "it died"}


async def test_a_halved_trial_begins_anew_until_it_has_reported_and_goes_on_from_its_states_afterwards():
    broker = Broker(retries=2)
    await begun(broker)
    await broker.report_loss("one", Failure("no memory", out_of_memory=True))
    await take(broker, "one")
    await broker.report_loss("one", Failure("it died"))
    again, attempt = await take(broker, "one")
    assert again == trial(0, halved="no memory")
    assert await broker.report("t0000", attempt, {"epoch": 1}) == 2
    await broker.report_loss("one", Failure("it died"))
    assert (await take(broker, "one"))[0] == trial(0, halved="no memory", fitted=True)
    await broker.report_loss("one", Failure("it died"))  # that its batch was halved was no retry, these three were
    assert await broker.next_report("t0000", 2) == {"failed": "it died"}


@pytest.mark.parametrize("earlier", [False, True], ids=["in this run", "in an earlier one"])
async def test_a_trial_that_once_fitted_is_tried_again_as_it_is_and_is_infeasible_in_the_end(earlier):
    broker = Broker(retries=1)
    await broker.submit(trial(0, fitted=earlier))
    _, attempt = await take(broker, "one")
    if not earlier:
        assert await broker.report("t0000", attempt, {"epoch": 1}) == 1
    await broker.report_loss("one", Failure("no memory", out_of_memory=True))
    assert (await take(broker, "one"))[0] == trial(0, fitted=True)
    await broker.report_loss("one", Failure("no memory", out_of_memory=True))
    place = 0 if earlier else 1
    assert await broker.next_report("t0000", place) == {"failed": "out of memory: no memory", "infeasible": True}


@pytest.mark.parametrize("fitted", [False, True], ids=["young", "that once fitted"])
async def test_a_trial_that_ray_ends_for_its_node_s_memory_is_tried_as_often_as_others_before_it_is_infeasible(fitted):
    broker = Broker(retries=1)
    await broker.submit(trial(0, fitted=fitted))
    for _ in range(1 if fitted else 2):  # with half its batch too, its neighbours may be to blame
        await take(broker, "one")
        assert await broker.report_loss("one", Failure("no memory", out_of_memory=True, for_its_node=True)) is True
    again, _ = await take(broker, "one")
    assert again == (trial(0, fitted=True) if fitted else trial(0, halved="no memory"))
    await broker.report_loss("one", Failure("no memory again", out_of_memory=True, for_its_node=True))
    reason = f"out of memory{'' if fitted else ', with half the batch too'}: no memory again"
    assert await broker.next_report("t0000", 0 if fitted else 1) == {"failed": reason, "infeasible": True}


async def test_a_notice_is_no_sign_that_a_trial_once_fitted():
    broker = Broker(retries=1)
    attempt = await begun(broker)
    for reason in ("no memory", "it died"):
        assert await broker.report("t0000", attempt, {"notice": "a state was damaged"}) is not None
        await broker.report_loss("one", Failure(reason, out_of_memory=reason == "no memory"))
        again, attempt = await take(broker, "one")
        assert again == trial(0, halved="no memory")


@pytest.mark.parametrize("evaluation", [{"epoch": 1}, {"epoch": 1, "whole": True}, {"epoch": 1, "whole": False}])
@pytest.mark.parametrize("folds", [False, True])
async def test_a_whole_epoch_is_a_sign_that_a_trial_once_fitted(evaluation, folds):
    broker = Broker(retries=1)
    attempt = await begun(broker)
    await broker.report("t0000", attempt, {"fold": 0, "fold_epoch": evaluation} if folds else evaluation)
    await broker.report_loss("one", Failure("no memory", out_of_memory=True))
    known = {"fitted": True} if evaluation.get("whole", True) else {"halved": "no memory"}
    assert (await take(broker, "one"))[0] == trial(0, **known, fold=0 if folds else None)


@pytest.mark.parametrize(
    ("reports", "halves"),
    [
        ([{"epoch": 1, "ends_stage": True}], True),  # the next stage may train more weights
        ([{"epoch": 1, "ends_stage": True}, {"epoch": 2, "whole": False}], True),
        ([{"epoch": 1, "ends_stage": True}, {"epoch": 2}], False),
        ([{"fold": 0, "fold_epoch": {"epoch": 1, "ends_stage": True}}], True),
        ([{"fold": 1, "fold_epoch": {"epoch": 1, "ends_stage": True}}], False),
    ],
)
async def test_a_trial_out_of_memory_in_a_stage_without_an_epoch_begins_anew_with_half_its_batch(reports, halves):
    broker = Broker(retries=1)
    attempt = await begun(broker)
    for report in reports:
        await broker.report("t0000", attempt, report)
    await broker.report_loss("one", Failure("it died"))  # which tells nothing of its memory
    _, attempt = await take(broker, "one")
    await broker.report_loss("one", Failure("no memory", out_of_memory=True))
    if halves:
        assert (await take(broker, "one"))[0]["resumption"].begins_anew
    else:
        failed = await broker.next_report("t0000", len(reports))
        assert failed == {"failed": "out of memory: no memory", "infeasible": True}
