-- claim: ask for the exclusive right to process a key.
--
-- KEYS[1]  record
-- ARGV     1 owner, 2 lease ms, 3 retention ms, 4 fingerprint or '', 5 most attempts, 6 '1' to park a started run whose
--          lease expired, 7 fence of the outcome that is to run again or '0', 8 traceparent or ''
-- Replies  {'acquired_run' | 'acquired_publish' | 'busy' | 'done' | 'mismatch', found state, fence of the claim,
--           attempts, fence of the answer, wait µs, age µs, trace before,
--           kind, exhausted, reason, result, truncated, produced, content, attempts given back}
--          {'unreadable', problem}: the record was not touched
--          {'full'}: no memory for a new key
--
-- Idempotent: an owner that holds the record is told so again before leases and attempts are looked at, and nothing is
-- written. An owner that has settled the record is told busy: this is a late copy that nobody waits for.
-- A known key is served at maxmemory: PEXPIRE comes first. A new key is not: HSET comes first.

-- MOST_RUNS is more than the counters of a record can hold.
local MOST_RUNS = 2147483647

local owner, lease, retention, fingerprint = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local most, park, rerun, trace = tonumber(ARGV[5]), ARGV[6] == '1', ARGV[7], ARGV[8]

local rec, problem = load('attempts', 'returned', 'lease', 'due', 'first', 'started', 'settled', 'fingerprint', 'trace', 'decided', 'kind')
if problem then
  return problem
end

local fresh = not rec
rec = rec or {state = 'absent', fence = '0', attempts = '0', first = int(now)}
for _, name in ipairs({'attempts', 'first', 'lease', 'due', 'returned', 'decided'}) do
  local value = rec[name]
  if not whole(value) and (value or name == 'attempts' or name == 'first') then
    return unreadable('has ' .. name .. ' "' .. tostring(value) .. '"')
  end
end
local attempts, first = tonumber(rec.attempts), tonumber(rec.first)
local ends, due = tonumber(rec.lease or 0), tonumber(rec.due or 0)
if attempts >= MOST_RUNS or tonumber(rec.returned or 0) >= MOST_RUNS then
  return unreadable('counts more runs than can be')
end
if (rec.state == 'publishing' or rec.state == 'done')
  and rec.kind ~= 'succeeded' and rec.kind ~= 'failed' and rec.kind ~= 'unknown' then
  return unreadable('has kind "' .. tostring(rec.kind or '') .. '"')
end

local found, before = rec.state, rec.fence

local function answer(status)
  local outcome = {}
  if status == 'done' or status == 'acquired_publish' then
    before = rec.decided or before
    outcome = redis.call('HMGET', key, 'kind', 'exhausted', 'reason', 'result', 'truncated', 'produced', 'content')
  end
  return {status, found, rec.fence, int(attempts), before, int(math.max(0, ends - now, due - now)),
    int(math.max(0, now - first)), rec.trace or '', outcome[1] or '', outcome[2] or '', outcome[3] or '',
    outcome[4] or '', outcome[5] or '', outcome[6] or '', outcome[7] or '', rec.returned or '0'}
end

-- own makes the caller the owner, with a fence above all before, and writes what else the step changes.
local function own(...)
  local fence = int(math.max(tonumber(rec.fence) + 1, now))
  if not fresh then
    local refused = keep(lease + retention)
    if refused then
      return refused
    end
  end
  local fields = {'v', '1', 'owner', owner, 'fence', fence, 'lease', int(now + lease * 1000), 'first', rec.first, ...}
  local reply = redis.pcall('HSET', key, unpack(fields))
  if type(reply) == 'table' then
    local refused = refusal(reply)
    return string.find(refused.err, '^OOM ') and {'full'} or refused
  end
  if fresh then
    local refused = keep(lease + retention)
    if refused then -- a key without a time to live would stay for ever
      local names = {}
      for i = 1, #fields, 2 do
        names[#names + 1] = fields[i]
      end
      redis.pcall('HDEL', key, unpack(names))
      return refused
    end
  else
    redis.call('HDEL', key, 'due')
  end
  rec.fence = fence
end

local function run()
  attempts = attempts + 1
  local more = {'state', 'running', 'attempts', int(attempts)}
  local function set(name, value)
    more[#more + 1] = name
    more[#more + 1] = value
  end
  if trace ~= '' then
    set('trace', trace)
  end
  if fingerprint ~= '' and (not rec.fingerprint
    or string.match(rec.fingerprint, '^[^:]*') ~= string.match(fingerprint, '^[^:]*')) then
    set('fingerprint', fingerprint)
  end
  local refused = own(unpack(more))
  if refused then
    return refused
  end
  if not fresh then
    redis.call('HDEL', key, 'started', 'decided', 'kind', 'exhausted', 'reason', 'result', 'truncated', 'produced', 'content')
    if trace == '' then
      redis.call('HDEL', key, 'trace')
    end
  end
  return answer('acquired_run')
end

-- finish ends what nobody owns. The claimer makes the dead letter: nothing is produced yet.
local function finish(kind, reason, exhausted)
  local refused = own('state', 'publishing', 'kind', kind, 'reason', reason)
  if refused then
    return refused
  end
  redis.call('HDEL', key, 'result', 'truncated', 'produced', 'content')
  redis.call('HSET', key, 'decided', rec.fence)
  rec.decided = rec.fence
  if exhausted then
    redis.call('HSET', key, 'exhausted', '1')
  end
  return answer('acquired_publish')
end

local function base64(s)
  return type(s) == 'string' and #s % 4 == 0 and string.find(s, '^[%w+/]*=?=?$')
end

local function text(s)
  return type(s) == 'string' or type(s) == 'table' and base64(s.base64)
end

-- message tells whether one element of produced or content is of the form that the client reads.
local function message(m)
  if type(m) ~= 'table' or m.id and type(m.id) ~= 'string' or m.topic and not text(m.topic)
    or m.key and not text(m.key) or m.payload and not base64(m.payload)
    or m.header and type(m.header) ~= 'table' then
    return false
  end
  for _, pair in ipairs(m.header or {}) do
    if type(pair) ~= 'table' or not text(pair[1]) or not text(pair[2]) then
      return false
    end
  end
  return true
end

-- messages counts the elements of a JSON array of messages; it returns nil for anything else.
local function messages(json)
  local ok, list = pcall(cjson.decode, json)
  if not ok or type(list) ~= 'table' or not string.find(json, '^%s*%[') then
    return nil
  end
  for _, m in ipairs(list) do
    if not message(m) then
      return nil
    end
  end
  return #list
end

-- outcome_problem says why the outcome that is to be published cannot be read, before the claimer becomes its owner.
local function outcome_problem()
  local values = redis.call('HMGET', key, 'exhausted', 'truncated', 'produced', 'content')
  for i, name in ipairs({'exhausted', 'truncated'}) do
    if values[i] and values[i] ~= '1' then
      return 'has ' .. name .. ' "' .. values[i] .. '"'
    end
  end
  local count = values[3] and messages(values[3])
  if values[3] and not (count and values[4] and count == messages(values[4])) then
    return 'has produced messages that cannot be read'
  end
end

local scheme = string.match(fingerprint, '^[^:]*:')
if scheme and rec.fingerprint and rec.fingerprint ~= fingerprint
  and string.sub(rec.fingerprint, 1, #scheme) == scheme then
  return answer('mismatch')
end
if rec.state == 'done' then
  if rerun ~= '0' and rerun == rec.decided and rec.kind ~= 'succeeded' then
    attempts = 0
    rec.returned = nil
    local reply = run()
    if reply[1] == 'acquired_run' then
      redis.call('HDEL', key, 'returned')
    end
    return reply
  end
  return answer('done')
end
if rec.owner == owner then
  if rec.state == 'running' then
    return answer('acquired_run')
  elseif rec.state == 'publishing' then
    return answer('acquired_publish')
  end
end
if has_settled(rec, owner) or now < ends or now < due then
  return answer('busy')
end
if rec.state == 'publishing' then
  local problem = outcome_problem()
  return problem and unreadable(problem) or own() or answer('acquired_publish')
end
if rec.state == 'running' and rec.started and park then
  return finish('unknown', 'the lease of a started run expired')
end
if attempts >= most then
  return finish('failed', int(attempts) .. ' of ' .. int(most) .. ' attempts spent', true)
end
return run()
