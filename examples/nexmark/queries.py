# SPDX-License-Identifier: Apache-2.0
"""The queries of Nexmark as Penstock pipelines, and each one's answer over all events as SQL.

Each query takes the streams `bids`, `auctions` and `persons`, already with their watermarks, and gives a stream. The
rows of some are the newest of a key (`KEYS`): they are read as an upsert. Query 6 has a processor of its own, as it
needs the last ten rows of a key in an order. Query 12 is about processing time, so it has an invariant instead of an
answer.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import penstock

KEYS = {
    4: ["category"],
    9: ["id", "rank"],
    15: ["day"],
    16: ["channel", "day"],
    17: ["auction", "day"],
    18: ["bidder", "auction", "rank"],
    19: ["auction", "rank"],
}
"""The columns by which the newest row counts."""


def with_columns(stream, fields, compute):
    """The rows with more columns, which a function makes of each batch."""

    def widen(batches):
        for batch in batches:
            yield pa.record_batch([*batch.columns, *compute(batch)], names=[*batch.schema.names, *names])

    schema = pa.schema([*stream.schema, *fields])
    names = [field.name for field in schema][len(stream.schema) :]
    return stream.mapInArrow(widen, schema)


def q0(bids, **_):
    """Rows as they are."""
    return bids.select("auction", "bidder", "price", "ts")


def q1(bids, **_):
    """Prices in another currency."""
    return q0(bids).withColumn("price", pc.multiply(pc.field("price").cast("double"), 0.908))


def q2(bids, **_):
    """Bids for some of the auctions."""
    number = pc.field("auction")
    multiple = pc.equal(pc.subtract(number, pc.multiply(pc.divide(number, 123), 123)), 0)
    return bids.filter(multiple).select("auction", "price")


def q3(auctions, persons, **_):
    """Sellers of a category, in three states."""
    chosen = persons.filter(pc.is_in(pc.field("state"), pa.array(["OR", "ID", "CA"]))).select(
        "id", "name", "city", "state"
    )
    items = auctions.filter(pc.equal(pc.field("category"), 10)).select("id", "seller")
    joined = items.keyBy("seller").join(chosen.withColumnRenamed("id", "seller").keyBy("seller"))
    return joined.select("name", "city", "state", "id")


def winners(bids, auctions):
    """The highest price of each auction, once it has ended."""
    offers = bids.select("auction", "price", "ts").withColumnsRenamed({"auction": "id", "ts": "bid_ts"})
    items = auctions.select("id", "ts", "expires", "seller", "category")
    joined = items.keyBy("id").join(offers.keyBy("id"), between=("ts", "bid_ts", "0 seconds", "20 seconds"))
    valid = joined.filter(pc.less_equal(pc.field("bid_ts"), pc.field("expires")))
    # Its time is the same in all of its rows, so the window is its own. The watermark behind the join is less by the
    # bound: the window is whole when the last bid has come that may meet the auction.
    own = penstock.window("ts", "1 millisecond")
    return valid.keyBy("id", "seller", "category", "expires", own).agg(final=("price", "max"))


def q4(bids, auctions, **_):
    """The mean of winning prices by category."""
    return winners(bids, auctions).keyBy("category").agg(mean=("final", "avg"))


def q5(bids, **_):
    """The auctions with most bids of the last ten seconds, each two seconds."""
    counts = bids.keyBy("auction", penstock.window("ts", "10 seconds", "2 seconds")).agg(n=("*", "count"))
    most = counts.keyBy("window").agg(n=("n", "max")).withColumnRenamed("window", "of")
    same = ("window", "of", "0 seconds", "0 seconds")
    return counts.keyBy("n").join(most.keyBy("n"), between=same).select("auction", "n", "window")


class LastTen(penstock.BatchProcessor):
    """The mean price of each seller's last ten auctions, in the order in which they ended, at the end of each."""

    def init(self, handle):
        """The auctions whose time has not come, and the last nine before them."""
        self.handle = handle
        self.waiting = handle.getListState("waiting", "expires timestamp, id long, final long")
        self.last = handle.getListState("last", "final long")

    def handleBatch(self, keys, rows, timerValues):
        """Have them wait: auctions of other tasks may have ended before."""
        expires = rows["expires"]
        self.waiting.append(keys, keys.groups, {"expires": expires, "id": rows["id"], "final": rows["final"]})
        milliseconds = pc.add(pc.divide(expires.cast(pa.int64()), 1000), 1)
        self.handle.registerTimers(keys, keys.groups, milliseconds)

    def handleExpiredTimers(self, keys, expiryTimesInMs, timerValues):
        """All auctions that ended by these times have come."""
        until = np.zeros(len(keys), np.int64)
        np.maximum.at(until, keys.groups, expiryTimesInMs.to_numpy())
        owners, rows = self.waiting.get(keys)
        is_due = rows["expires"].cast(pa.int64()).to_numpy() < until[owners] * 1000
        self.waiting.put(keys, owners[~is_due], rows.filter(pa.array(~is_due)))
        owners, rows = owners[is_due], rows.filter(pa.array(is_due))
        order = np.lexsort((rows["id"].to_numpy(), rows["expires"].cast(pa.int64()).to_numpy(), owners))
        before = self.last.get(keys)
        groups = np.concatenate([before.groups, owners[order]])
        prices = np.concatenate([before.rows["final"].to_numpy(), rows["final"].to_numpy()[order]])
        is_new = np.arange(len(groups)) >= len(before.groups)
        by_key = np.argsort(groups, kind="stable")
        groups, prices, is_new = groups[by_key], prices[by_key], is_new[by_key]
        firsts = np.searchsorted(groups, groups)
        places = np.arange(len(groups))
        sums = np.concatenate([[0], np.cumsum(prices)])
        begin = np.maximum(firsts, places - 9)
        means = (sums[places + 1] - sums[begin]) / (places + 1 - begin)
        kept = places >= np.searchsorted(groups, groups, "right") - 9
        self.last.put(keys, groups[kept], {"final": prices[kept]})
        sellers = keys.table["seller"].take(pa.array(groups[is_new]))
        ids = rows["id"].take(pa.array(order))
        return pa.record_batch([sellers, ids, pa.array(means[is_new])], names=["seller", "id", "mean"])


def q6(bids, auctions, **_):
    """The mean price of the last ten auctions of each seller, as each one ends."""
    sold = winners(bids, auctions).keyBy("seller")
    return sold.transformWithStateInArrow(LastTen(), "seller long, id long, mean double", timeMode="EventTime")


def q7(bids, **_):
    """The bids with the highest price of each ten seconds."""
    most = bids.keyBy(penstock.window("ts", "10 seconds")).agg(price=("price", "max"))
    offers = bids.select("auction", "price", "bidder", "ts")
    within = ("ts", "window", "0 seconds", "10 seconds")
    joined = offers.keyBy("price").join(most.keyBy("price"), between=within)
    inside = pc.greater_equal(pc.field("ts"), pc.field("window", "start"))
    return joined.filter(inside).select("auction", "price", "bidder", "ts")


def q8(auctions, persons, **_):
    """Persons who sell something within ten seconds of their arrival."""
    ten = "10 seconds"
    new = persons.keyBy("id", "name", penstock.window("ts", ten)).agg(n=("*", "count")).select("id", "name", "window")
    sold = auctions.keyBy("seller", penstock.window("ts", ten).alias("w")).agg(n=("*", "count")).select("seller", "w")
    same = ("window", "w", "0 seconds", "0 seconds")
    joined = new.keyBy("id").join(sold.keyBy("seller"), on=[("id", "seller")], between=same)
    return joined.select("id", "name", "window")


def q9(bids, auctions, **_):
    """The winning bid of each auction."""
    offers = bids.select("auction", "bidder", "price", "ts").withColumnsRenamed({"auction": "id", "ts": "bid_ts"})
    items = auctions.select("id", "ts", "expires", "seller")
    joined = items.keyBy("id").join(offers.keyBy("id"), between=("ts", "bid_ts", "0 seconds", "20 seconds"))
    valid = joined.filter(pc.less_equal(pc.field("bid_ts"), pc.field("expires")))
    best = valid.keyBy("id").top(1, "price", "bid_ts", "bidder", ascending=[False, True, True])
    return best.select("id", "seller", "bidder", "price", "bid_ts", "rank")


def q10(bids, **_):
    """All bids with their day and their minute as texts, for files."""
    made = with_columns(
        bids.select("auction", "bidder", "price", "ts"),
        [("day", pa.string()), ("minute", pa.string())],
        lambda batch: [pc.strftime(batch["ts"], "%Y-%m-%d"), pc.strftime(batch["ts"], "%H:%M")],
    )
    return made.select("auction", "bidder", "price", "day", "minute")


def q11(bids, **_):
    """The bids of each sitting of a bidder."""
    return bids.keyBy("bidder", penstock.session_window("ts", "10 seconds")).agg(n=("*", "count"))


def q12(bids, **_):
    """The bids of each bidder in ten seconds of processing time."""

    def arrived(batch):
        import time

        now = int(time.time() * 1_000_000)
        return [pa.array(np.full(batch.num_rows, now)).cast(TIME)]

    timed = with_columns(bids.select("bidder"), [("arrived", TIME)], arrived).withWatermark("arrived", "0 seconds")
    return timed.keyBy("bidder", penstock.window("arrived", "10 seconds")).agg(n=("*", "count"))


def q13(bids, **_):
    """Bids with a value of a table that does not change."""

    class LookUp:
        def __init__(self):
            self.values = pa.array([f"value {key}" for key in range(10_000)])

        def __call__(self, batches):
            for batch in batches:
                auctions = batch["auction"]
                keys = pc.subtract(auctions, pc.multiply(pc.divide(auctions, 10_000), 10_000))
                yield pa.record_batch(
                    [auctions, batch["price"], self.values.take(keys)], names=["auction", "price", "value"]
                )

    return bids.mapInArrow(LookUp, "auction long, price long, value string")


def q14(bids, **_):
    """Prices in a range, with a word for the time of day and how often a letter occurs."""

    def compute(batch):
        hours = pc.hour(batch["ts"])
        day = pc.and_(pc.greater_equal(hours, 8), pc.less_equal(hours, 18))
        night = pc.or_(pc.less_equal(hours, 6), pc.greater_equal(hours, 20))
        words = pc.case_when(pc.make_struct(day, night), "dayTime", "nightTime", "otherTime")
        return [words, pc.count_substring(batch["extra"], "c").cast(pa.int64())]

    inner = bids.withColumn("price", pc.multiply(pc.field("price").cast("double"), 0.908))
    inner = inner.filter(pc.greater(pc.field("price"), 1e6) & pc.less(pc.field("price"), 5e7))
    made = with_columns(inner, [("kind", pa.string()), ("letters", pa.int64())], compute)
    return made.select("auction", "bidder", "price", "kind", "letters")


def ranked(bids):
    """Bids with their day, and per range of prices the price, the bidder and the auction, or null."""
    fields = [pa.field("day", pa.string())]
    fields += [pa.field(f"{name}{rank}", pa.int64()) for rank in (1, 2, 3) for name in ("price", "bidder", "auction")]

    def compute(batch):
        price = batch["price"]
        low, high = pc.less(price, 10_000), pc.greater_equal(price, 1_000_000)
        made = [pc.strftime(batch["ts"], "%Y-%m-%d")]
        for chosen in (low, pc.invert(pc.or_(low, high)), high):
            made += [
                pc.if_else(chosen, batch[name], pa.scalar(None, pa.int64()))
                for name in ("price", "bidder", "auction")
            ]
        return made

    return with_columns(bids, fields, compute)


NOTHING = pa.scalar(None, pa.int64())
RANKS = {f"rank{rank}": (f"price{rank}", "count") for rank in (1, 2, 3)}
DISTINCT = {
    "bidders": ("bidder", "count_distinct"),
    **{f"bidders{rank}": (f"bidder{rank}", "count_distinct") for rank in (1, 2, 3)},
    "auctions": ("auction", "count_distinct"),
    **{f"auctions{rank}": (f"auction{rank}", "count_distinct") for rank in (1, 2, 3)},
}


def q15(bids, **_):
    """Bids, bidders and auctions of each day, by ranges of prices."""
    return ranked(bids).keyBy("day").agg(total=("*", "count"), **RANKS, **DISTINCT)


def q16(bids, **_):
    """The same for each channel."""
    return ranked(bids).keyBy("channel", "day").agg(total=("*", "count"), **RANKS, **DISTINCT)


def q17(bids, **_):
    """Bids and prices of each auction and day."""
    prices = {
        name: ("price", function)
        for name, function in (("least", "min"), ("most", "max"), ("mean", "avg"), ("s", "sum"))
    }
    return ranked(bids).keyBy("auction", "day").agg(total=("*", "count"), **RANKS, **prices)


def q18(bids, **_):
    """The last bid of each bidder for each auction."""
    return bids.select("auction", "bidder", "price", "ts").keyBy("bidder", "auction").top(1, "ts", "price")


def q19(bids, **_):
    """The ten highest prices of each auction."""
    return bids.select("auction", "price").keyBy("auction").top(10, "price")


def q20(bids, auctions, **_):
    """Bids with their auction, of one category."""
    items = auctions.filter(pc.equal(pc.field("category"), 10)).select("id", "item", "seller")
    offers = bids.select("auction", "bidder", "price")
    return offers.keyBy("auction").join(items.keyBy("id"), on=[("auction", "id")])


def q21(bids, **_):
    """The number of each bid's channel, out of its name or its address."""
    known = {"apple": "0", "google": "1", "facebook": "2", "baidu": "3"}

    def compute(batch):
        name = pc.utf8_lower(batch["channel"])
        place = pc.index_in(name, value_set=pa.array(list(known)))
        found = pc.struct_field(pc.extract_regex(batch["url"], r"(?:&|\?)channel_id=(?P<id>[^&]*)"), "id")
        return [pc.coalesce(pa.array(list(known.values())).take(place), found)]

    made = with_columns(bids, [("channel_id", pa.string())], compute)
    return made.filter(pc.is_valid(pc.field("channel_id"))).select(
        "auction", "bidder", "price", "channel", "channel_id"
    )


def q22(bids, **_):
    """The directories of each bid's address."""

    def compute(batch):
        parts = pc.split_pattern(batch["url"], "/")
        return [pc.list_element(parts, place) for place in (3, 4, 5)]

    made = with_columns(bids, [(f"dir{number}", pa.string()) for number in (1, 2, 3)], compute)
    return made.select("auction", "bidder", "price", "channel", "dir1", "dir2", "dir3")


TIME = pa.timestamp("us", "UTC")
QUERIES = {int(name[1:]): made for name, made in list(globals().items()) if name[0] == "q" and name[1:].isdigit()}
