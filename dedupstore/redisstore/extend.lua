-- extend: renew the lease, and mark a run as started.
--
-- KEYS[1]  record
-- ARGV     1 owner, 2 fence, 3 lease ms, 4 retention ms
-- Replies  {'ok'}
--          {'lost'}: another owner came, or the record is gone or settled
--          {'unreadable', problem}: the record was not touched
--
-- Idempotent: a repeated one renews the lease once more, for the same owner.

local owner, fence, lease, retention = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])

local rec, problem = load()
if problem then
  return problem
end
if not held(rec, owner, fence) or rec.state ~= 'running' and rec.state ~= 'publishing' then
  return {'lost'}
end
local refused = keep(lease + retention)
if refused then
  return refused
end
redis.call('HSET', key, 'lease', int(now + lease * 1000))
if rec.state == 'running' then
  redis.call('HSET', key, 'started', '1')
end
return {'ok'}
