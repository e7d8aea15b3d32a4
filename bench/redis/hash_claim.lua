-- claim: the first claim of a key, written as a hash.
--
-- KEYS[1]  record
-- ARGV     1 owner, 2 ms of lease, 3 ms of lease and retention together, 4 fingerprint, 5 trace
-- Replies  16 digits: granted, and this is the fence
--          0: there is a record already

local time = redis.call('TIME')
local now = string.format('%010d%06d', time[1], time[2])
local found = redis.call('HMGET', KEYS[1], 'state', 'owner', 'fence', 'lease', 'print')
if found[1] then
  return 0
end
redis.call('HSET', KEYS[1], 'v', '1', 'state', 'running', 'owner', ARGV[1], 'fence', now, 'attempts', '1',
  'lease', ARGV[2], 'first', now, 'print', ARGV[4], 'trace', ARGV[5])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return now
