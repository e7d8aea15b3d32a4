-- finish: note that the run succeeded.
--
-- KEYS[1]  record
-- ARGV     1 fence and owner, 2 ms of retention, 3 what else the outcome says
-- Replies  1
--          0: somebody else holds the record, or nobody

local record = redis.call('GET', KEYS[1])
if not record or string.sub(record, 4, 27) ~= ARGV[1] then
  return 0
end
redis.call('SET', KEYS[1], '1Ds' .. string.sub(record, 4, -15) .. ARGV[3], 'PX', ARGV[2])
return 1
