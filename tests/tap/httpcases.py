"""Answers that servers send, well formed and not, as bytes."""

from __future__ import annotations

from collections.abc import Sequence

from tests.tap.rawserver import CLOSE, RESET

OK = b"HTTP/1.1 200 OK\r\n"
LENGTH = b"Content-Length: 5\r\n"
CODED = b"Transfer-Encoding: chunked\r\n"
CHUNKED = OK + CODED + b"\r\n"
END = b"0\r\n\r\n"
BODY = b"5\r\nTides\r\n" + END


def _answers(**cases: bytes) -> dict[str, bytes]:
    return {name.replace("_", " "): case for name, case in cases.items()}


STATUS_LINES = _answers(
    plain=OK + LENGTH + b"\r\nTides",
    without_reason=b"HTTP/1.1 200\r\n" + LENGTH + b"\r\nTides",
    empty_reason=b"HTTP/1.1 200 \r\n" + LENGTH + b"\r\nTides",
    reason_of_many_words=b"HTTP/1.1 200 All is well\r\n" + LENGTH + b"\r\nTides",
    reason_in_latin_1=b"HTTP/1.1 200 Pr\xeat\r\n" + LENGTH + b"\r\nTides",
    reason_with_a_tab=b"HTTP/1.1 200 O\tK\r\n" + LENGTH + b"\r\nTides",
    reason_with_a_control_character=b"HTTP/1.1 200 O\x01K\r\n" + LENGTH + b"\r\nTides",
    reason_with_a_zero=b"HTTP/1.1 200 O\x00K\r\n" + LENGTH + b"\r\nTides",
    two_spaces_before_the_reason=b"HTTP/1.1 200  OK\r\n" + LENGTH + b"\r\nTides",
    two_spaces_before_the_status=b"HTTP/1.1  200 OK\r\n" + LENGTH + b"\r\nTides",
    tab_before_the_status=b"HTTP/1.1\t200 OK\r\n" + LENGTH + b"\r\nTides",
    one_digit=b"HTTP/1.1 2 OK\r\n" + LENGTH + b"\r\nTides",
    four_digits=b"HTTP/1.1 2000 OK\r\n" + LENGTH + b"\r\nTides",
    letters_as_status=b"HTTP/1.1 abc OK\r\n" + LENGTH + b"\r\nTides",
    status_099=b"HTTP/1.1 099 What\r\n" + LENGTH + b"\r\nTides",
    status_000=b"HTTP/1.1 000 What\r\n" + LENGTH + b"\r\nTides",
    status_600=b"HTTP/1.1 600 What\r\n" + LENGTH + b"\r\nTides",
    status_999=b"HTTP/1.1 999 What\r\n" + LENGTH + b"\r\nTides",
    version_1_0=b"HTTP/1.0 200 OK\r\n" + LENGTH + b"\r\nTides",
    version_0_9=b"HTTP/0.9 200 OK\r\n" + LENGTH + b"\r\nTides",
    version_2_0=b"HTTP/2.0 200 OK\r\n" + LENGTH + b"\r\nTides",
    version_1_2=b"HTTP/1.2 200 OK\r\n" + LENGTH + b"\r\nTides",
    version_5_6=b"HTTP/5.6 200 OK\r\n" + LENGTH + b"\r\nTides",
    version_of_three_digits=b"HTTP/1.01 200 OK\r\n" + LENGTH + b"\r\nTides",
    version_of_two_digits_and_more=b"HTTP/11.1 200 OK\r\n" + LENGTH + b"\r\nTides",
    no_version=b"HTTP 200 OK\r\n" + LENGTH + b"\r\nTides",
    wrong_protocol=b"HTP/1.1 200 OK\r\n" + LENGTH + b"\r\nTides",
    another_protocol=b"ICY 200 OK\r\n" + LENGTH + b"\r\nTides",
    lower_case_protocol=b"http/1.1 200 OK\r\n" + LENGTH + b"\r\nTides",
    empty_line_before=b"\r\n" + OK + LENGTH + b"\r\nTides",
    line_feed_before=b"\n" + OK + LENGTH + b"\r\nTides",
    return_before=b"\r" + OK + LENGTH + b"\r\nTides",
    space_before=b" " + OK + LENGTH + b"\r\nTides",
    a_request_comes_back=b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    a_page_alone=b"<html>Tides</html>\r\n\r\n",
    tls_alert=b"\x15\x03\x01\x00\x02\x02\x46",
    http2_preface=b"\x00\x00\x12\x04\x00\x00\x00\x00\x00" + b"\x00" * 18,
    nothing=b"",
    only_a_line_end=b"\r\n\r\n",
    half_a_status_line=b"HTTP/1.1 20",
    status_line_alone=OK,
)

HEADERS = _answers(
    none=OK + b"\r\nTides",
    line_feeds_alone=b"HTTP/1.1 200 OK\nContent-Length: 5\n\nTides",
    mixed_line_ends=b"HTTP/1.1 200 OK\nX: y\r\nContent-Length: 5\n\r\nTides",
    line_feed_ends_the_head=OK + LENGTH + b"\nTides",
    returns_alone=b"HTTP/1.1 200 OK\rContent-Length: 5\r\rTides",
    return_inside_a_value=OK + b"X: a\rY: b\r\n" + LENGTH + b"\r\nTides",
    zero_inside_a_value=OK + b"X: a\x00b\r\n" + LENGTH + b"\r\nTides",
    control_character_inside_a_value=OK + b"X: a\x01b\r\n" + LENGTH + b"\r\nTides",
    tab_inside_a_value=OK + b"X: a\tb\r\n" + LENGTH + b"\r\nTides",
    delete_inside_a_value=OK + b"X: a\x7fb\r\n" + LENGTH + b"\r\nTides",
    latin_1_value=OK + b"X: \xe9\r\n" + LENGTH + b"\r\nTides",
    utf_8_value=OK + "X: Gezeiten für alle\r\n".encode() + LENGTH + b"\r\nTides",
    empty_value=OK + b"X:\r\n" + LENGTH + b"\r\nTides",
    value_of_spaces=OK + b"X:   \t \r\n" + LENGTH + b"\r\nTides",
    no_space_after_the_colon=OK + b"X:y\r\n" + LENGTH + b"\r\nTides",
    spaces_around_a_value=OK + b"X: \t y \t\r\n" + LENGTH + b"\r\nTides",
    space_before_the_colon=OK + b"X : y\r\n" + LENGTH + b"\r\nTides",
    space_inside_a_name=OK + b"X Y: z\r\n" + LENGTH + b"\r\nTides",
    space_before_the_first_name=OK + b" X: y\r\n" + LENGTH + b"\r\nTides",
    no_colon=OK + b"Tides\r\n" + LENGTH + b"\r\nTides",
    no_name=OK + b": y\r\n" + LENGTH + b"\r\nTides",
    only_a_colon=OK + b":\r\n" + LENGTH + b"\r\nTides",
    name_with_a_slash=OK + b"X/Y: z\r\n" + LENGTH + b"\r\nTides",
    name_with_brackets=OK + b"X(Y): z\r\n" + LENGTH + b"\r\nTides",
    name_of_every_token_character=OK + b"!#$%&'*+-.^_`|~09azAZ: y\r\n" + LENGTH + b"\r\nTides",
    name_in_latin_1=OK + b"\xe9: y\r\n" + LENGTH + b"\r\nTides",
    folded=OK + b"X: a\r\n b\r\n\tc\r\n" + LENGTH + b"\r\nTides",
    folded_length=OK + b"Content-Length:\r\n 5\r\n\r\nTides",
    the_same_twice=OK + b"Set-Cookie: a=1\r\nSet-Cookie: b=2\r\n" + LENGTH + b"\r\nTides",
    many=OK + b"".join(b"X-%d: y\r\n" % number for number in range(500)) + LENGTH + b"\r\nTides",
    long_value=OK + b"X: " + b"x" * 60_000 + b"\r\n" + LENGTH + b"\r\nTides",
    too_long_value=OK + b"X: " + b"x" * 400_000 + b"\r\n" + LENGTH + b"\r\nTides",
    too_many=OK + b"X: y\r\n" * 80_000 + LENGTH + b"\r\nTides",
    cut_in_a_name=OK + b"Conte",
    cut_in_a_value=OK + b"Content-Length: 5",
    cut_before_the_empty_line=OK + LENGTH,
    cut_in_the_empty_line=OK + LENGTH + b"\r",
)

LENGTHS = _answers(
    zero=OK + b"Content-Length: 0\r\n\r\n",
    zeros_before=OK + b"Content-Length: 0005\r\n\r\nTides",
    upper_case=OK + b"CONTENT-LENGTH: 5\r\n\r\nTides",
    negative=OK + b"Content-Length: -5\r\n\r\nTides",
    with_a_plus=OK + b"Content-Length: +5\r\n\r\nTides",
    with_a_point=OK + b"Content-Length: 5.0\r\n\r\nTides",
    hexadecimal=OK + b"Content-Length: 0x5\r\n\r\nTides",
    with_an_underscore=OK + b"Content-Length: 0_5\r\n\r\nTides",
    of_letters=OK + b"Content-Length: five\r\n\r\nTides",
    empty=OK + b"Content-Length:\r\n\r\nTides",
    of_two_numbers=OK + b"Content-Length: 5 5\r\n\r\nTides",
    of_a_list=OK + b"Content-Length: 5, 5\r\n\r\nTides",
    of_a_list_that_disagrees=OK + b"Content-Length: 5, 6\r\n\r\nTides",
    of_a_list_with_a_gap=OK + b"Content-Length: 5,\r\n\r\nTides",
    twice_the_same=OK + LENGTH + LENGTH + b"\r\nTides",
    twice_with_zeros=OK + LENGTH + b"Content-Length: 05\r\n\r\nTides",
    twice=OK + LENGTH + b"Content-Length: 6\r\n\r\nTides",
    of_other_digits=OK + "Content-Length: ٥\r\n\r\nTides".encode(),
    huge=OK + b"Content-Length: 99999999999999999999\r\n\r\nTides",
    too_huge=OK + b"Content-Length: " + b"9" * 30 + b"\r\n\r\nTides",
    too_short_a_body=OK + LENGTH + b"\r\nTid",
    no_body=OK + LENGTH + b"\r\n",
    too_long_a_body=OK + LENGTH + b"\r\nTides and more",
    another_answer_after_it=OK + LENGTH + b"\r\nTides" + OK + LENGTH + b"\r\nOther",
    with_204=b"HTTP/1.1 204 No Content\r\n" + LENGTH + b"\r\n",
    with_204_and_a_body=b"HTTP/1.1 204 No Content\r\n" + LENGTH + b"\r\nTides",
    with_304=b"HTTP/1.1 304 Not Modified\r\n" + LENGTH + b"\r\n",
    with_205=b"HTTP/1.1 205 Reset Content\r\nContent-Length: 0\r\n\r\n",
    with_1_0=b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n" + LENGTH + b"\r\nTides",
    until_the_end=OK + b"\r\nTides",
    until_the_end_with_1_0=b"HTTP/1.0 200 OK\r\n\r\nTides",
    until_the_end_though_kept_alive=b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n\r\nTides",
    until_the_end_and_nothing=OK + b"\r\n",
)

CODINGS = _answers(
    plain=CHUNKED + BODY,
    nothing=CHUNKED + END,
    upper_case=OK + b"TRANSFER-ENCODING: CHUNKED\r\n\r\n" + BODY,
    with_1_0=b"HTTP/1.0 200 OK\r\n" + CODED + b"\r\n" + BODY,
    with_204=b"HTTP/1.1 204 No Content\r\n" + CODED + b"\r\n",
    with_304=b"HTTP/1.1 304 Not Modified\r\n" + CODED + b"\r\n",
    with_a_length=OK + CODED + b"Content-Length: 2\r\n\r\n" + BODY,
    with_a_length_before=OK + b"Content-Length: 2\r\n" + CODED + b"\r\n" + BODY,
    with_a_wrong_length=OK + CODED + b"Content-Length: x\r\n\r\n" + BODY,
    identity=OK + b"Transfer-Encoding: identity\r\n\r\nTides",
    identity_with_a_length=OK + b"Transfer-Encoding: identity\r\n" + LENGTH + b"\r\nTides",
    empty=OK + b"Transfer-Encoding:\r\n" + LENGTH + b"\r\nTides",
    gzip=OK + b"Transfer-Encoding: gzip\r\n\r\nTides",
    gzip_before=OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + BODY,
    gzip_after=OK + b"Transfer-Encoding: chunked, gzip\r\n\r\n" + BODY,
    twice=OK + CODED + CODED + b"\r\n" + BODY,
    twice_in_one=OK + b"Transfer-Encoding: chunked, chunked\r\n\r\n" + BODY,
    twice_and_otherwise=OK + CODED + b"Transfer-Encoding: identity\r\n\r\n" + BODY,
    word_twice=OK + b"Transfer-Encoding: chunkedchunked\r\n\r\n" + BODY,
    with_a_comma=OK + b"Transfer-Encoding: chunked,\r\n\r\n" + BODY,
    with_a_parameter=OK + b"Transfer-Encoding: chunked;q=1\r\n\r\n" + BODY,
    quoted=OK + b'Transfer-Encoding: "chunked"\r\n\r\n' + BODY,
    folded=OK + b"Transfer-Encoding:\r\n chunked\r\n\r\n" + BODY,
    folded_with_more=OK + b"Transfer-Encoding: chunked\r\n abc\r\n\r\n" + BODY,
    vertical_tab=OK + b"Transfer-Encoding: \x0bchunked\r\n\r\n" + BODY,
    space_before_the_colon=OK + b"Transfer-Encoding : chunked\r\n\r\n" + BODY,
    misspelt=OK + b"Transfer-Encoding: chunke\r\n\r\n" + BODY,
)

CHUNKS = {
    name.replace("_", " "): CHUNKED + case
    for name, case in {
        "several": b"2\r\nTi\r\n3\r\ndes\r\n" + END,
        "of_line_ends": b"4\r\n\r\n\r\n\r\n" + END,
        "like_the_end": b"5\r\n0\r\n\r\n\r\n" + END,
        "zeros_before": b"0005\r\nTides\r\n" + END,
        "fifteen_digits": b"000000000000005\r\nTides\r\n" + END,
        "sixteen_digits": b"0000000000000005\r\nTides\r\n" + END,
        "twenty_digits": b"00000000000000000005\r\nTides\r\n" + END,
        "twenty_one_digits": b"000000000000000000005\r\nTides\r\n" + END,
        "twenty_zeros_at_the_end": b"5\r\nTides\r\n00000000000000000000\r\n\r\n",
        "zeros_at_the_end": b"5\r\nTides\r\n000\r\n\r\n",
        "upper_case": b"A\r\nTides come\r\n" + END,
        "lower_case": b"a\r\nTides come\r\n" + END,
        "hexadecimal_mark": b"0x5\r\nTides\r\n" + END,
        "negative": b"-5\r\nTides\r\n" + END,
        "with_a_plus": b"+5\r\nTides\r\n" + END,
        "with_an_underscore": b"0_5\r\nTides\r\n" + END,
        "with_a_letter": b"5g\r\nTides\r\n" + END,
        "no_size": b"\r\nTides\r\n" + END,
        "only_an_extension": b";x\r\nTides\r\n" + END,
        "space_before": b" 5\r\nTides\r\n" + END,
        "space_after": b"5 \r\nTides\r\n" + END,
        "tab_after": b"5\t\r\nTides\r\n" + END,
        "spaces_after_the_last": b"5\r\nTides\r\n0  \r\n\r\n",
        "vertical_tab_after": b"5\x0b\r\nTides\r\n" + END,
        "words_after": b"5 Tides\r\nTides\r\n" + END,
        "extension": b"5;a\r\nTides\r\n" + END,
        "extension_with_a_value": b"5;a=b;c=d\r\nTides\r\n" + END,
        "extension_in_quotes": b'5;a="b; c"\r\nTides\r\n' + END,
        "extension_with_an_open_quote": b'5;a="b\r\nTides\r\n' + END,
        "extension_that_is_empty": b"5;\r\nTides\r\n" + END,
        "extension_after_a_space": b"5 ;a\r\nTides\r\n" + END,
        "extension_before_a_space": b"5;a \r\nTides\r\n" + END,
        "extension_with_a_line_feed": b"5;a\nb\r\nTides\r\n" + END,
        "extension_with_a_return": b"5;a\rb\r\nTides\r\n" + END,
        "extension_with_a_zero": b"5;a\x00\r\nTides\r\n" + END,
        "extension_in_latin_1": b"5;\xe9\r\nTides\r\n" + END,
        "extension_of_the_last": b"5\r\nTides\r\n0;a=b\r\n\r\n",
        "long_extension": b"5;" + b"x" * 50_000 + b"\r\nTides\r\n" + END,
        "too_long_extension": b"5;" + b"x" * 600_000 + b"\r\nTides\r\n" + END,
        "line_feed_after_the_size": b"5\nTides\r\n" + END,
        "return_after_the_size": b"5\rTides\r\n" + END,
        "line_feed_after_the_chunk": b"5\r\nTides\n" + END,
        "nothing_after_the_chunk": b"5\r\nTides" + END,
        "wrong_end": b"5\r\nTidesXX" + END,
        "half_a_wrong_end": b"5\r\nTides\rX" + END,
        "longer_than_said": b"3\r\nTides\r\n" + END,
        "shorter_than_said": b"7\r\nTides\r\n" + END,
        "a_good_one_before_a_bad_one": b"5\r\nTides\r\nx\r\n",
        "trailer": b"5\r\nTides\r\n0\r\nX: y\r\n\r\n",
        "trailers": b"5\r\nTides\r\n0\r\nX: y\r\nZ: 1\r\n\r\n",
        "trailer_without_a_colon": b"5\r\nTides\r\n0\r\nX\r\n\r\n",
        "trailer_with_a_space": b"5\r\nTides\r\n0\r\nX Y: z\r\n\r\n",
        "trailer_with_a_zero": b"5\r\nTides\r\n0\r\nX: \x00\r\n\r\n",
        "trailer_folded": b"5\r\nTides\r\n0\r\nX: y\r\n z\r\n\r\n",
        "trailer_that_is_a_length": b"5\r\nTides\r\n0\r\nContent-Length: 5\r\n\r\n",
        "trailer_with_line_feeds": b"5\r\nTides\r\n0\r\nX: y\n\n",
        "too_many_trailers": b"5\r\nTides\r\n0\r\n" + b"X: y\r\n" * 100_000 + b"\r\n",
        "line_feed_at_the_end": b"5\r\nTides\r\n0\r\n\n",
        "line_feeds_at_the_end": b"5\r\nTides\r\n0\n\n",
        "no_line_at_the_end": b"5\r\nTides\r\n0\r\n",
        "no_end": b"5\r\nTides\r\n",
        "cut_in_a_size": b"5\r\nTides\r\n5",
        "cut_after_a_size": b"5\r\nTides\r\n5\r\n",
        "cut_in_a_chunk": b"5\r\nTid",
        "cut_after_a_chunk": b"5\r\nTides",
        "cut_in_the_end_of_a_chunk": b"5\r\nTides\r",
        "cut_in_the_last": b"5\r\nTides\r\n0",
        "cut_in_a_trailer": b"5\r\nTides\r\n0\r\nX: ",
        "more_after_the_end": BODY + b"more",
        "another_answer_after_the_end": BODY + OK + LENGTH + b"\r\nOther",
        "huge": b"FFFFFFFFFFFFFFF\r\nTides",
        "too_huge": b"FFFFFFFFFFFFFFFFFFFF\r\nTides",
        "large": b"20000\r\n" + b"x" * 0x20000 + b"\r\n" + END,
        "thousands": b"1\r\nx\r\n" * 3000 + END,
    }.items()
}

PROVISIONAL = _answers(
    continue_=b"HTTP/1.1 100 Continue\r\n\r\n" + OK + LENGTH + b"\r\nTides",
    early_hints=b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + CHUNKED + BODY,
    several=b"HTTP/1.1 102 Processing\r\n\r\n" * 3 + CHUNKED + BODY,
    unknown=b"HTTP/1.1 199 What\r\n\r\n" + CHUNKED + BODY,
    with_a_length=b"HTTP/1.1 100 Continue\r\nContent-Length: 5\r\n\r\n" + CHUNKED + BODY,
    with_a_coding=b"HTTP/1.1 100 Continue\r\n" + CODED + b"\r\n" + CHUNKED + BODY,
    with_close=b"HTTP/1.1 100 Continue\r\nConnection: close\r\n\r\n" + CHUNKED + BODY,
    with_line_feeds=b"HTTP/1.1 100 Continue\n\n" + CHUNKED + BODY,
    malformed=b"HTTP/1.1 100 Continue\r\nX Y: z\r\n\r\n" + CHUNKED + BODY,
    and_nothing_more=b"HTTP/1.1 100 Continue\r\n\r\n",
    switching=b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\nTides",
    switching_without_upgrade=b"HTTP/1.1 101 Switching Protocols\r\n\r\n" + CHUNKED + BODY,
    upgrade_with_200=OK + b"Connection: upgrade\r\nUpgrade: h2c\r\n" + LENGTH + b"\r\nTides",
)

KEPT = _answers(
    close=OK + b"Connection: close\r\n" + LENGTH + b"\r\nTides",
    close_in_capitals=OK + b"Connection: CLOSE\r\n" + LENGTH + b"\r\nTides",
    close_among_others=OK + b"Connection: x, close\r\n" + LENGTH + b"\r\nTides",
    close_in_a_second=OK + b"Connection: x\r\nConnection: close\r\n" + LENGTH + b"\r\nTides",
    like_close=OK + b"Connection: closed\r\n" + LENGTH + b"\r\nTides",
    keep_alive=OK + b"Connection: keep-alive\r\n" + LENGTH + b"\r\nTides",
    keep_alive_and_close=OK + b"Connection: keep-alive, close\r\n" + LENGTH + b"\r\nTides",
    proxy_connection=OK + b"Proxy-Connection: close\r\n" + LENGTH + b"\r\nTides",
    close_and_more=OK + b"Connection: close\r\n" + LENGTH + b"\r\nTides and more",
    close_and_chunked=OK + b"Connection: close\r\n" + CODED + b"\r\n" + BODY,
    close_and_204=b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n" + OK + b"\r\n",
)

_GROUPS = {
    "status line": STATUS_LINES,
    "headers": HEADERS,
    "length": LENGTHS,
    "coding": CODINGS,
    "chunk": CHUNKS,
    "provisional": PROVISIONAL,
    "kept": KEPT,
}


def cases() -> dict[str, Sequence[bytes]]:
    """What a server sends to each request, in pieces. Each answer once in one piece and once, if it is short, in many."""
    found: dict[str, Sequence[bytes]] = {}
    for group, answers in _GROUPS.items():
        for name, answer in answers.items():
            found[f"{group}: {name}"] = [answer, CLOSE]
            if len(answer) < 400:
                found[f"{group}: {name}, byte by byte"] = [*(answer[at : at + 1] for at in range(len(answer))), CLOSE]
    found["reset at once"] = [RESET]
    found["reset in the head"] = [OK, RESET]
    found["reset in the body"] = [OK + LENGTH + b"\r\nTid", RESET]
    found["reset in a chunk"] = [CHUNKED + b"5\r\nTid", RESET]
    return found
