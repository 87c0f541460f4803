from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.decoder import Decoder
from schemas.event import TippingEvent
from schemas.spec import builtin
from tests.schemas.events import SHOP, packed, shop


def fuzzed(make: Callable[[], list[bytes]]) -> st.SearchStrategy[bytes]:
    """Random bytes, and good events with some bytes replaced, removed or repeated."""
    return st.binary(max_size=64) | st.builds(
        lambda event, at, cut, junk: event[: at % len(event)] + junk + event[at % len(event) + cut :],
        st.sampled_from(make()),
        st.integers(0, 10_000),
        st.integers(0, 4),
        st.binary(max_size=4),
    )


CASES = {
    "shop msgpack": (Decoder(SHOP, "msgpack"), lambda: [packed(shop())]),
    "shop json": (Decoder(SHOP, "json"), lambda: [msgspec.json.encode(shop())]),
    "tipping": (
        Decoder(builtin("tipping"), "msgpack"),
        lambda: [msgspec.msgpack.encode(TippingEvent("t", 1, 2, 3, 4, 5, 1.5, 6, 7, 8.0, bytes(128)))],
    ),
}


@pytest.mark.parametrize("case", CASES)
@settings(max_examples=150)
@given(data=st.data())
def test_no_bytes_make_the_decoder_raise(case: str, data: st.DataObject) -> None:
    decoder, make = CASES[case]
    values = data.draw(st.lists(fuzzed(make), max_size=6))
    rows = decoder.decode(values)
    assert len(rows) + len(rows.invalid) == len(values)
    for tensor in rows.tensors.values():
        assert np.isfinite(tensor).all()
