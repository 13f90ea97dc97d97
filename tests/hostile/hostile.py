#!/usr/bin/env python3
"""Plays a hostile user against the built program: bad configurations, damaged files, signals, limits, permissions, full
disks, deletions in mid-run, words and flags at random. After each action it checks what must always be true (rules.py).
The same seed gives the same scenarios. What breaks a rule is made as short as possible and printed with the command that
repeats it; the exit status is then 1. Uses Python's standard library only.

usage: hostile.py [--program PATH] [--seconds N] [--seed S] [--only PLAYER[,PLAYER]] [--json FILE]
       hostile.py --replay JSON        (or a file with it)
"""
import argparse
import json
import os
import random
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import players  # noqa: E402
import rules  # noqa: E402
from shrink import shrink  # noqa: E402
from world import Program, Unusable, World, adopt_orphans  # noqa: E402

ATTEMPTS = 3  # to see a violation again, where it depends on the moment


class Play:
    def __init__(self, args, folder):
        self.args = args
        self.folder = folder
        self.program = Program(args.program, folder, args.patience)
        self.number = 0
        self.counts, self.left_out, self.found = Counter(), Counter(), []

    def violations(self, scenario):
        """Of a scenario; those of its first action that has some."""
        self.number += 1
        world = World(self.program, scenario["base"], self.folder / f"world-{self.number}")
        try:
            for action in scenario["actions"]:
                if found := world.act(action):
                    return found
            return []
        finally:
            world.close()

    def breaks(self, rule):
        def again(scenario):
            for _ in range(self.args.attempts):
                try:
                    if any(v.rule == rule for v in self.violations(scenario)):
                        return True
                except (Unusable, KeyError, IndexError):  # what is left makes no sense
                    return False
            return False
        return again

    def scenario(self, number):
        rng = random.Random(f"{self.args.seed}:{number}")
        while True:
            scenario = players.scenario(rng)
            if not self.args.only or scenario["player"] in self.args.only.split(","):
                return scenario

    def go(self):
        end, number = time.monotonic() + self.args.seconds, self.args.first
        last = number + self.args.scenarios if self.args.scenarios else float("inf")
        while time.monotonic() < end and number < last and len(self.found) < self.args.most:
            scenario = self.scenario(number)
            try:
                found = self.violations(scenario)
                self.counts[scenario["player"]] += 1
                if found:
                    self.report(number, scenario, found)
            except Unusable as e:
                self.left_out[str(e)] += 1
            number += 1
        print(f"{sum(self.counts.values())} scenarios in {self.args.seconds - max(0, end - time.monotonic()):.0f} s: " +
              ", ".join(f"{n} {name}" for name, n in sorted(self.counts.items())))
        for why, times in self.left_out.items():
            print(f"{times} left out: {why}")
        print(f"{len(self.found)} violations")

    def report(self, number, scenario, found):
        first = found[0]
        print(f"\nVIOLATION of \"{first.rule}\" by scenario {number} of seed {self.args.seed} ({scenario['player']})",
              flush=True)
        breaks = self.breaks(first.rule)
        again = breaks(scenario)
        if first.rule == "hang":  # is known by now to last; each look at a simpler one costs as much
            self.program.patience = max(5, self.args.patience / 6)
        short = shrink(scenario, breaks, self.args.shrink_seconds) if again else scenario
        if again:
            found = self.seen_again(short, first)
        self.program.patience = self.args.patience
        if not again and first.rule == "hang":
            print("  not seen again: taken for a slow moment of this machine, not counted")
            return
        print(f"  {len(short['actions'])} of {len(scenario['actions'])} actions"
              f"{'' if again else ', not seen again in a second play'}:")
        for action in short["actions"]:
            text = json.dumps(action)
            print(f"    {text[:300]}{' ...' if len(text) > 300 else ''}")
        print("  " + found[0].text[:3000].replace("\n", "\n  "))
        text = json.dumps(short)
        if len(text) < 1500:
            how = shlex.quote(text)
        else:
            how = str(Path(tempfile.gettempdir()) / f"hostile-{self.args.seed}-{number}.json")
            Path(how).write_text(text)
        print(f"  again: {os.path.relpath(__file__)} --program {self.args.program} --replay {how}", flush=True)
        self.found.append({"rule": first.rule, "number": number, "scenario": short, "again": again, "text": found[0].text})

    def seen_again(self, scenario, first):
        for _ in range(self.args.attempts):
            found = [v for v in self.violations(scenario) if v.rule == first.rule]
            if found:
                return found
        return [first]

    def replay(self):
        text = self.args.replay
        scenario = json.loads(text if text.lstrip().startswith("{") else Path(text).read_text())
        for _ in range(self.args.attempts):
            found = self.violations(scenario)
            for v in found:
                print(f"VIOLATION of \"{v.rule}\": {v.text}")
            if found:
                self.found = found
                return
        print("no rule is broken")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", default=str(HERE.parents[1] / "build" / "athanor"))
    parser.add_argument("--seconds", type=float, default=180, help="how long to play; shrinking comes on top")
    parser.add_argument("--scenarios", type=int, default=0, help="so many at most; 0: as many as the time allows")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first scenario of this seed")
    parser.add_argument("--only", default="", help="players: " + ", ".join(p.__name__ for p, _ in players.PLAYERS))
    parser.add_argument("--most", type=int, default=10, help="violations after which to end")
    parser.add_argument("--patience", type=float, default=90, help="seconds after which a command hangs")
    parser.add_argument("--shrink-seconds", type=float, default=60, help="for each violation")
    parser.add_argument("--attempts", type=int, default=ATTEMPTS, help="to see a violation again")
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="where worlds are made")
    parser.add_argument("--replay", help="a scenario, or a file with one")
    parser.add_argument("--json", help="write what was found there")
    args = parser.parse_args()
    if not os.access(args.program, os.X_OK):
        sys.exit(f"hostile.py: no program at {args.program}: run scripts/build.sh first, or give --program")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    adopt_orphans()
    folder = Path(tempfile.mkdtemp(prefix="athanor-hostile-", dir=args.folder))
    folder.chmod(0o755)
    try:
        play = Play(args, folder)
        play.replay() if args.replay else play.go()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if args.json:
        found = [f if isinstance(f, dict) else {"rule": f.rule, "text": f.text} for f in play.found]
        Path(args.json).write_text(json.dumps({"scenarios": sum(play.counts.values()), "left_out": list(play.left_out),
                                               "violations": found}, indent=1) + "\n")
    sys.exit(1 if play.found else 0)


if __name__ == "__main__":
    main()
