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
local NAMES = {a = 'attempts', n = 'given back', b = 'first claim', e = 'decided under fence', f = 'fingerprint', t = 'traceparent',
  d = 'due', h = 'check', X = 'result truncated', l = 'lease ends', L = 'lease ends', T = 'traceparent', S = 'settled by',
  M = 'reason', B = 'result', K = 'produced', C = 'content'}
local FIXED = {a = 10, n = 10, b = 16, e = 16, f = 20, t = 25, d = 16, h = 8, X = 0, l = 16, L = 16}

local function hex(s)
  return (string.gsub(s, '.', function(c) return string.format('%02x', string.byte(c)) end))
end

local fence = string.sub(raw, 4, 19)
local lines = {
  'state: ' .. (STATES[string.sub(raw, 2, 2)] or '?'),
  'outcome: ' .. (KINDS[string.sub(raw, 3, 3)] or 'none'),
  'fence: ' .. fence,
  'owner: ' .. hex(string.sub(raw, 20, 27)),
}
local at = 28
while at <= #raw do
  local tag = string.sub(raw, at, at)
  local size = FIXED[tag]
  at = at + 1
  if not size then
    size = tonumber(string.sub(raw, at, at + 7), 16)
    at = at + 8
  end
  if not size or not NAMES[tag] then
    lines[#lines + 1] = 'unreadable from byte ' .. (at - 1)
    break
  end
  local value = string.sub(raw, at, at + size - 1)
  if tag == 'a' or tag == 'n' then
    value = string.format('%.0f', value)
  elseif tag == 'L' then
    value = string.format('%.0f', fence + value)
  elseif tag == 'f' or tag == 'S' then
    value = hex(value)
  elseif tag == 't' then
    local h = hex(value)
    value = '00-' .. string.sub(h, 1, 32) .. '-' .. string.sub(h, 33, 48) .. '-' .. string.sub(h, 49)
  end
  lines[#lines + 1] = NAMES[tag] .. ': ' .. value
  at = at + size
end
local left = redis.call('PTTL', KEYS[1])
lines[#lines + 1] = 'kept for: ' .. string.format('%.0f', left / 1000) .. ' s'
return lines
