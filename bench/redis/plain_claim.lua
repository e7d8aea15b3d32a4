-- claim: the first claim of a key, written as a packed record.
--
-- KEYS[1]  record
-- ARGV     1 owner and everything else that the caller knows, 2 ms of lease and retention together
-- Replies  16 digits: granted, and this is the fence
--          0: there is a record already

local time = redis.call('TIME')
local now = string.format('%010d%06d', time[1], time[2])
if redis.call('SET', KEYS[1], '1R-' .. now .. ARGV[1], 'NX', 'PX', ARGV[2]) then
  return now
end
return 0
