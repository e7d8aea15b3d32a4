-- published: note that what the outcome produced has been published. Only IDs and topics are kept of it.
--
-- KEYS[1]  record
-- ARGV     1 owner, 2 fence, 3 retention ms, 4 what was published of an outcome that held nothing, or ''
-- Replies  {'ok'}
--          {'lost'}: another owner came, or the record is gone or not finished
--          {'unreadable', problem}: the record was not touched
--
-- Idempotent: the owner that finds the record done already is told ok, and nothing is written.

local owner, fence, retention = ARGV[1], ARGV[2], tonumber(ARGV[3])

local rec, problem = load()
if problem then
  return problem
end
if not held(rec, owner, fence) or rec.state ~= 'publishing' and rec.state ~= 'done' then
  return {'lost'}
end
if rec.state == 'done' then
  return {'ok'}
end
local refused = keep(retention)
if refused then
  return refused
end
redis.call('HSET', key, 'state', 'done')
if ARGV[4] ~= '' then
  redis.call('HSETNX', key, 'produced', ARGV[4])
end
redis.call('HDEL', key, 'lease', 'content')
return {'ok'}
