"""What counts as equal."""

from __future__ import annotations

from dataclasses import replace

import pytest

np = pytest.importorskip("numpy")

from transpiler.verify.compare import BAR, LARGEST_BAR, compare  # noqa: E402
from transpiler.verify.outputs import Answer, Reference  # noqa: E402


def answer(tokens, decode, prompt=((-1.0, -2.0, -3.0),)):
    return Answer(tuple(tokens), np.array(prompt), np.array(decode))


UPSTREAM = answer([0, 1], [[-0.5, -1.0, -4.0], [-2.0, -0.3, -3.0]])
REFERENCE = Reference((UPSTREAM,), noise=1e-6)


def test_same_answer_is_equal():
    comparison = compare(REFERENCE, (UPSTREAM,))
    assert comparison.is_equal
    assert comparison.largest == 0
    assert comparison.bar == BAR


@pytest.mark.parametrize(("difference", "equal"), [(0.9e-4, True), (1.1e-4, False)])
@pytest.mark.parametrize("place", ["prompt", "decode"])
def test_bar_holds_at_prompt_and_decode_positions(place, difference, equal):
    shifted = getattr(UPSTREAM, place).copy()
    shifted[0, 2] += difference
    parts = {"prompt": UPSTREAM.prompt, "decode": UPSTREAM.decode, place: shifted}
    comparison = compare(REFERENCE, (Answer(UPSTREAM.tokens, **parts),))
    assert comparison.is_equal is equal
    assert getattr(comparison, place) == pytest.approx(difference)


def test_noise_raises_the_bar():
    comparison = compare(Reference((UPSTREAM,), noise=1e-4), (UPSTREAM,))
    assert comparison.bar == pytest.approx(3e-4)
    assert comparison.is_equal


def test_upstream_far_from_itself_leaves_the_usual_bar():
    reference = Reference((UPSTREAM,), noise=LARGEST_BAR)
    assert compare(reference, (UPSTREAM,)).bar == BAR
    assert compare(reference, (UPSTREAM,)).is_equal
    off = replace(UPSTREAM, prompt=UPSTREAM.prompt + 2 * BAR)
    assert not compare(reference, (off,)).is_equal


def test_another_token_is_not_equal():
    other = answer([2, 1], UPSTREAM.decode)
    comparison = compare(REFERENCE, (other,))
    assert not comparison.tokens_equal
    assert not comparison.is_equal


def test_after_another_token_positions_are_not_compared():
    decode = UPSTREAM.decode.copy()
    decode[1] = -9.0
    assert compare(REFERENCE, (answer([2, 1], decode),)).decode == 0


def test_tie_does_not_count():
    decode = np.array([[-0.5, -0.50005, -4.0], [-2.0, -0.3, -3.0]])
    reference = Reference((answer([0, 1], decode),), noise=0.0)
    comparison = compare(reference, (answer([1, 2], decode),))
    assert comparison.tied == 2
    assert comparison.is_equal


def test_a_third_token_at_a_tie_counts():
    decode = np.array([[-0.5, -0.50005, -4.0], [-2.0, -0.3, -3.0]])
    reference = Reference((answer([0, 1], decode),), noise=0.0)
    assert not compare(reference, (answer([2, 1], decode),)).tokens_equal


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_no_number_is_infinitely_far(wrong):
    decode = UPSTREAM.decode.copy()
    decode[1, 2] = wrong
    comparison = compare(REFERENCE, (answer([0, 1], decode),))
    assert comparison.decode == np.inf
    assert not comparison.is_equal


def test_missing_positions_are_an_error():
    with pytest.raises(ValueError, match="log-probabilities"):
        compare(REFERENCE, (Answer((0, 1), np.empty((0, 3)), UPSTREAM.decode),))


def test_prompt_positions_can_be_left_out():
    cached = Answer((0, 1), np.empty((0, 3)), UPSTREAM.decode)
    assert compare(REFERENCE, (cached,), prompt_positions=False).is_equal


def test_missing_tokens_and_answers_are_an_error():
    with pytest.raises(ValueError, match="tokens"):
        compare(REFERENCE, (answer([0], UPSTREAM.decode[:1]),))
    with pytest.raises(ValueError, match="zip"):
        compare(REFERENCE, ())
