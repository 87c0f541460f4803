from pathlib import Path

import pytest

from schemas.errors import InvalidSpec
from schemas.spec import FeatureSpec, ModelSpec, TensorSpec, builtin

BUILTINS = ("criteo", "avazu", "alimama", "tipping", "ad")


def parse(text: str) -> ModelSpec:
    return ModelSpec.parse(text.encode(), "spec.toml")


def custom(*features: str) -> ModelSpec:
    return parse('event = "custom"\nfeatures = [\n' + "".join(f"{{ {feature} }},\n" for feature in features) + "]\n")


@pytest.mark.parametrize("name", BUILTINS)
def test_builtin_specs_survive_being_written_and_read(name: str) -> None:
    spec = builtin(name)
    assert ModelSpec.parse(spec.dumps(), "written.toml") == spec


def test_tensors_of_the_builtin_specs() -> None:
    assert {name: builtin(name).tensors for name in BUILTINS} == {
        "criteo": (TensorSpec("dense", "float32", (13,)), TensorSpec("ids", "int32", (26,))),
        "avazu": (TensorSpec("ids", "int32", (22,)),),
        "alimama": (
            TensorSpec("hist_cate", "int32", (50,)),
            TensorSpec("hist_brand", "int32", (50,)),
            TensorSpec("hist_btag", "int32", (50,)),
            TensorSpec("cate", "int32", (1,)),
            TensorSpec("brand", "int32", (1,)),
            TensorSpec("profile", "int32", (13,)),
            TensorSpec("dense", "float32", (1,)),
        ),
        "tipping": (TensorSpec("dense", "float32", (35,)), TensorSpec("ids", "int32", (4,))),
        "ad": (
            TensorSpec("dense", "float32", (13,)),
            TensorSpec("ids", "int32", (29,)),
            TensorSpec("hist", "int32", (50,)),
        ),
    }


def test_history_and_ad_share_their_indices_in_alimama() -> None:
    by_name = {feature.name: feature for feature in builtin("alimama").features}
    for history, own in (("hist_cate", "cate"), ("hist_brand", "brand")):
        assert by_name[history].namespace == by_name[own].namespace
        assert by_name[history].buckets == by_name[own].buckets


def test_names_dtypes_and_cardinality_have_defaults() -> None:
    number, word, ids, hashed = custom(
        'name = "a"', 'name = "b", vocabulary = ["x", 7]', 'name = "c", ids = 5', 'name = "d", buckets = 9'
    ).features
    assert (number.field, number.tensor, number.dtype, number.cardinality) == ("a", "a", "float32", None)
    assert (word.dtype, word.cardinality) == ("int32", 3)
    assert (ids.dtype, ids.cardinality) == ("int32", 5)
    assert (hashed.namespace, hashed.cardinality) == ("d", 9)


def test_a_feature_of_rank_two_keeps_its_shape_and_scalars_are_joined() -> None:
    spec = custom(
        'name = "image", shape = [2, 3]',
        'name = "a", tensor = "t"',
        'name = "v", tensor = "t", shape = [4]',
        'name = "b", tensor = "t"',
    )
    assert spec.tensors == (TensorSpec("image", "float32", (2, 3)), TensorSpec("t", "float32", (6,)))


def test_json_and_toml_give_the_same_spec(tmp_path: Path) -> None:
    toml, json = tmp_path / "spec.toml", tmp_path / "spec.json"
    toml.write_text('event = "custom"\nkey = "id"\nfeatures = [{ name = "a", default = 1.5 }]\n')
    json.write_text('{"event": "custom", "key": "id", "features": [{"name": "a", "default": 1.5}]}')
    assert ModelSpec.load(toml) == ModelSpec.load(json)


def test_strange_names_survive_being_written_and_read() -> None:
    name = 'ü "q"\n\x7f \U0001f381\\'
    spec = ModelSpec(event="custom", key="ключ", features=(FeatureSpec(name=name, default=1e-07),))
    assert ModelSpec.parse(spec.dumps(), "x") == spec


@pytest.mark.parametrize(
    ("feature", "key", "problem", "remedy"),
    [
        ("", "features[0].name", "is missing", "keys here are name, field"),
        ('name = ""', "features", "no name", "give each feature a name"),
        ('name = "a", colour = 1', "features.a.colour", "not a key", "keys here are name, field"),
        ('name = "a", shape = "x"', "features.a.shape", "expected `array`", "type"),
        ('name = "a", dtype = "float64"', "features.a.dtype", "float64", "float32, int32, int64"),
        ('name = "a", encoding = "csv"', "features.a.encoding", "csv", "list, raw"),
        ('name = "a", shape = [0]', "features.a.shape", "below 1", "from 1 up"),
        ('name = "a", shape = [2000000]', "features", "2000000 elements", "at most 1048576"),
        ('name = "a", buckets = 1', "features.a.buckets", "1 is not in", "at least 2"),
        ('name = "a", buckets = 9999999999', "features.a.buckets", "not in", "at least 2"),
        ('name = "a", buckets = 5, ids = 5', "features.a.ids", "beside buckets", "keep one"),
        ('name = "a", ids = 0', "features.a.ids", "do not fit", "at least 1"),
        ('name = "a", ids = 3000000000', "features.a.ids", "do not fit int32", "at least 1"),
        ('name = "a", ids = 5, dtype = "float32"', "features.a.dtype", "float32", "int32 or int64"),
        ('name = "a", ids = 5, min = 1', "features.a.min", "no range", "remove"),
        ('name = "a", vocabulary = []', "features.a.vocabulary", "empty", "list"),
        ('name = "a", vocabulary = ["x", "x"]', "features.a.vocabulary", "'x' stands in it twice", "once"),
        ('name = "a", vocabulary = [1, "1"]', "features.a.vocabulary", "'1' stands in it twice", "once"),
        ('name = "a", unknown = "refuse"', "features.a.unknown", "no vocabulary", "remove"),
        ('name = "a", namespace = "b"', "features.a.namespace", "only buckets", "remove"),
        ('name = "a", required = true', "features.a.required", "buckets", "remove"),
        ('name = "a", min = 2, max = 1', "features.a.min", "2 is above max = 1", "exchange"),
        ('name = "a", max = nan', "features.a.max", "not finite", "finite"),
        ('name = "a", dtype = "int32", max = 1.5', "features.a.max", "1.5 is not an integer", "integer"),
        ('name = "a", default = 5, max = 4', "features.a.default", "5 is outside", "accepts"),
        ('name = "a", default = nan', "features.a.default", "nan is outside", "accepts"),
        ('name = "a", default = 1e39', "features.a.default", "1e+39 is outside", "accepts"),
        ('name = "a", default = "x"', "features.a.default", "'x' is not a number", "number"),
        ('name = "a", default = true', "features.a.default", "bool", "type"),
        ('name = "a", dtype = "int32", default = 3000000000', "features.a.default", "outside", "accepts"),
        ('name = "a", dtype = "int32", default = 1.0', "features.a.default", "1.0 is not an integer", "integer"),
        ('name = "a", ids = 5, default = 5', "features.a.default", "5 is outside [0, 4]", "accepts"),
        ('name = "a", shape = [3], default = [1, 2]', "features.a.default", "2 elements", "3 for the shape"),
        (
            'name = "a", vocabulary = ["x"], unknown = "refuse", default = "y"',
            "features.a.default",
            "'y' is not in the vocabulary",
            "known value",
        ),
        ('name = "a", default = [1]', "features.a.default", "1 elements", "one value"),
        (
            'name = "a", encoding = "raw", shape = [2], buckets = 9, default = "x", dtype = "int32"',
            "features.a.default",
            "'x' is not a number",
            "number",
        ),
        (
            'name = "a", encoding = "raw", shape = [2], buckets = 9',
            "features.a.required",
            "no elements",
            "required, pad or a default",
        ),
        ('name = "a", encoding = "raw"', "features.a.encoding", "scalar", "shape"),
        (
            'name = "a", encoding = "raw", shape = [2], vocabulary = ["x"]',
            "features.a.encoding",
            "vocabulary",
            "ids or buckets",
        ),
        ('name = "a", pad = true', "features.a.pad", "shape is []", "one size"),
    ],
)
def test_a_wrong_feature_is_named_with_its_key_and_a_remedy(feature: str, key: str, problem: str, remedy: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        custom(feature)
    assert caught.value.source == "spec.toml"
    assert caught.value.key == key
    assert problem in caught.value.problem
    assert remedy in caught.value.remedy


@pytest.mark.parametrize(
    ("features", "key", "problem"),
    [
        (('name = "a"', 'name = "a"'), "features.a", "used twice"),
        (
            ('name = "a", tensor = "t"', 'name = "b", tensor = "t", ids = 3'),
            "features.b.dtype",
            "tensor 't' is float32",
        ),
        (
            ('name = "a", tensor = "t", shape = [2, 2]', 'name = "b", tensor = "t"'),
            "features.a.tensor",
            "joins a shape of rank 2",
        ),
        (
            ('name = "a", field = "x"', 'name = "b", field = "x", buckets = 9'),
            "features.b.field",
            "read in another way",
        ),
        (
            ('name = "a", field = "x"', 'name = "b", field = "x", default = 1'),
            "features.b.field",
            "read in another way",
        ),
    ],
)
def test_features_that_contradict_each_other(features: tuple[str, ...], key: str, problem: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        custom(*features)
    assert caught.value.key == key
    assert problem in caught.value.problem


@pytest.mark.parametrize(
    ("text", "key", "problem"),
    [
        ("a =", "file", "not valid TOML"),
        ('{"event":', "file", "not valid JSON"),
        ('event = "custom"', "features", "is missing"),
        ('event = "custom"\nfeatures = []', "features", "is empty"),
        ('event = "clicks"\nfeatures = []', "event", "clicks"),
        ('event = "custom"\ncolour = 1\nfeatures = []', "colour", "not a key"),
        ('event = "custom"\nkey = "a"\ntime = "a"\nfeatures = [{ name = "b" }]', "key", "same field"),
        ('event = "custom"\nkey = ""\nfeatures = [{ name = "b" }]', "key", "empty"),
        ('event = "tipping"\nkey = "a"\nfeatures = [{ name = "price" }]', "key", "has its own"),
        ('event = "ad"\nlayout = "array"\nfeatures = [{ name = "ad_id", ids = 9 }]', "layout", "has its own"),
        ('event = "ad"\nfeatures = [{ name = "price" }]', "features.price.field", "no field 'price'"),
        ('event = "ad"\nfeatures = [{ name = "numeric", shape = [3] }]', "features.numeric.field", "raw float32"),
        ('event = "ad"\nfeatures = [{ name = "ad_id", shape = [3] }]', "features.ad_id.shape", "scalar"),
        ('event = "ad"\nfeatures = [{ name = "request_id" }]', "features.request_id.field", "is the key"),
        ('event = "tipping"\nfeatures = [{ name = "price", dtype = "int32" }]', "features.price.dtype", "float"),
    ],
)
def test_a_wrong_spec_is_named_with_its_key(text: str, key: str, problem: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        parse(text)
    assert caught.value.key == key
    assert problem in caught.value.problem
    assert str(caught.value).startswith("spec.toml: ")


def test_a_spec_that_is_not_utf8_is_an_invalid_spec() -> None:
    with pytest.raises(InvalidSpec, match="not valid TOML"):
        ModelSpec.parse(b'event = "\xff"', "spec.toml")


def test_a_missing_file_and_an_unknown_builtin_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match=r"spec\.toml: file: cannot be read"):
        ModelSpec.load(tmp_path / "spec.toml")
    with pytest.raises(InvalidSpec, match="'kaggle'; use one of ad, alimama, avazu, criteo, tipping"):
        builtin("kaggle")
