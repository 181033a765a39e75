"""Spans of text: no character is broken over spans, every token is in one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbrl.notebook.views.tokens import bundled_decoder, decoder_of, spans_of


def utf8(rows):
    """One token a byte."""
    return [bytes(row).decode("utf-8", errors="replace") for row in rows]


@given(st.text(max_size=30))
def test_bytes_of_a_character_are_one_span(text):
    spans = spans_of(list(text.encode()), utf8)
    assert [piece for piece, _ in spans] == list(text)
    assert [count for _, count in spans] == [len(c.encode()) for c in text]


def test_bytes_that_form_nothing_stay_alone():
    assert spans_of([0xFF, 65, 0xE2, 0x82], utf8) == [
        ("\ufffd", 1),
        ("A", 1),
        ("\ufffd", 1),
        ("\ufffd", 1),
    ]


def test_without_a_tokenizer_the_ids_are_shown():
    assert spans_of([5, 1], None) == [("[5]", 1), ("[1]", 1)]


def test_bundled_tokenizer_shows_special_tokens():
    decode = bundled_decoder("tiny")
    assert spans_of([55, 54, 45, 1], decode) == [("5", 1), ("4", 1), ("+", 1), ("<eos>", 1)]


def test_a_model_that_is_not_here_has_no_decoder():
    assert bundled_decoder("no/such-model-on-this-machine") is None


def test_words_of_sentencepiece_keep_their_blank():
    class Pieces:
        def batch_decode(self, rows, skip_special_tokens, clean_up_tokenization_spaces):
            return ["".join(["the", "re"][i] for i in row) for row in rows]

        def convert_ids_to_tokens(self, ids):
            return [["\u2581the", "re"][i] for i in ids]

    assert spans_of([0, 1], decoder_of(Pieces())) == [(" the", 1), ("re", 1)]


@pytest.mark.parametrize("count", [0, 1, 3000])
def test_every_token_is_in_one_span(count):
    spans = spans_of([0xE2, 0x82, 0xAC] * count, utf8)
    assert sum(n for _, n in spans) == 3 * count
    assert all(piece == "\u20ac" for piece, _ in spans)
