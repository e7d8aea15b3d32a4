-- show: print a record, for operators.
--
--   redis-cli --eval show.lua oncemill:tenant:group:handler:ID
--
-- It only reads. Times are µs since 1970 by the server's clock.

local raw = redis.call('GET', KEYS[1])
if not raw then
  return {'there is no record of this name'}
end
if string.sub(raw, 1, 1) ~= '1' then
  return {'not a record of version 1'}
end

local STATES = {R = 'running', S = 'running, started', T = 'to be retried', P = 'publishing', Q = 'publishing, not by its run',
  D = 'done', E = 'done, published by another than its run'}
local KINDS = {s = 'succeeded', f = 'failed', x = 'failed, attempts exhausted', u = 'unknown'}
local NAMES = {a = 'attempts', n = 'given back', r = 'reruns', b = 'first claim', e = 'decided under fence', f = 'fingerprint',
  t = 'traceparent', w = 'holder', d = 'due', h = 'check', k = 'took ms', X = 'result truncated', l = 'lease ends', L = 'lease ends',
  T = 'traceparent', S = 'settled by', M = 'reason', B = 'result', K = 'produced', C = 'content'}
local FIXED = {a = 10, n = 10, b = 16, e = 16, f = 20, t = 25, d = 16, h = 8, k = 8, X = 0, l = 16, L = 16}

local function hex(s)
  return (string.gsub(s, '.', function(c) return string.format('%02x', string.byte(c)) end))
end

local fence = string.sub(raw, 4, 19)
local lines = {'state: ' .. (STATES[string.sub(raw, 2, 2)] or '?'), 'outcome: ' .. (KINDS[string.sub(raw, 3, 3)] or 'none'),
  'fence: ' .. fence, 'owner: ' .. hex(string.sub(raw, 20, 27))}

-- show adds a line for each section from a position of a text.
local function show(s, at, before)
  while at <= #s do
    local tag = string.sub(s, at, at)
    local size = FIXED[tag]
    at = at + 1
    if not size then
      local length = tag == 'w' and 2 or 8
      size = tonumber(string.sub(s, at, at + length - 1), 16) or #s -- of what cannot be read, the rest
      at = at + length
    end
    local value = string.sub(s, at, at + size - 1)
    at = at + size
    if string.find('ank', tag, 1, true) then
      value = string.format('%.0f', value)
    elseif tag == 'L' then
      value = string.format('%.0f', fence + value)
    elseif tag == 'f' or tag == 'S' then
      value = hex(value)
    elseif tag == 't' then
      local h = hex(value)
      value = '00-' .. string.sub(h, 1, 32) .. '-' .. string.sub(h, 33, 48) .. '-' .. string.sub(h, 49)
    end
    if tag == 'H' then
      local from = 1
      while from <= #value do
        local length = tonumber(string.sub(value, from, from + 7), 16) or #value
        show(string.sub(value, from + 8, from + 7 + length), 1, 'earlier attempt, ')
        from = from + 8 + length
      end
    else
      local name = before ~= '' and tag == 'b' and 'claimed' or NAMES[tag] or 'section ' .. tag
      lines[#lines + 1] = before .. name .. ': ' .. value
    end
  end
end
show(raw, 28, '')

local noted = redis.pcall('HMGET', KEYS[1] .. '?', 'count', 'last') -- a Cluster may refuse it
if noted[1] then
  lines[#lines + 1] = 'duplicates: ' .. noted[1] .. ', the last at ' .. noted[2] .. ' ms'
end
local left = redis.call('PTTL', KEYS[1])
lines[#lines + 1] = 'kept for: ' .. string.format('%.0f', left / 1000) .. ' s'
return lines
