"""Rows of the public samples, decoded to tensors that were worked out by hand (and a bitwise CRC)."""

import csv
from pathlib import Path

import numpy as np
import pytest

from schemas.decoder import Decoder
from schemas.encoder import Encoder
from schemas.rows import Rows
from schemas.samples import rows
from schemas.spec import builtin
from schemas.wire import Format
from tests.schemas.reference import bucket, crc32

DATA = Path(__file__).parent.parent / "data"
FORMATS: tuple[Format, ...] = ("msgpack", "json")


def decoded(name: str, file: str, format: Format) -> Rows:
    spec = builtin(name)
    encoder = Encoder(spec, format)
    result = Decoder(spec, format).decode([encoder.encode(row) for row in rows(DATA / file)])
    assert result.invalid == []
    return result


def test_reference_crc_has_the_published_check_value() -> None:
    assert crc32(b"123456789") == 0xCBF43926


@pytest.mark.parametrize("format", FORMATS)
def test_criteo(format: Format) -> None:
    result = decoded("criteo", "criteo_sample.txt", format)
    assert len(result) == 200
    dense, ids = result.tensors["dense"], result.tensors["ids"]
    assert (dense.dtype, dense.shape, ids.dtype, ids.shape) == (np.float32, (200, 13), np.int32, (200, 26))
    assert dense[0].tolist() == [0, 3, 260, 0, 17668, 0, 0, 33, 0, 0, 0, 0, 0]
    assert dense[1].tolist() == [0, -1, 19, 35, 30251, 247, 1, 35, 160, 0, 1, 0, 35]
    first = (
        "05db9164,08d6d899,9143c832,f56b7dd5,25c83c98,7e0ccccf,df5c2d18,0b153874,a73ee510,8f48ce11,a7b606c4,ae1bb660,"
        "eae197fd,b28479f6,bfef54b3,bad5ee18,e5ba7672,87c6f83c,,,0429f84b,,3a171ecb,c0d61a5c,,"
    ).split(",")
    expected = [bucket(f"C{i}", value, 1000) if value else 0 for i, value in enumerate(first, 1)]
    assert ids[0].tolist() == expected
    assert expected.count(0) == 5
    assert result.keys[0] is None and np.isnan(result.event_time_ms).all()


@pytest.mark.parametrize("format", FORMATS)
def test_avazu(format: Format) -> None:
    result = decoded("avazu", "avazu_sample.txt", format)
    ids = result.tensors["ids"]
    assert (ids.dtype, ids.shape) == (np.int32, (100, 22))
    assert result.keys[:2] == ["1000009418151094273", "10000169349117863715"]
    columns = (
        "hour,C1,banner_pos,site_id,site_domain,site_category,app_id,app_domain,app_category,device_id,device_ip,"
        "device_model,device_type,device_conn_type,C14,C15,C16,C17,C18,C19,C20,C21"
    ).split(",")
    first = (
        "14102100,1005,0,1fbe01fe,f3845767,28905ebd,ecad2386,7801e8d9,07d7df22,a99f214a,ddd2926e,44956a24,1,2,15706,"
        "320,50,1722,0,35,-1,79"
    ).split(",")
    assert ids[0].tolist() == [bucket(name, value, 1000) for name, value in zip(columns, first, strict=True)]


@pytest.mark.parametrize("format", FORMATS)
def test_alimama_sequences_are_padded_on_the_right(format: Format) -> None:
    result = decoded("alimama", "alimama_sample.csv", format)
    with (DATA / "alimama_sample.csv").open(newline="") as file:
        header, *lines = csv.reader(file)
    for tensor, column, namespace, buckets in (
        ("hist_cate", "his_cate", "cate", 1000),
        ("hist_brand", "his_brand", "brand", 1000),
        ("hist_btag", "cont_btag", "btag", 10),
    ):
        assert result.tensors[tensor].shape == (99, 50)
        for line, indices in zip(lines, result.tensors[tensor].tolist(), strict=True):
            mask = [cell for name, cell in zip(header, line, strict=True) if name == "mask"]
            cells = [cell for name, cell in zip(header, line, strict=True) if name == column]
            real = [bucket(namespace, cell, buckets) for cell, kept in zip(cells, mask, strict=True) if kept == "1"]
            assert indices == real + [0] * (50 - len(real))
    assert result.tensors["cate"][0].tolist() == [bucket("cate", "6426", 1000)]
    assert result.tensors["brand"][0].tolist() == [bucket("brand", "310886", 1000)]
    assert result.tensors["profile"][0, :3].tolist() == [
        bucket("uid", "1000017", 1000),
        bucket("cms_segid", "0", 1000),
        bucket("cms_group_id", "4", 1000),
    ]
    assert result.tensors["dense"][0, 0] == np.float32(0.998295616895959)


def test_an_ad_of_a_category_seen_before_has_the_index_of_the_history() -> None:
    result = decoded("alimama", "alimama_sample.csv", "json")
    # The first user looked at category 6426 before and is shown an ad of it.
    assert result.tensors["cate"][0, 0] in result.tensors["hist_cate"][0]
