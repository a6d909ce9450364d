"""A journal whose writer is killed at random moments: what was reported as durable is there, in order, once."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from headrace.sources.journal.reader import JournalReader
from tests import programs

pytestmark = pytest.mark.thorough

KILLED = """
import os, random, sys
from headrace.sources.journal.journal import JournalWriter

folder, first, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
chance = random.Random(seed)
writer = JournalWriter(folder, limit=4_000_000)
number = first
while True:
    count = chance.randrange(1, 40)
    # A source that delivers some again, as after a lost ack.
    again = min(number, chance.randrange(20))
    wanted = range(number - again, number + count)
    payloads = [b"%d:" % one + bytes(one * 7919 % 5000) for one in wanted]
    ids = [b"%d" % one for one in wanted]
    while payloads:
        taken = writer.append(payloads, ids)
        writer.sync()
        del payloads[:taken], ids[:taken]
        writer.trim_as_asked()
    number += count
    print(number, flush=True)
"""


def kill_writers(folder: Path, rounds: int) -> None:
    """Kills a writing process at a random moment, and looks at what is there, again and again."""
    chance = random.Random(rounds)
    reported = 0
    checked = 0
    for turn in range(rounds):
        with programs.Program(["-c", KILLED, folder, reported, turn]) as program:
            reported = max(reported, int(program.read_line()))
            for _ in range(chance.randrange(3)):
                reported = int(program.read_line())
            program.kill()
            for line in iter(program.read_line, ""):
                if line.endswith("\n"):
                    reported = int(line)

        reader = JournalReader(folder)
        while checked < reader.durable:
            for payload in reader.read(checked, 1 << 20):
                assert payload == b"%d:" % checked + bytes(checked * 7919 % 5000)
                checked += 1
        assert checked >= reported
        reader.ask_to_trim(checked)
        reader.close()


def test_all_that_was_reported_survives_a_killed_writer(tmp_path: Path) -> None:
    kill_writers(tmp_path / "journal", 8)


@pytest.mark.thorough
def test_all_that_was_reported_survives_200_killed_writers(tmp_path: Path) -> None:
    kill_writers(tmp_path / "journal", 200)
