-- SPDX-License-Identifier: Apache-2.0
-- Nexmark's queries as Flink's SQL says them, over tables bids, auctions and persons, as peers of queries.py.
-- Query 6 is missing: Flink's SQL has no OVER for rows that change. `arrived` has bids with processing time,
-- `side` has a value for each of ten thousand keys.

-- query 0
SELECT auction, bidder, price, ts FROM bids

-- query 1
SELECT auction, bidder, price * 0.908 AS price, ts FROM bids

-- query 2
SELECT auction, price FROM bids WHERE MOD(auction, 123) = 0

-- query 3
SELECT P.name, P.city, P.state, A.id FROM auctions A JOIN persons P ON A.seller = P.id WHERE A.category = 10
AND P.state IN ('OR', 'ID', 'CA')

-- query 4
SELECT category, AVG(final) AS mean FROM (SELECT MAX(B.price) AS final, A.category FROM auctions A, bids B
WHERE A.id = B.auction AND B.ts BETWEEN A.ts AND A.expires GROUP BY A.id, A.category) GROUP BY category

-- query 5
SELECT C.auction, C.num, C.wstart FROM (SELECT auction, COUNT(*) AS num, window_start AS wstart, window_end AS
wend FROM TABLE(HOP(TABLE bids, DESCRIPTOR(ts), INTERVAL '2' SECOND, INTERVAL '10' SECOND)) GROUP BY auction,
window_start, window_end) C JOIN (SELECT MAX(num) AS most, wstart, wend FROM (SELECT auction, COUNT(*) AS num,
window_start AS wstart, window_end AS wend FROM TABLE(HOP(TABLE bids, DESCRIPTOR(ts), INTERVAL '2' SECOND,
INTERVAL '10' SECOND)) GROUP BY auction, window_start, window_end) GROUP BY wstart, wend) M ON C.wstart =
M.wstart AND C.wend = M.wend AND C.num >= M.most

-- query 7
SELECT B.auction, B.price, B.bidder, B.ts FROM bids B JOIN (SELECT MAX(price) AS most, window_end AS wend FROM
TABLE(TUMBLE(TABLE bids, DESCRIPTOR(ts), INTERVAL '10' SECOND)) GROUP BY window_start, window_end) M ON
B.price = M.most AND B.ts BETWEEN M.wend - INTERVAL '10' SECOND AND M.wend

-- query 8
SELECT P.id, P.name, P.wstart FROM (SELECT id, name, window_start AS wstart, window_end AS wend FROM
TABLE(TUMBLE(TABLE persons, DESCRIPTOR(ts), INTERVAL '10' SECOND)) GROUP BY id, name, window_start,
window_end) P JOIN (SELECT seller, window_start AS wstart, window_end AS wend FROM TABLE(TUMBLE(TABLE
auctions, DESCRIPTOR(ts), INTERVAL '10' SECOND)) GROUP BY seller, window_start, window_end) A ON P.id =
A.seller AND P.wstart = A.wstart AND P.wend = A.wend

-- query 9
SELECT id, seller, bidder, price, bid_ts FROM (SELECT A.id, A.seller, B.bidder, B.price, B.ts AS bid_ts,
ROW_NUMBER() OVER (PARTITION BY A.id ORDER BY B.price DESC, B.ts ASC) AS place FROM auctions A, bids B WHERE
A.id = B.auction AND B.ts BETWEEN A.ts AND A.expires) WHERE place <= 1

-- query 10
SELECT auction, bidder, price, DATE_FORMAT(ts, 'yyyy-MM-dd') AS d, DATE_FORMAT(ts, 'HH:mm') AS m FROM bids

-- query 11
SELECT bidder, COUNT(*) AS n, window_start AS wstart FROM TABLE(SESSION(TABLE bids PARTITION BY bidder,
DESCRIPTOR(ts), INTERVAL '10' SECOND)) GROUP BY bidder, window_start, window_end

-- query 12
SELECT bidder, COUNT(*) AS n, window_start AS wstart FROM TABLE(TUMBLE(TABLE arrived, DESCRIPTOR(arrival),
INTERVAL '10' SECOND)) GROUP BY bidder, window_start, window_end

-- query 13
SELECT B.auction, B.price, S.v FROM bids B JOIN side S ON MOD(B.auction, 10000) = S.k

-- query 14
SELECT auction, bidder, price * 0.908 AS price, CASE WHEN HOUR(ts) BETWEEN 8 AND 18 THEN 'dayTime' WHEN
HOUR(ts) <= 6 OR HOUR(ts) >= 20 THEN 'nightTime' ELSE 'otherTime' END AS kind, CHAR_LENGTH(extra) -
CHAR_LENGTH(REPLACE(extra, 'c', '')) AS letters FROM bids WHERE price * 0.908 > 1000000 AND price * 0.908 <
50000000

-- query 15
SELECT DATE_FORMAT(ts, 'yyyy-MM-dd') AS d, COUNT(*) AS total, COUNT(*) FILTER (WHERE price < 10000) AS rank1,
COUNT(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2, COUNT(*) FILTER (WHERE price >= 1000000)
AS rank3, COUNT(DISTINCT bidder), COUNT(DISTINCT bidder) FILTER (WHERE price < 10000), COUNT(DISTINCT bidder)
FILTER (WHERE price >= 10000 AND price < 1000000), COUNT(DISTINCT bidder) FILTER (WHERE price >= 1000000),
COUNT(DISTINCT auction), COUNT(DISTINCT auction) FILTER (WHERE price < 10000), COUNT(DISTINCT auction) FILTER
(WHERE price >= 10000 AND price < 1000000), COUNT(DISTINCT auction) FILTER (WHERE price >= 1000000) FROM bids
GROUP BY DATE_FORMAT(ts, 'yyyy-MM-dd')

-- query 16
SELECT channel, DATE_FORMAT(ts, 'yyyy-MM-dd') AS d, COUNT(*) AS total, COUNT(*) FILTER (WHERE price < 10000)
AS rank1, COUNT(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2, COUNT(*) FILTER (WHERE price >=
1000000) AS rank3, COUNT(DISTINCT bidder), COUNT(DISTINCT bidder) FILTER (WHERE price < 10000), COUNT(DISTINCT
bidder) FILTER (WHERE price >= 10000 AND price < 1000000), COUNT(DISTINCT bidder) FILTER (WHERE price >=
1000000), COUNT(DISTINCT auction), COUNT(DISTINCT auction) FILTER (WHERE price < 10000), COUNT(DISTINCT
auction) FILTER (WHERE price >= 10000 AND price < 1000000), COUNT(DISTINCT auction) FILTER (WHERE price >=
1000000) FROM bids GROUP BY channel, DATE_FORMAT(ts, 'yyyy-MM-dd')

-- query 17
SELECT auction, DATE_FORMAT(ts, 'yyyy-MM-dd') AS d, COUNT(*) AS total, COUNT(*) FILTER (WHERE price < 10000)
AS rank1, COUNT(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2, COUNT(*) FILTER (WHERE price >=
1000000) AS rank3, MIN(price) AS least, MAX(price) AS most, AVG(price) AS mean, SUM(price) AS s FROM bids
GROUP BY auction, DATE_FORMAT(ts, 'yyyy-MM-dd')

-- query 18
SELECT auction, bidder, price, ts FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY bidder, auction ORDER BY ts
DESC) AS place FROM bids) WHERE place <= 1

-- query 19
SELECT auction, price, place FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY auction ORDER BY price DESC) AS
place FROM bids) WHERE place <= 10

-- query 20
SELECT B.auction, B.bidder, B.price, A.item, A.seller FROM bids B JOIN auctions A ON B.auction = A.id WHERE
A.category = 10

-- query 21
SELECT auction, bidder, price, channel, CASE LOWER(channel) WHEN 'apple' THEN '0' WHEN 'google' THEN '1' WHEN
'facebook' THEN '2' WHEN 'baidu' THEN '3' ELSE REGEXP_EXTRACT(url, '(&|^)channel_id=([^&]*)', 2) END AS c FROM
bids WHERE REGEXP_EXTRACT(url, '(&|^)channel_id=([^&]*)', 2) IS NOT NULL OR LOWER(channel) IN ('apple',
'google', 'facebook', 'baidu')

-- query 22
SELECT auction, bidder, price, channel, SPLIT_INDEX(url, '/', 3) AS dir1, SPLIT_INDEX(url, '/', 4) AS dir2,
SPLIT_INDEX(url, '/', 5) AS dir3 FROM bids
