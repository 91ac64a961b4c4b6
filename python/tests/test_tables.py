"""Protects tables: labels become indices, whatever holds the table, as they do in ``blco-pack``; they are found again in stores and models."""

import os

import numpy as np
import pytest

import blco

pandas = pytest.importorskip("pandas")
pyarrow = pytest.importorskip("pyarrow")
pytest.importorskip("pyarrow.feather")
pytest.importorskip("pyarrow.parquet")

ROWS = 3000


@pytest.fixture
def frame():
    rng = np.random.default_rng(3)
    return pandas.DataFrame(
        {
            "user": rng.integers(5, 90, ROWS),
            "the, title": rng.choice(["Heat", "Up, up & away", "été", ""], ROWS),
            "time": pandas.to_datetime(rng.integers(1_600_000_000, 1_700_000_000, ROWS), unit="s"),
            "rating": rng.integers(1, 11, ROWS) / 2,
        }
    )


MODES = ["user", "the, title", ("time", "month")]


def pack(source, tmp_path, name="packed.blco", **options):
    return blco.pack(source, tmp_path / name, **{"modes": MODES, "value": "rating", **options})


def summed(frame, rule="sum"):
    """What pandas makes of the table."""
    keys = [frame["user"], frame["the, title"], frame["time"].dt.strftime("%Y-%m")]
    return frame["rating"].groupby(keys).agg(rule)


def rows(store):
    """What is in a store, by its labels."""
    part = store.to_coo()
    users, titles, months = store.labels
    return {(int(users[i]), titles[j], months[k]): value for (i, j, k), value in zip(part.coords.tolist(), part.values.tolist())}


def test_a_frame_becomes_a_tensor_with_labels(frame, tmp_path):
    store = pack(frame, tmp_path)
    assert store.mode_names == ("user", "the, title", "time")
    users, titles, months = store.labels
    assert users == [str(user) for user in sorted(set(frame["user"]))]
    assert titles == sorted(set(frame["the, title"]), key=str.encode)
    first, last = frame["time"].min(), frame["time"].max()
    assert months == [str(month) for month in pandas.period_range(first, last, freq="M")]
    assert rows(store) == pytest.approx(summed(frame).to_dict())


@pytest.mark.parametrize("rule", ["sum", "mean", "min", "max", "count"])
def test_duplicates_are_those_of_pandas(frame, tmp_path, rule):
    store = pack(frame, tmp_path, duplicates=rule)
    assert rows(store) == pytest.approx(summed(frame, rule).to_dict(), rel=1e-12)


def test_duplicates_are_kept_or_refused(frame, tmp_path):
    assert pack(frame, tmp_path, duplicates="keep").nnz == ROWS > len(summed(frame))
    with pytest.raises(ValueError, match="occurs more than once"):
        pack(frame, tmp_path, "wrong.blco", duplicates="error")


ODD = ["", " ", '"', "a,b", "a\nb", "a\r\nb", '""quoted""', "\U0001f3ac\U0001f37f", "tab\tbed", "null", "NA", "é" * (32 << 10)]


def test_odd_labels_come_through_every_table(tmp_path):
    frame = pandas.DataFrame({"user": np.arange(len(ODD) * 3) % 7, "title": ODD * 3, "x": np.arange(len(ODD) * 3) + 0.5})
    table = pyarrow.Table.from_pandas(frame, preserve_index=False)
    frame.to_csv(tmp_path / "t.csv", index=False, quoting=1)
    frame.to_csv(tmp_path / "t.tsv", index=False, quoting=1, sep="\t", lineterminator="\r\n")
    frame.to_parquet(tmp_path / "t.parquet", compression="zstd")
    pyarrow.parquet.write_table(table, tmp_path / "plain.parquet", use_dictionary=False, data_page_size=100, row_group_size=5)
    pyarrow.feather.write_feather(table, tmp_path / "t.arrow")
    with pyarrow.ipc.new_stream(tmp_path / "t.arrows", table.schema) as stream:
        stream.write_table(table, max_chunksize=4)
    sources = [frame, table, *sorted(tmp_path.iterdir())]
    assert len(sources) == 8
    stores = [pack(source, tmp_path, f"{n}.blco", modes=["user", "title"], value="x") for n, source in enumerate(sources)]
    assert len({store.stats["digest"] for store in stores}) == 1
    for store in stores:
        assert store.labels[1] == sorted(ODD, key=str.encode)
        part, (users, titles) = store.to_coo(), store.labels
        found = {(int(users[i]), titles[j]): x for (i, j), x in zip(part.coords.tolist(), part.values.tolist())}
        assert found == frame.groupby(["user", "title"])["x"].sum().to_dict()


BINS = {
    "year": "%Y",
    "month": "%Y-%m",
    "week": "%G-W%V",
    "day": "%Y-%m-%d",
    "hour-of-day": "%H",
    "day-of-week": "%a",
    "month-of-year": "%b",
    "hour": "%Y-%m-%dT%H",
    "minute": "%Y-%m-%dT%H:%M",
}


@pytest.mark.parametrize(
    "zone", ["UTC", "Europe/Zurich", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "America/St_Johns"]
)
def test_bins_of_time_are_those_of_pandas(zone, tmp_path):
    """From 1874 to 2096, every change of clocks of 2024, leap days, the last days before 1970; from numbers, dates and text."""
    rng = np.random.default_rng(5)
    day = 86_400
    leap_days = pandas.to_datetime(["1904-02-29", "1968-02-29", "2000-02-29", "2024-02-29"]).astype("datetime64[s]").astype("int64")
    near = np.concatenate([np.arange(first - day, first + 2 * day, 1237) for first in [0, *leap_days]])
    wide = np.concatenate([rng.integers(-3_000_000_000, 4_000_000_000, 500), near])
    hours = pandas.date_range("2024-01-01", "2024-12-31", freq="10min").astype("datetime64[s]").astype("int64")
    offsets = pandas.to_datetime(hours, unit="s", utc=True).tz_convert(zone)
    offsets = np.array([stamp.utcoffset().total_seconds() for stamp in offsets])
    changes = np.asarray(hours)[1:][np.diff(offsets) != 0]
    assert len(changes) == (0 if zone in ("UTC", "Asia/Kolkata") else 2)
    narrow = [np.arange(first - 2 * day, first + 2 * day, 997) for first in [0, *changes]]
    for name, written in BINS.items():
        for seconds in narrow if name in ("hour", "minute") else [np.concatenate([wide, *narrow])]:
            # Four digits alone are a year, and eight a date.
            seconds = seconds[~np.isin(np.char.str_len(seconds.astype(str)), (4, 8)) | (seconds < 0)]
            stamps = pandas.to_datetime(seconds, unit="s", utc=True)
            wanted = list(stamps.tz_convert(zone).strftime(written))
            rows = np.arange(len(seconds))
            for at in seconds, stamps, stamps.strftime("%Y-%m-%dT%H:%M:%SZ"):
                table = pandas.DataFrame({"row": rows, "at": at})
                store = blco.pack(table, tmp_path / "t.blco", modes=["row", ("at", name)], timezone=zone, replace=True)
                rows_of, bins = store.labels
                found = {int(rows_of[i]): bins[j] for i, j in store.to_coo().coords.tolist()}
                assert [found[row] for row in rows] == wanted, name


def test_all_tables_give_the_same_bytes(frame, tmp_path):
    table = pyarrow.Table.from_pandas(frame)
    frame.to_parquet(tmp_path / "t.parquet")
    frame.to_csv(tmp_path / "t.csv", index=False, quoting=1)
    sources = [frame, table, table.to_reader(max_chunksize=70), tmp_path / "t.parquet", str(tmp_path / "t.csv")]
    sources.append(frame.astype({"the, title": "category", "user": "int16", "rating": "float32"}))
    try:
        import polars

        sources.append(polars.from_arrow(table))
    except ImportError:
        pass
    stores = [pack(source, tmp_path, f"{number}.blco") for number, source in enumerate(sources)]
    assert len({store.stats["digest"] for store in stores}) == 1
    assert all(store.labels == stores[0].labels for store in stores)


def test_labels_are_indices(frame, tmp_path):
    store = pack(frame, tmp_path)
    wanted = summed(frame)
    (user, title, month), value = next(iter(wanted.to_dict().items()))
    assert store[str(user), title, month] == pytest.approx(value)
    users = store.labels[0]
    part = store[users[2] : users[5], title]
    assert part.shape == (4, len(store.labels[2])) and part.values.sum() == pytest.approx(
        sum(v for (u, t, _), v in wanted.items() if t == title and users.index(str(u)) in range(2, 6))
    )
    with pytest.raises(KeyError, match="is no label of mode 1"):
        store[:, "Cold"]
    factors = [np.ones((dim, 2)) for dim in store.shape]
    assert np.array_equal(store.mttkrp(factors, "the, title"), store.mttkrp(factors, 1))
    with pytest.raises(ValueError, match="there are user, the, title, time"):
        store.mttkrp(factors, "film")


def test_models_have_the_labels(frame, tmp_path):
    store = pack(frame, tmp_path)
    model = store.cp(2, max_iters=5)
    assert model.labels == store.labels and model.mode_names == store.mode_names
    label, number = model.top(0, "the, title", 1)[0]
    column = model.factors[1][:, 0]
    assert label == store.labels[1][int(np.argmax(np.abs(column)))] and number in column
    assert "Up, up &amp; away" in model._repr_html_()
    model.save(tmp_path / "model.npz")
    again = blco.load(tmp_path / "model.npz")
    assert again.labels == model.labels and again.top(1, 2) == model.top(1, 2)


def test_nulls_and_what_does_not_serve(frame, tmp_path):
    frame.loc[[4, 9], "rating"] = np.nan
    frame.loc[11, "the, title"] = None
    with pytest.raises(ValueError, match="3 of 3000 rows are incomplete"):
        pack(frame, tmp_path)
    store = pack(frame, tmp_path, nulls="drop")
    assert store.report["rows_dropped"] == 3
    assert rows(store) == pytest.approx(summed(frame.dropna()).to_dict())
    for options, said in [
        ({"modes": ["user", "film"]}, 'no column "film"'),
        ({"modes": ["user", ("time", "fortnight")]}, "fortnight"),
        ({"value": "the, title"}, "is not a number"),
        ({"timezone": "Mars/Olympus"}, "Europe/Zurich"),
    ]:
        with pytest.raises(ValueError, match=said):
            pack(frame, tmp_path, "wrong.blco", nulls="drop", **options)
    assert not os.path.exists(tmp_path / "wrong.blco")
    with pytest.raises(FileNotFoundError):
        pack(tmp_path / "none.csv", tmp_path, "wrong.blco")
    nested = pyarrow.table({"user": [[1], [2]], "x": [1, 2]})
    with pytest.raises(ValueError, match="is nested"):
        pack(nested, tmp_path, "wrong.blco", modes=["user", "x"], value=None)


def test_new_rows_are_numbered_as_an_older_store_does(frame, tmp_path):
    older = pack(frame[:1500], tmp_path, "older.blco", modes=MODES[:2])
    newer = pack(frame, tmp_path, "newer.blco", modes=MODES[:2], labels_from=older.path)
    assert newer.labels[0][: len(older.labels[0])] == older.labels[0]
