"""Trials of a population meet, and the worst go on from the best."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from broker_calls import trial

from tutti.config.space import Categorical, SearchSpace
from tutti.orchestration.broker.broker import Broker
from tutti.orchestration.broker.population import Exchange, Population

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(20)]

SPACE = SearchSpace.model_validate(
    {
        "learning_rate": {"type": "log_uniform", "low": 1e-5, "high": 1e-3},
        "head_dropout": {"type": "uniform", "low": 0.0, "high": 0.5, "step": 0.1},
        "max_grad_norm": {"type": "categorical", "choices": [0.5, 1.0, 2.0]},
        "pooling": {"type": "categorical", "choices": ["cls", "mean"]},
    }
).root
POINT = {"learning_rate": 1e-4, "head_dropout": 0.2, "max_grad_norm": 1.0, "pooling": "cls"}


def population(size: int = 4, *, every: int = 1, seed: int = 0) -> Population:
    return Population(SPACE, size=size, every=every, seed=seed)


def points(count: int) -> dict[str, dict[str, Any]]:
    return {f"t{number:04d}": {**POINT, "learning_rate": 1e-4 * (number + 1)} for number in range(count)}


def test_the_worst_quarter_goes_on_from_trials_of_the_best():
    scores = {f"t{number:04d}": number / 10 for number in range(8)}
    exchanges = population(8).plan_exchanges(3, scores, points(8))
    assert exchanges.keys() == {"t0000", "t0001"}
    assert {each.donor for each in exchanges.values()} <= {"t0006", "t0007"}
    assert {each.epoch for each in exchanges.values()} == {3}


def test_nobody_goes_on_from_an_equal_one_or_alone():
    assert population().plan_exchanges(1, dict.fromkeys(points(4), 0.5), points(4)) == {}
    assert population().plan_exchanges(1, {"t0000": 0.5}, points(1)) == {}


def test_the_same_scores_and_seed_lead_to_the_same_exchanges():
    scores = {f"t{number:04d}": number / 10 for number in range(8)}
    assert population(8).plan_exchanges(2, scores, points(8)) == population(8).plan_exchanges(2, scores, points(8))
    others = [population(8, seed=seed).plan_exchanges(2, scores, points(8)) for seed in range(5)]
    assert any(other != others[0] for other in others)


def test_what_may_change_moves_within_its_range_and_steps_and_all_else_is_the_donor_s():
    rates, dropouts, norms = set(), set(), set()
    for epoch in range(60):
        (exchange,) = population().plan_exchanges(epoch, {"a": 0.1, "b": 0.9}, {"a": {}, "b": POINT}).values()
        assert exchange.donor == "b"
        assert exchange.parameters["pooling"] == "cls"
        rates.add(round(exchange.parameters["learning_rate"], 9))
        dropouts.add(round(exchange.parameters["head_dropout"], 6))
        norms.add(exchange.parameters["max_grad_norm"])
    assert rates == {8e-5, 1.2e-4}
    assert dropouts == {0.1, 0.3}
    assert norms == {0.5, 1.0, 2.0}
    edge = {"b": {**POINT, "learning_rate": 1e-3, "head_dropout": 0.5}, "a": {}}
    for epoch in range(20):
        (exchange,) = population().plan_exchanges(epoch, {"a": 0.1, "b": 0.9}, edge).values()
        assert exchange.parameters["learning_rate"] in (1e-3, 8e-4)
        assert round(exchange.parameters["head_dropout"], 6) in (0.4, 0.5)


def drawn_after(space: dict[str, Any], donor: dict[str, Any], key: str) -> list[Any]:
    """The values that a trial has of a key after each of many exchanges with the same donor."""
    crowd = Population(SearchSpace.model_validate(space).root, size=2, every=1, seed=0)
    plans = [crowd.plan_exchanges(epoch, {"a": 0.1, "b": 0.9}, {"a": {}, "b": donor}) for epoch in range(60)]
    return [plan["a"].parameters[key] for plan in plans]


@pytest.mark.parametrize(
    ("distribution", "value", "expected"),
    [
        ({"type": "uniform", "low": 0.5, "high": 2.0}, 0.5, {0.5, 0.6}),  # not below the lowest
        ({"type": "uniform", "low": 0.0, "high": 0.3, "step": 0.1}, 0.3, {0.2, 0.3}),  # 0.3 / 0.1 is below 3
        ({"type": "uniform", "low": 0.0, "high": 0.35, "step": 0.1}, 0.3, {0.2, 0.3}),  # 0.4 is beyond the highest
        ({"type": "uniform", "low": 0.7, "high": 1.0, "step": 0.1}, 0.8, {0.7, 1.0}),  # steps start at the lowest
        ({"type": "int", "low": 1, "high": 8}, 4, {3, 5}),
        ({"type": "int", "low": 1, "high": 8, "step": 7}, 8, {1, 8}),
    ],
)
def test_a_number_moves_up_or_down_to_one_that_the_space_has(distribution, value, expected):
    drawn = drawn_after({"rdrop_alpha": distribution}, {"rdrop_alpha": value}, "rdrop_alpha")
    assert {round(each, 9) for each in drawn} == expected
    assert {type(each) for each in drawn} == {int if distribution["type"] == "int" else float}


@pytest.mark.parametrize(
    "kind", [{"type": "uniform"}, {"type": "uniform", "step": 0.1}, {"type": "int"}, {"type": "int", "step": 2}]
)
def test_zero_mostly_stays_and_is_sometimes_drawn_again_within_its_range_and_steps(kind):
    high = 0.3 if kind["type"] == "uniform" else 6
    drawn = drawn_after({"focal_gamma": {"low": 0, "high": high, **kind}}, {"focal_gamma": 0}, "focal_gamma")
    assert 30 < drawn.count(0) < 60  # 45 and the draws of 0 itself are expected
    others = {each for each in drawn if each}
    assert len(others) > 2
    assert all(0 < each < high + 1e-9 for each in others)
    if step := kind.get("step"):
        assert {round(each / step, 6) for each in others} == {1, 2, 3}


def test_a_choice_mostly_stays_what_it_was():
    space = {"max_grad_norm": {"type": "categorical", "choices": [0.5, 1.0, 2.0]}}
    assert drawn_after(space, {"max_grad_norm": 1.0}, "max_grad_norm").count(1.0) > 40  # 50 are expected


def test_a_key_that_the_space_has_no_longer_keeps_the_donor_s_value():
    donor = {"learning_rate": 1e-4, "head_dropout": 0.2}
    space = {"learning_rate": {"type": "log_uniform", "low": 1e-5, "high": 1e-3}}
    assert set(drawn_after(space, donor, "head_dropout")) == {0.2}


def test_exchanges_do_not_depend_on_the_order_in_which_equal_trials_reported():
    scores = {"t0000": 0.1, "t0001": 0.1, "t0002": 0.1, "t0003": 0.9, "t0004": 0.9}
    plans = [
        population(5).plan_exchanges(1, dict(order), points(5)) for order in (scores.items(), [*scores.items()][::-1])
    ]
    assert plans[0] == plans[1]
    assert plans[0].keys() == {"t0002"}


async def submit(broker: Broker, count: int) -> None:
    for key, parameters in points(count).items():
        await broker.submit(trial(int(key[1:])) | {"parameters": parameters})


async def train(broker: Broker, epoch: int, score: float | None = None, pool: str = "one") -> str:
    """A pool takes a trial and reports once; its key. Its workers leave it as soon as Tune has decided."""
    config, attempt = await broker.take(pool, 1)
    key = config["key"]
    report = {"epoch": epoch, "score": int(key[1:]) / 10 if score is None else score}
    count = await broker.report(key, attempt, report)
    assert await broker.await_decision(key, attempt, count, 0) is None
    await decide(broker, key, count)
    assert await broker.await_decision(key, attempt, count) is False
    return key


async def decide(broker: Broker, key: str, count: int) -> None:
    """Tune continues a trial after so many reports: it asks for the next one."""
    asking = asyncio.ensure_future(broker.next_report(key, count))
    await asyncio.sleep(0.01)
    asking.cancel()


async def train_undecided(broker: Broker, epoch: int, pool: str) -> tuple[str, int, int]:
    """A pool takes a trial and reports once, while Tune does nothing; key, attempt and number of reports."""
    config, attempt = await broker.take(pool, 1)
    key = config["key"]
    return key, attempt, await broker.report(key, attempt, {"epoch": epoch, "score": int(key[1:]) / 10})


async def test_workers_train_no_further_trial_before_tune_has_the_report_of_one_that_waits():
    """After a Ctrl-C Tune takes no more reports: each pool's last one is all that is left over."""

    broker = Broker(0, population())
    await submit(broker, 4)
    key, attempt, count = await train_undecided(broker, 1, "one")
    assert await broker.await_decision(key, attempt, count, 0.05) is None
    await broker.close()
    assert await broker.await_decision(key, attempt, count, 0.05) is False


async def test_nobody_goes_on_from_an_exchange_before_tune_has_everybody_s_report():
    broker = Broker(0, population(2))
    await submit(broker, 2)
    for pool in ("one", "two"):
        await train_undecided(broker, 1, pool)
    assert (await broker.next_report("t0000", 1)).keys() == {"exchanged"}
    await decide(broker, "t0000", 2)
    assert await broker.take("three", 0.05) == ()  # the donor's report is undecided
    await decide(broker, "t0001", 1)
    assert [(await broker.take(pool, 1))[0]["key"] for pool in ("three", "four")] == ["t0000", "t0001"]


async def test_a_population_of_one_as_after_one_more_trial_goes_on_by_itself():
    broker = Broker(0, population(1))
    await submit(broker, 1)
    for epoch in (1, 2):
        config, attempt = await broker.take("one", 1)
        count = await broker.report(config["key"], attempt, {"epoch": epoch, "score": 0.5})
        assert await broker.await_decision("t0000", attempt, count, 0) is None
        await decide(broker, "t0000", count)
        assert await broker.await_decision("t0000", attempt, count) is False  # the workers leave it at each meeting
    assert config["parameters"] == points(1)["t0000"]


async def test_a_trial_stopped_at_an_exchange_and_submitted_again_keeps_nobody_waiting():
    broker = Broker(0, population(2))
    await submit(broker, 2)
    for pool in ("one", "two"):
        await train_undecided(broker, 1, pool)
    await broker.stop("t0000")
    await submit(broker, 1)
    await decide(broker, "t0001", 1)
    assert [(await broker.take(pool, 1))[0]["key"] for pool in ("one", "two")] == ["t0000", "t0001"]


async def test_a_report_from_the_state_that_a_trial_goes_on_from_is_no_reason_to_exchange_again():
    broker = Broker(0, population(2))
    await submit(broker, 2)
    config, attempt = await broker.take("one", 1)
    repeated = {"epoch": 1, "score": 0.5, "repeated": True}
    assert await broker.report(config["key"], attempt, repeated) == 1  # in a resumed study Tune may not have it
    await decide(broker, "t0000", 1)
    assert await broker.await_decision("t0000", attempt, 1) is True
    assert await broker.report("t0000", attempt, {"epoch": 2, "score": 0.5}) == 2
    await decide(broker, "t0000", 2)
    assert await broker.await_decision("t0000", attempt, 2) is False


async def test_a_report_that_was_lost_with_its_worker_leads_to_an_exchange_once_the_next_worker_repeats_it():
    broker = Broker(1, population(1, every=2))
    await submit(broker, 1)
    _, attempt = await broker.take("one", 1)
    assert await broker.report("t0000", attempt, {"epoch": 1, "score": 0.5}) == 1
    _, attempt = await broker.take("one", 1)  # the first one died after it had saved its second epoch
    assert await broker.report("t0000", attempt, {"epoch": 2, "score": 0.5, "repeated": True}) == 2
    await decide(broker, "t0000", 2)
    assert await broker.await_decision("t0000", attempt, 2) is False


async def test_with_one_pool_all_trials_come_to_the_meeting_and_nobody_goes_on_before():
    broker = Broker(0, population())
    await submit(broker, 3)
    first = [await train(broker, 1) for _ in range(3)]
    assert await broker.take("one", 0.05) == ()  # the fourth has not even been asked for
    await submit(broker, 4)
    assert (await broker.take("one", 1))[0]["key"] == "t0003"
    assert first == ["t0000", "t0001", "t0002"]


def test_what_a_donor_has_switched_off_is_not_switched_on_nor_the_other_way_round():
    space = {**SPACE, "ema_decay": Categorical(type="categorical", choices=[None, 0.9, 0.99, 0.999])}
    for decay, allowed in {None: {None}, 0.9: {0.9, 0.99, 0.999}}.items():
        donor, drawn = {**POINT, "ema_decay": decay}, set()
        for epoch in range(100):
            exchanges = Population(space, size=4, every=1, seed=0).plan_exchanges(
                epoch, {"a": 0.1, "b": 0.9}, {"a": {}, "b": donor}
            )
            drawn.add(exchanges["a"].parameters["ema_decay"])
        assert drawn == allowed


async def test_a_trial_goes_on_from_none_whose_epochs_have_other_batches():
    broker = Broker(0, population())
    for key, parameters in points(4).items():
        halved = "it ran out of memory" if key == "t0003" else None  # the best one
        await broker.submit(trial(int(key[1:]), halved=halved) | {"parameters": parameters})
    for _ in range(4):
        await train(broker, 1)
    report = await broker.next_report("t0000", 1)
    assert report["exchanged"]["donor"] == "t0002"
    assert "halved" not in report


async def test_the_worst_goes_on_with_the_donor_s_settings_once_the_driver_has_taken_the_state_over():
    broker = Broker(0, population())
    await submit(broker, 4)
    for _ in range(4):
        await train(broker, 1)
    report = await broker.next_report("t0000", 1)
    assert report["exchanged"]["donor"] == "t0003"
    assert report["exchanged"]["epoch"] == 1
    assert await broker.take("one", 0.05) == ()  # the donor's state must not move before it was copied
    request = asyncio.ensure_future(broker.next_report("t0000", 2))
    configs = [(await broker.take(f"pool-{number}", 1))[0] for number in range(4)]
    assert [each["key"] for each in configs] == ["t0000", "t0001", "t0002", "t0003"]
    assert configs[0]["parameters"] == report["exchanged"]["parameters"]
    assert configs[0]["parameters"]["learning_rate"] in (pytest.approx(3.2e-4), pytest.approx(4.8e-4))
    assert configs[3]["parameters"] == points(4)["t0003"]
    request.cancel()


async def test_a_trial_that_ends_on_the_way_keeps_nobody_waiting():
    broker = Broker(0, population())
    await submit(broker, 4)
    for _ in range(3):
        await train(broker, 1, score=0.5)
    _, attempt = await broker.take("one", 1)
    assert await broker.take("two", 0.05) == ()
    await broker.report("t0003", attempt, {"failed": "the loss is nan"})
    assert (await broker.take("two", 1))[0]["key"] == "t0000"


async def test_a_trial_that_is_stopped_before_its_exchange_keeps_nobody_waiting():
    broker = Broker(0, population())
    await submit(broker, 4)
    for _ in range(4):
        await train(broker, 1)
    assert await broker.take("one", 0.05) == ()  # Tune has not copied the donor's state yet
    await broker.stop("t0000")
    assert (await broker.take("one", 1))[0]["key"] == "t0001"


async def test_between_meetings_a_trial_goes_on_with_its_workers():
    broker = Broker(0, population(every=2))
    await submit(broker, 4)
    config, attempt = await broker.take("one", 1)
    for epoch, goes_on in ((1, True), (2, False)):
        assert await broker.report(config["key"], attempt, {"epoch": epoch, "score": 0.1}) == epoch
        await decide(broker, config["key"], epoch)
        assert await broker.await_decision(config["key"], attempt, epoch) is goes_on


async def test_after_an_interruption_those_behind_catch_up_before_all_meet():
    broker = Broker(0, population(2))
    await submit(broker, 2)
    assert await train(broker, 3, score=0.9) == "t0000"
    assert await train(broker, 1, score=0.1) == "t0001"
    assert await train(broker, 2, score=0.1) == "t0001"  # alone at its age, it has nobody to go on from
    assert await train(broker, 3, score=0.1) == "t0001"
    report = await broker.next_report("t0001", 3)
    assert report["exchanged"]["donor"] == "t0000"


def test_an_exchange_says_all_that_is_kept_of_it():
    exchange = population().plan_exchanges(2, {"a": 0.1, "b": 0.9}, {"a": {}, "b": POINT})["a"]
    assert isinstance(exchange, Exchange)
    assert set(vars(exchange)) == {"donor", "epoch", "parameters"}


def put_state(folder: Path, weights: bytes, *, step: int) -> None:
    state = folder / "resume" / f"stage-0-step-{step}"
    state.mkdir(parents=True)
    (state / "model.safetensors").write_bytes(weights)
    files = {"model.safetensors": hashlib.sha256(weights).hexdigest()}
    manifest = {"format": 3, "position": {"step": step, "best_score": 0.9}, "files": files}
    (state / "manifest.json").write_text(json.dumps(manifest))


def test_an_exchange_copies_the_donor_s_state_and_is_kept_and_tracked(logged):
    weak, strong = logged.start(), logged.start()
    logged.epoch(weak, 1, 0.2)
    logged.epoch(strong, 1, 0.9)
    place, donor = logged.folder.trial("t0000").path, logged.folder.trial("t0001").path
    put_state(place, b"weak", step=5)
    put_state(donor, b"strong", step=3)
    exchange = {"donor": "t0001", "epoch": 1, "parameters": {"learning_rate": 3e-4, "pooling": "cls"}}
    logged.log.on_trial_result(0, [], weak, {"exchanged": exchange})
    (state,) = (place / "resume").iterdir()
    assert (state.name, (state / "model.safetensors").read_bytes()) == ("stage-0-step-3", b"strong")
    manifest = json.loads((state / "manifest.json").read_text())
    assert (manifest["position"]["best_score"], manifest["exchange"]) == (0.2, exchange)
    assert (donor / "resume" / "stage-0-step-3" / "model.safetensors").read_bytes() == b"strong"
    assert logged.record(weak).exchanges == (exchange,)
    assert logged.store.unfinished()[0].parameters == exchange["parameters"]
    assert logged.run(weak).metrics["pbt/learning_rate"] == {1: 3e-4}
    best = {"final": True, "best_score": 0.5, "best_epoch": 2, "best_task_scores": {"mood": 0.5}}
    logged.epoch(weak, 2, 0.5, **best)
    logged.log.on_trial_complete(0, [], weak)
    assert logged.run(weak).tags["tutti.exploited_from"] == "t0001 after epoch 1"
    assert "tutti.exploited_from" not in logged.run(strong).tags
    assert logged.record(weak).scores_by_epoch == {1: 0.2, 2: 0.5}


def test_an_exchange_that_a_driver_could_not_keep_any_more_is_kept_by_the_next_one(logged):
    from tutti.orchestration.driver.study import _record_exchanges
    from tutti.training.loop.exchange import take_over

    weak = logged.start()
    logged.start()
    put_state(logged.folder.trial("t0001").path, b"strong", step=3)
    donor, own = (logged.folder.trial(key).resume for key in ("t0001", "t0000"))
    exchange = {"donor": "t0001", "epoch": 1, "parameters": {"learning_rate": 3e-4}}
    take_over(donor, own, best_score=0.2, exchange=exchange)
    for _ in range(2):
        _record_exchanges(logged.folder, logged.store)
    assert logged.record(weak).exchanges == (exchange,)
    assert logged.store.records()[1].exchanges == ()


async def test_a_trial_that_was_never_asked_for_keeps_nobody_waiting():
    broker = Broker(0, population(2))
    await submit(broker, 1)
    assert await train(broker, 1) == "t0000"
    assert await broker.take("one", 0.05) == ()
    await broker.stop("t0001")  # its actor died before that
    assert (await broker.take("one", 1))[0]["key"] == "t0000"
