-- note: count duplicates of a record, beside it.
--
-- KEYS[1]  hash beside the record
-- ARGV     1 how many came, 2 when the last of them did, ms since 1970, 3 ms for which to remember that
-- Replies  1
--
-- Not idempotent: a repeated one counts twice. People read it, and nothing decides by it.

redis.call('HINCRBY', KEYS[1], 'count', ARGV[1])
redis.call('HSET', KEYS[1], 'last', ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
