"""Workers on machines of other networks, whose links are slow or cut."""

from __future__ import annotations

import contextlib
import threading

import pytest

from tests.servers.hosts import HostsHere, placed_on
from tests.servers.networks import networks
from tests.workers.remote.data import Rows, SlowRows, expected_of, flat, remote_loader

pytestmark = pytest.mark.thorough


@pytest.mark.parametrize("seconds", [2.0, 10.0])
def test_a_link_that_is_cut_for_a_while_changes_nothing(seconds: float) -> None:
    with networks(2) as made:
        hosts = HostsHere(tuple(network.machine for network in made))
        loader = remote_loader(SlowRows(600, 0.002), seed=0, shuffle=True)
        mending = threading.Timer(seconds, made[0].mend)
        found = []
        with placed_on(loader, hosts):
            for number, batch in enumerate(loader):
                found.append(flat(batch))
                if number == 20:
                    made[0].cut()
                    mending.start()

        # The other machine may have done the rest before the link is back.
        mending.cancel()
        mending.join()
        hosts.close()
    assert expected_of(SlowRows(600, 0), seed=0, shuffle=True) == found
    assert set(loader.recorder.hosts.values()) <= {network.namespace for network in made}


def test_the_work_behind_a_link_that_stays_cut_is_done_elsewhere() -> None:
    with networks(2) as made:
        hosts = HostsHere(tuple(network.machine for network in made), most=2)
        loader = remote_loader(SlowRows(600, 0.002), seed=0, shuffle=True, persistent_workers=True)
        found = []
        with contextlib.closing(hosts), placed_on(loader, hosts):
            while set(loader.recorder.hosts) != {0, 1}:  # one host may have made a whole epoch before the other came
                assert len(list(loader)) == 150

            loader.set_epoch(0)
            for number, batch in enumerate(loader):
                found.append(flat(batch))
                if number == 20:
                    made[0].cut()

    assert expected_of(SlowRows(600, 0), seed=0, shuffle=True) == found


def test_a_slow_line_far_away_brings_the_same_batches() -> None:
    with networks(1) as made:
        if not made[0].slow_down(50, 1000):
            pytest.skip("the kernel of this machine has no netem")

        hosts = HostsHere((made[0].machine,))
        loader = remote_loader(Rows(60, 60_000), seed=0, shuffle=True, prefetch_factor=4)
        with placed_on(loader, hosts):
            found = [flat(batch) for batch in loader]

        hosts.close()
    assert expected_of(Rows(60, 60_000), seed=0, shuffle=True) == found
