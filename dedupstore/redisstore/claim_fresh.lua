-- claim: ask for the exclusive right to process a key. This is its first part: nothing is known of the key.
--
-- KEYS[1]  record
-- ARGV     1 29 bytes: most attempts (10 digits), after how many crashes in a row it is not to run (1 digit), '1' to park a started run whose lease expired, fence of the outcome that
--              is to run again or 0 (16 digits), '1' to write even if nothing changes, so that WAIT waits for what was
--              written before; then the tag of the owner and the request's sections f, t or T, and w, as they are, and L
--          2 ms of lease and retention together
-- Replies  16 digits: a first run was granted, and this is its fence
--          one letter, r to run, p to publish, b busy, d done, m mismatch, s suspect; 16 digits, the time; 8 hexadecimal digits,
--            length of what follows first: the record before the claim; then, for r and p, the record as it is now, or
--            nothing if it has not changed
--          'F': no memory for a new key
--          'U' and the problem: the record cannot be read, and was not touched
--
-- Idempotent: an owner that holds the record is told so again before leases and attempts are looked at, and nothing
-- changes. An owner that has settled the record is told busy: this is a late copy that nobody waits for.

local time = redis.call('TIME')
local now = string.format('%010d%06d', time[1], time[2])
local set = redis.pcall('SET', KEYS[1], '1R-' .. now .. string.sub(ARGV[1], 30), 'NX', 'PX', ARGV[2])
if set and set.ok then
  return now
end
