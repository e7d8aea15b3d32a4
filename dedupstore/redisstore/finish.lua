-- finish: store the outcome of a run.
--
-- KEYS[1]  record
-- ARGV     1 owner, 2 fence, 3 lease ms of the publish step, or '0' if nothing is to be published, 4 retention ms,
--          then names and values of the outcome's fields that are not empty
-- Replies  {'ok'}
--          {'lost'}: another owner came, or the record is gone, released, or finished by another
--          {'unreadable', problem}: the record was not touched
--
-- Idempotent: the owner that finds its run finished already is told ok, and nothing is written.

local owner, fence, lease, retention = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])

local rec, problem = load('settled')
if problem then
  return problem
end
if not held(rec, owner, fence) or rec.state == 'retryable' then
  return {'lost'}
end
if rec.state ~= 'running' then -- an owner that only got the outcome to publish has not stored it
  return has_settled(rec, owner) and {'ok'} or {'lost'}
end
local refused = keep(lease + retention)
if refused then
  return refused
end
redis.call('HSET', key, 'decided', fence, 'settled', remember(rec.settled, owner), unpack(ARGV, 5))
if lease > 0 then
  redis.call('HSET', key, 'state', 'publishing', 'lease', int(now + lease * 1000))
else
  redis.call('HSET', key, 'state', 'done')
  redis.call('HDEL', key, 'lease')
end
return {'ok'}
