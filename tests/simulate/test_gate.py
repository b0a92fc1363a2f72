"""Does each rule of the gate do what it says?

Small cases that can be followed by hand, at both forms of the gate.
"""

import numpy as np
import pytest
from gate_driver import FORMS, drive

from inferometer.errors import SpecError
from inferometer.records.types import ABSENT
from inferometer.simulate.demand import demand
from inferometer.simulate.gate_config import NOTHING, ClassRules, GateConfig, Reason, TenantRules
from inferometer.simulate.outcome import FAR_NS

S = 10**9


@pytest.fixture(params=sorted(FORMS))
def form(request):
    return FORMS[request.param]


def passage(form, config, requests, service_ns=10, n_servers=1):
    return drive(
        form(requests, config),
        requests,
        np.broadcast_to(service_ns, requests.n_requests),
        n_servers,
    )


def at_once(n_requests=4, **columns):
    columns = {"prompt_tokens": [1] * n_requests, "output_tokens": [1] * n_requests} | columns
    return demand(
        [0] * n_requests, columns.pop("prompt_tokens"), columns.pop("output_tokens"), **columns
    )


class TestOrders:
    def test_first_come_first_served(self, form):
        requests = demand([0, 1, 1, 2], [9, 8, 7, 6], [1] * 4, priority=[3, 2, 1, 0])
        assert passage(form, GateConfig(), requests).times() == {0: 0, 1: 10, 2: 20, 3: 30}

    def test_several_servers_take_several_at_once(self, form):
        assert passage(form, GateConfig(), at_once(5), n_servers=2).times() == {
            0: 0,
            1: 0,
            2: 10,
            3: 10,
            4: 20,
        }

    def test_priorities_of_classes_come_before_those_of_requests(self, form):
        """Class 0 says 5, so that its most urgent request comes behind class 1, whose requests say 4 and 2 themselves."""
        config = GateConfig(order="priority", classes=(ClassRules(priority=5), ClassRules()))
        requests = at_once(class_index=[0, 0, 1, 1], priority=[0, 9, 4, 2])
        assert passage(form, config, requests).released() == [3, 2, 0, 1]

    def test_shortest_by_what_is_declared(self, form):
        requests = at_once(
            prompt_tokens=[10, 1, 1, 5], output_tokens=[1, 1, 9, 3], max_tokens=[5, 50, 9, 3]
        )
        config = GateConfig(order="shortest-remaining")  # 15, 51, 10, 8
        assert passage(form, config, requests).released() == [3, 2, 0, 1]

    def test_shortest_by_an_oracle(self, form):
        requests = at_once(
            prompt_tokens=[10, 1, 1, 5], output_tokens=[1, 1, 9, 3], max_tokens=[5, 50, 9, 3]
        )
        config = GateConfig(order="shortest-remaining", lengths="oracle")  # 11, 2, 10, 8
        assert passage(form, config, requests).released() == [1, 3, 2, 0]

    def test_nobody_is_called_back(self, form):
        requests = demand([0, 1], [100, 1], [1, 1])
        assert passage(form, GateConfig(order="shortest-remaining"), requests).times() == {
            0: 0,
            1: 10,
        }

    def test_earliest_deadline(self, form):
        """Deadlines at 100, 41, 42, none, none: whoever has none comes last, first come first."""
        classes = (ClassRules(ttft_limit_ns=100), ClassRules(ttft_limit_ns=40), ClassRules())
        requests = demand([0, 0, 0, 1, 2], [1] * 5, [1] * 5, class_index=[2, 0, 2, 1, 1])
        config = GateConfig(order="earliest-deadline", classes=classes)
        assert passage(form, config, requests).times() == {1: 0, 3: 10, 4: 20, 0: 30, 2: 40}

    def test_least_slack_knows_that_long_prompts_take_longer(self, form):
        """Slack: 50 - (2 + 5 * 1), 60 - (2 + 5 * 10), 60 - (2 + 5 * 2)."""
        classes = (ClassRules(ttft_limit_ns=50), ClassRules(ttft_limit_ns=60))
        requests = at_once(3, class_index=[0, 1, 1], prompt_tokens=[1, 10, 2])
        pace = {"first_token_ns": 2, "first_token_per_prompt_token_ns": 5.0}
        assert passage(
            form, GateConfig(order="earliest-deadline", classes=classes, **pace), requests
        ).released() == [0, 1, 2]
        assert passage(
            form, GateConfig(order="least-slack", classes=classes, **pace), requests
        ).released() == [1, 0, 2]

    def test_bands_come_before_the_order(self, form):
        requests = at_once(prompt_tokens=[9, 1, 8, 2], priority=[0, 1, 0, 1])
        config = GateConfig(order="shortest-remaining", has_bands=True)
        assert passage(form, config, requests).released() == [2, 0, 1, 3]


class TestFairness:
    def test_tenants_take_turns_by_tokens_not_by_requests(self, form):
        """Tenant 0 asks for 10 each, tenant 1 for 5.

        Of equals the first who came, then whoever got less. 0: 10, 1: 5, 10, tie, …
        """
        requests = at_once(6, prompt_tokens=[8, 8, 8, 3, 3, 3], tenant_index=[0, 0, 0, 1, 1, 1])
        config = GateConfig(order="fair")
        assert passage(form, config, requests).released() == [0, 3, 4, 1, 5, 2]

    def test_weights_are_shares(self, form):
        """Three to one: of eight, the six of tenant 0 go in with two of tenant 1."""
        requests = at_once(16, tenant_index=[0, 1] * 8)
        config = GateConfig(order="fair", tenants=(TenantRules(weight=3), TenantRules()))
        released = passage(form, config, requests).released()
        assert [index % 2 for index in released[:8]].count(0) == 6

    def test_who_was_away_gets_no_credit(self, form):
        """Tenant 1 comes when tenant 0 has had 3 x 3: it begins there, and they take turns from then on."""
        requests = demand([0] * 6 + [25] * 3, [1] * 9, [1] * 9, tenant_index=[0] * 6 + [1] * 3)
        released = passage(form, GateConfig(order="fair"), requests).released()
        assert released == [0, 1, 2, 3, 6, 4, 7, 5, 8]

    def test_a_tenant_alone_after_an_empty_queue_begins_where_the_last_one_was(self, form):
        """Tenant 0 has had 6 at 20, where tenant 1 begins at 30.

        After its 3 tenant 0 is lifted to 9 at 31, and they take turns.
        """
        requests = demand([0, 0, 30, 31, 31, 31], [1] * 6, [1] * 6, tenant_index=[0, 0, 1, 1, 1, 0])
        assert passage(form, GateConfig(order="fair"), requests).released() == [0, 1, 2, 3, 5, 4]

    def test_answers_shorter_than_declared_are_credited_when_they_end(self, form):
        """Tenant 0's first is charged 1 + 2 * 50, and had 1 + 2 * 1 when it ends.

        Then it is its turn again, and once more.
        """
        requests = at_once(
            4, output_tokens=[1, 1, 9, 9], max_tokens=[50, 50, 9, 9], tenant_index=[0, 0, 1, 1]
        )
        assert passage(form, GateConfig(order="fair"), requests).released() == [0, 2, 1, 3]
        assert passage(form, GateConfig(order="fair"), requests, n_servers=2).released()[:3] == [
            0,
            2,
            1,
        ]

    def test_the_price_of_answers_is_a_rule(self, form):
        requests = at_once(
            4, prompt_tokens=[1, 1, 6, 6], output_tokens=[4, 4, 1, 1], tenant_index=[0, 0, 1, 1]
        )
        assert passage(
            form, GateConfig(order="fair", output_token_weight=1), requests
        ).released() == [0, 2, 1, 3]
        assert passage(
            form, GateConfig(order="fair", output_token_weight=2), requests
        ).released() == [0, 2, 3, 1]


class TestWindows:
    def test_a_class_gathers_until_the_oldest_has_waited(self, form):
        requests = demand([3, 5, 60], [1] * 3, [1] * 3)
        assert passage(
            form, GateConfig(classes=(ClassRules(window_ns=20),)), requests, n_servers=9
        ).times() == {0: 23, 1: 23, 2: 80}

    def test_or_until_enough_are_there(self, form):
        requests = demand([3, 5, 6], [1] * 3, [1] * 3)
        config = GateConfig(classes=(ClassRules(window_ns=20, window_size=2),))
        assert passage(form, config, requests, n_servers=9).times() == {0: 5, 1: 5, 2: 26}

    def test_the_window_of_whoever_goes_away_counts_no_more(self, form):
        requests = demand([3, 5], [1] * 2, [1] * 2, abort_ns=[10, ABSENT])
        assert passage(form, GateConfig(classes=(ClassRules(window_ns=20),)), requests).times() == {
            1: 25
        }

    def test_other_classes_do_not_wait(self, form):
        config = GateConfig(classes=(ClassRules(window_ns=20), ClassRules()))
        assert passage(
            form, config, demand([3, 5], [1] * 2, [1] * 2, class_index=[0, 1]), n_servers=9
        ).times() == {0: 23, 1: 5}

    def test_a_window_widens_with_the_requests_in_flight(self, form):
        rules = ClassRules(window_ns=10, widest_window_ns=30, widest_at=2)
        requests = demand([0, 20, 50], [1] * 3, [1] * 3)
        found = passage(
            form, GateConfig(classes=(rules,)), requests, n_servers=9, service_ns=[100, 100, 100]
        )
        # None in flight: 10; one, who went in at 10, is: 20; two are: 30, the widest.
        assert found.times() == {0: 10, 1: 40, 2: 80}

    def test_it_closes_again_as_they_end(self, form):
        rules = ClassRules(window_ns=10, widest_window_ns=1000, widest_at=1)
        requests = demand([0, 20], [1] * 2, [1] * 2)
        found = passage(
            form, GateConfig(classes=(rules,)), requests, n_servers=9, service_ns=[40, 40]
        )
        assert found.times() == {0: 10, 1: 50}  # the first ends at 50: the window is over


class TestOversized:
    def test_longer_prompts_have_the_rules_of_another_class(self, form):
        config = GateConfig(
            classes=(ClassRules(), ClassRules(window_ns=50)),
            oversized_above_tokens=8,
            oversized_class=1,
        )
        assert passage(form, config, demand([3, 5], [8, 9], [1, 1]), n_servers=9).times() == {
            0: 3,
            1: 55,
        }

    def test_and_wait_behind_all_others(self, form):
        config = GateConfig(
            order="priority",
            classes=(ClassRules(priority=0), ClassRules(priority=1)),
            oversized_above_tokens=8,
            oversized_class=1,
        )
        requests = demand([0, 1, 2, 3], [1, 9, 9, 1], [1] * 4)
        assert passage(form, config, requests).released() == [0, 3, 1, 2]


class TestLimits:
    def test_a_full_class_lets_others_pass(self, form):
        config = GateConfig(classes=(ClassRules(max_in_flight=1), ClassRules()))
        requests = at_once(class_index=[0, 0, 1, 1])
        assert passage(form, config, requests, n_servers=3).times() == {0: 0, 1: 10, 2: 0, 3: 0}

    def test_a_bucket_fills_while_time_goes_by(self, form):
        """10 at first, 4 a second; each release takes 4 + 2: at 0, when 2 more are there (0.5 s), and 1.5 s after that."""
        config = GateConfig(tenants=(TenantRules(tokens_per_s=4, burst_tokens=10),))
        requests = at_once(3, prompt_tokens=[4] * 3, output_tokens=[2] * 3)
        assert passage(form, config, requests, n_servers=9).times() == {0: 0, 1: S // 2, 2: 2 * S}

    def test_a_bucket_is_never_fuller_than_full(self, form):
        config = GateConfig(tenants=(TenantRules(tokens_per_s=4, burst_tokens=10),))
        requests = demand([0, 100 * S, 100 * S, 100 * S], [5] * 4, [5] * 4)
        assert passage(form, config, requests, n_servers=9).times() == {
            0: 0,
            1: 100 * S,
            2: 102_500_000_000,
            3: 105 * S,
        }

    def test_thirds_of_a_token_are_not_rounded_away(self, form):
        """3 tokens at first and 3 a second, 2 a request.

        The k-th goes in when 2 k + 2 were there, (2 k - 1) / 3 s, after any time.
        """
        config = GateConfig(tenants=(TenantRules(tokens_per_s=3, burst_tokens=3),))
        times = passage(form, config, at_once(301), n_servers=999).times()
        assert times == {0: 0} | {k: -(-(2 * k - 1) * S // 3) for k in range(1, 301)}

    def test_the_price_is_what_is_declared_and_not_given_back(self, form):
        config = GateConfig(tenants=(TenantRules(tokens_per_s=10, burst_tokens=20),))
        requests = at_once(2, prompt_tokens=[10, 10], output_tokens=[1, 1], max_tokens=[10, 10])
        assert passage(form, config, requests).times() == {0: 0, 1: 2 * S}

    def test_a_small_request_does_not_overtake_its_tenants_large_one(self, form):
        """Tenant 0: 9 of 10 are gone, 9 more are asked; its request of 1 + 1 waits behind that; tenant 1 has no bucket."""
        config = GateConfig(tenants=(TenantRules(tokens_per_s=8, burst_tokens=10), TenantRules()))
        requests = at_once(
            4, prompt_tokens=[8, 8, 1, 50], tenant_index=[0, 0, 0, 1], class_index=[0, 0, 0, 1]
        )
        times = passage(form, config, requests, n_servers=9).times()
        assert times == {0: 0, 1: S, 3: 0, 2: S + S // 4}


class TestAdmission:
    def reasons(self, form, config, requests, **kinds):
        return [Reason(reason).name for reason in passage(form, config, requests, **kinds).reasons]

    def test_a_full_queue(self, form):
        """Of five at once two may wait; those who came later find one going in every 10."""
        requests = demand([0, 0, 0, 5, 11], [1] * 5, [1] * 5)
        assert self.reasons(form, GateConfig(max_queue=2), requests) == [
            "NONE",
            "NONE",
            "QUEUE_FULL",
            "NONE",
            "NONE",
        ]

    def test_the_queue_of_a_class(self, form):
        config = GateConfig(classes=(ClassRules(max_queue=1), ClassRules()))
        requests = at_once(class_index=[0, 0, 1, 1])
        assert self.reasons(form, config, requests) == ["NONE", "CLASS_QUEUE_FULL", "NONE", "NONE"]

    def test_tokens_that_may_wait(self, form):
        requests = at_once(4, prompt_tokens=[4, 4, 3, 2], output_tokens=[1] * 4)
        assert self.reasons(form, GateConfig(max_queued_tokens=9), requests) == [
            "NONE",
            "TOKENS_FULL",
            "NONE",
            "TOKENS_FULL",
        ]

    def test_what_no_bucket_ever_pays(self, form):
        config = GateConfig(tenants=(TenantRules(tokens_per_s=1, burst_tokens=9),))
        assert self.reasons(form, config, at_once(2, prompt_tokens=[8, 9])) == ["NONE", "TOO_LARGE"]

    def test_the_longest_wait(self, form):
        """Turned away at 25 to the nanosecond, not when the server is free at 30."""
        found = passage(form, GateConfig(max_wait_ns=25), at_once(4))
        assert found.times() == {0: 0, 1: 10, 2: 20}
        assert found.times("shed") == {3: 25}
        assert found.reasons[3] == Reason.WAITED_TOO_LONG

    def test_the_shorter_wait_counts(self, form):
        classes = (ClassRules(max_wait_ns=5), ClassRules(max_wait_ns=50))
        found = passage(
            form,
            GateConfig(max_wait_ns=15, classes=classes),
            at_once(3, class_index=[0, 0, 1]),
            service_ns=100,
        )
        assert found.times("shed") == {1: 5, 2: 15}

    @pytest.mark.parametrize(
        ("lateness", "shed"), [("keep", {}), ("passed", {3: 30}), ("hopeless", {2: 16, 3: 16})]
    )
    def test_deadlines_that_are_lost(self, form, lateness, shed):
        """First tokens take 4 + 10 from the release; the limit is 30, so who is not in at 16 is too late."""
        classes = (ClassRules(ttft_limit_ns=30),)
        config = GateConfig(
            classes=classes,
            lateness=lateness,
            first_token_ns=4,
            first_token_per_prompt_token_ns=10.0,
        )
        found = passage(form, config, at_once(4))
        assert found.times("shed") == shed
        assert {found.reasons[i] for i in shed} <= {Reason.TOO_LATE}

    def test_a_deadline_that_is_lost_on_arrival(self, form):
        config = GateConfig(
            classes=(ClassRules(ttft_limit_ns=30),),
            lateness="hopeless",
            first_token_per_prompt_token_ns=10.0,
        )
        found = passage(form, config, at_once(2, prompt_tokens=[2, 3]))
        assert found.times("refused") == {1: 0}
        assert found.reasons == [Reason.NONE, Reason.TOO_LATE]

    def test_clients_that_go_away_while_they_wait(self, form):
        requests = demand([0, 0, 0], [1] * 3, [1] * 3, abort_ns=[3, 7, ABSENT])
        found = passage(form, GateConfig(max_queue=3), requests)
        assert found.times() == {0: 0, 2: 10}
        assert found.times("gone") == {1: 7}


def test_a_gate_at_rest_asks_for_nothing(form):
    gate = form(at_once(1), GateConfig())
    assert (gate.n_waiting, gate.wake_ns) == (0, FAR_NS)
    assert gate.release(5, 3) == gate.shed(5) == NOTHING
    gate.ended(0, 1, 6)  # it was never let in
    gate.gone(0, 6)
    assert gate.offer(0, 7)
    assert gate.release(7, 0) == NOTHING
    assert gate.wake_ns == FAR_NS
    assert gate.release(7, 1) == 0


def test_classes_without_rules_are_named(form):
    with pytest.raises(SpecError, match="requests of class 2"):
        form(at_once(2, class_index=[0, 2]), GateConfig(classes=(ClassRules(), ClassRules())))
    with pytest.raises(SpecError, match="requests of tenant 2"):
        form(
            at_once(2, tenant_index=[0, 2]),
            GateConfig(order="fair", tenants=(TenantRules(), TenantRules())),
        )
