"""Children: what they return, and what is said of those that return nothing."""

from __future__ import annotations

import os
import signal
import time

from transpiler.verify.isolate import Cause, Failure, Finished, find_name, in_child


def test_value_and_log_come_back():
    def speak():
        print("said")
        return 7

    assert in_child(speak) == Finished(7, "said\n")


def test_state_stays_in_the_child():
    seen = []
    assert in_child(lambda: seen.append(1)) == Finished(None, "")
    assert seen == []


def test_causes_are_outermost_first():
    def fail():
        try:
            raise ValueError("config.rope_type is odd\nmore")
        except ValueError as error:
            raise RuntimeError("engine died") from error

    failure = in_child(fail)
    assert failure.causes == (
        Cause("RuntimeError", False, "engine died"),
        Cause("ValueError", True, "config.rope_type is odd\nmore"),
    )
    assert failure.last_line() == "ValueError: config.rope_type is odd"
    assert "Traceback" in failure.log


def test_exit_is_a_failure():
    failure = in_child(lambda: os._exit(3))
    assert failure.last_line() == "child ended with status 3"


def test_sys_exit_is_a_failure():
    def leave():
        raise SystemExit("no device")

    assert in_child(leave).last_line() == "SystemExit: no device"


def test_signal_is_a_failure():
    failure = in_child(lambda: os.kill(os.getpid(), signal.SIGKILL))
    assert failure.last_line() == "child ended with status -9"


def test_late_child_is_ended():
    failure = in_child(lambda: time.sleep(60), timeout=0.2)
    assert "no result within" in failure.last_line()


def test_unpicklable_value_is_a_failure():
    assert isinstance(in_child(lambda: (n for n in ())), Failure)


def test_name_must_stand_alone_in_a_value_error():
    failure = Failure((Cause("ValueError", True, "attention_factor is set"),), "")
    assert find_name(failure, ("factor", "attention_factor")) == "attention_factor"
    other = Failure((Cause("KeyError", False, "attention_factor"),), "")
    assert find_name(other, ("attention_factor",)) == ""
