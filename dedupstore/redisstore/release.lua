-- release: give the key back after a run that may be tried again.
--
-- KEYS[1]  record
-- ARGV     1 owner, 2 fence, 3 delay ms, 4 retention ms, 5 reason or '', 6 '1' if the run does not count
-- Replies  {'ok'}
--          {'lost'}: another owner came, or the record is gone or finished
--          {'unreadable', problem}: the record was not touched
--
-- Idempotent: an owner that released before, while nobody has claimed since, is told ok, and nothing is written.

local owner, fence, delay, retention = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local reason, uncounted = ARGV[5], ARGV[6] == '1'

local rec, problem = load('attempts', 'returned', 'settled')
if problem then
  return problem
end
if rec and rec.state == 'retryable' and has_settled(rec, owner) then
  return {'ok'}
end
if not held(rec, owner, fence) or rec.state ~= 'running' then
  return {'lost'}
end
local attempts = whole(rec.attempts) and tonumber(rec.attempts)
if not attempts or attempts < 1 then
  return unreadable('has attempts "' .. tostring(rec.attempts) .. '"')
end
if rec.returned and not whole(rec.returned) then
  return unreadable('has returned "' .. rec.returned .. '"')
end
local refused = keep(delay + retention)
if refused then
  return refused
end
if uncounted then
  attempts = attempts - 1
  redis.call('HINCRBY', key, 'returned', 1)
end
redis.call('HSET', key, 'state', 'retryable', 'due', int(now + delay * 1000), 'attempts', int(attempts),
  'settled', remember(rec.settled, owner))
redis.call('HDEL', key, 'owner', 'lease', 'started')
if reason ~= '' then
  redis.call('HSET', key, 'reason', reason)
end
return {'ok'}
