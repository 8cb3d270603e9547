# SPDX-License-Identifier: Apache-2.0
"""The answers of Nexmark's queries over all events at once, as SQL for DuckDB: tables bids, auctions and persons.

Times are compared as microseconds since 1970, windows by their end.
"""

SETUP = """
CREATE MACRO window_end(ts, seconds) AS to_timestamp(floor(epoch(ts) / seconds) * seconds + seconds);
CREATE VIEW valid AS
SELECT a.*, b.bidder, b.price, b.ts AS bid_ts FROM auctions a JOIN bids b ON a.id = b.auction
WHERE b.ts BETWEEN a.ts AND a.expires;
CREATE VIEW ranked AS
SELECT *, strftime(ts, '%Y-%m-%d') AS day,
  CASE WHEN price < 10000 THEN 1 WHEN price < 1000000 THEN 2 ELSE 3 END AS range,
  CASE WHEN range = 1 THEN bidder END AS bidder1, CASE WHEN range = 1 THEN auction END AS auction1,
  CASE WHEN range = 2 THEN bidder END AS bidder2, CASE WHEN range = 2 THEN auction END AS auction2,
  CASE WHEN range = 3 THEN bidder END AS bidder3, CASE WHEN range = 3 THEN auction END AS auction3
FROM bids;
"""
"""The views of which the answers are made."""

ANSWERS = {
    0: "SELECT auction, bidder, price, ts FROM bids",
    1: "SELECT auction, bidder, price * 0.908::DOUBLE AS price, ts FROM bids",
    2: "SELECT auction, price FROM bids WHERE auction % 123 = 0",
    3: """SELECT name, city, state, a.id FROM auctions a JOIN persons p ON a.seller = p.id
          WHERE category = 10 AND state IN ('OR', 'ID', 'CA')""",
    4: """SELECT category, avg(final) AS mean
           FROM (SELECT id, category, max(price) AS final FROM valid GROUP BY ALL) GROUP BY category""",
    5: """WITH counts AS (
             SELECT auction, count(*) AS n, w FROM (
               SELECT auction, to_timestamp(floor(epoch(ts) / 2) * 2 + 2 + 2 * unnest(range(5))) AS w FROM bids)
             GROUP BY ALL)
           SELECT auction, n, w AS "window" FROM counts QUALIFY n = max(n) OVER (PARTITION BY w)""",
    6: """SELECT seller, id, avg(final) OVER (
             PARTITION BY seller ORDER BY expires, id ROWS BETWEEN 9 PRECEDING AND CURRENT ROW) AS mean
           FROM (SELECT id, seller, expires, max(price) AS final FROM valid GROUP BY ALL)""",
    7: """SELECT auction, price, bidder, ts FROM bids
           QUALIFY price = max(price) OVER (PARTITION BY window_end(ts, 10))""",
    8: """SELECT DISTINCT p.id, name, window_end(p.ts, 10) AS "window" FROM persons p JOIN auctions a
           ON p.id = a.seller AND window_end(p.ts, 10) = window_end(a.ts, 10)""",
    9: """SELECT id, seller, bidder, price, bid_ts, 1 AS rank FROM valid
           QUALIFY row_number() OVER (PARTITION BY id ORDER BY price DESC, bid_ts, bidder) = 1""",
    10: "SELECT auction, bidder, price, strftime(ts, '%Y-%m-%d') AS day, strftime(ts, '%H:%M') AS minute FROM bids",
    11: """WITH marked AS (
             SELECT bidder, ts, coalesce(epoch_us(ts) - epoch_us(lag(ts) OVER w) > 10000000, true)::INT AS new
             FROM bids WINDOW w AS (PARTITION BY bidder ORDER BY ts)),
           numbered AS (
             SELECT bidder, ts, sum(new) OVER (PARTITION BY bidder ORDER BY ts ROWS UNBOUNDED PRECEDING) AS s
             FROM marked)
           SELECT bidder, max(ts) + INTERVAL 10 SECOND AS session_window, count(*) AS n FROM numbered
           GROUP BY bidder, s""",
    13: "SELECT auction, price, 'value ' || (auction % 10000) AS value FROM bids",
    14: """SELECT auction, bidder, price * 0.908::DOUBLE AS price,
             CASE WHEN hour(ts) BETWEEN 8 AND 18 THEN 'dayTime' WHEN hour(ts) <= 6 OR hour(ts) >= 20 THEN 'nightTime'
             ELSE 'otherTime' END AS kind, length(extra) - length(replace(extra, 'c', '')) AS letters
           FROM bids WHERE price * 0.908::DOUBLE > 1e6 AND price * 0.908::DOUBLE < 5e7""",
    15: """SELECT day, count(*) AS total, count(bidder1) AS rank1, count(bidder2) AS rank2, count(bidder3) AS rank3,
             count(DISTINCT bidder) AS bidders, count(DISTINCT bidder1) AS bidders1,
             count(DISTINCT bidder2) AS bidders2, count(DISTINCT bidder3) AS bidders3,
             count(DISTINCT auction) AS auctions,
             count(DISTINCT auction1) AS auctions1, count(DISTINCT auction2) AS auctions2,
             count(DISTINCT auction3) AS auctions3
           FROM ranked GROUP BY ALL""",
    16: """SELECT channel, day, count(*) AS total,
             count(bidder1) AS rank1, count(bidder2) AS rank2, count(bidder3) AS rank3,
             count(DISTINCT bidder) AS bidders, count(DISTINCT bidder1) AS bidders1,
             count(DISTINCT bidder2) AS bidders2, count(DISTINCT bidder3) AS bidders3,
             count(DISTINCT auction) AS auctions,
             count(DISTINCT auction1) AS auctions1, count(DISTINCT auction2) AS auctions2,
             count(DISTINCT auction3) AS auctions3
           FROM ranked GROUP BY ALL""",
    17: """SELECT auction, day, count(*) AS total,
             count(bidder1) AS rank1, count(bidder2) AS rank2, count(bidder3) AS rank3,
             min(price) AS least, max(price) AS most, avg(price) AS mean, sum(price)::BIGINT AS s
           FROM ranked GROUP BY ALL""",
    18: """SELECT auction, bidder, price, ts, 1 AS rank FROM bids
           QUALIFY row_number() OVER (PARTITION BY bidder, auction ORDER BY ts DESC, price DESC) = 1""",
    19: """SELECT auction, price, row_number() OVER (PARTITION BY auction ORDER BY price DESC) AS rank FROM bids
           QUALIFY rank <= 10""",
    20: """SELECT auction, bidder, price, item, seller FROM bids JOIN auctions ON auction = id WHERE category = 10""",
    21: """SELECT auction, bidder, price, channel, channel_id FROM (
             SELECT *, CASE lower(channel) WHEN 'apple' THEN '0' WHEN 'google' THEN '1' WHEN 'facebook' THEN '2'
               WHEN 'baidu' THEN '3' ELSE nullif(regexp_extract(url, '[&?]channel_id=([^&]*)', 1), '')
               END AS channel_id
             FROM bids) WHERE channel_id IS NOT NULL""",
    22: """SELECT auction, bidder, price, channel, split_part(url, '/', 4) AS dir1, split_part(url, '/', 5) AS dir2,
             split_part(url, '/', 6) AS dir3 FROM bids""",
}
