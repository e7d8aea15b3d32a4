-- What all scripts share: it stands in front of each of them. One hash a key:
--
--   v            1, the version of this layout
--   state        running | retryable | publishing | done
--   owner        token of the owner; absent: nobody
--   fence        of the last owner, µs
--   attempts     runs so far that count
--   returned     how often a run gave its attempt back
--   lease        when the lease ends; absent: no lease
--   due          retryable: when it may run again
--   first        when the first claim came
--   started      1: the run is marked as started
--   settled      the last owners that settled a run of this record, separated by spaces
--   fingerprint  scheme:sum of the content
--   trace        traceparent of the last run
--   decided      the fence under which the outcome was decided
--   kind         succeeded | failed | unknown
--   exhausted    1: failed because the attempts were spent
--   reason       why, of a failed or unknown outcome or of the last release
--   result       what the handler returned; truncated: 1 if this is only its beginning
--   produced     JSON: IDs, topics and keys of the messages that the run produced
--   content      JSON: their headers and payloads, until they are known to be published
--
-- Times are µs since 1970 by the server's clock. Numbers are written with %.0f: Lua would write 1.7e+15.

local key = KEYS[1]
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local REMEMBERED = 4

local function int(n)
  return string.format('%.0f', n)
end

local function unreadable(problem)
  return {'unreadable', problem}
end

-- whole tells whether a field is a number as the scripts write them, which Lua counts exactly, and one more as well.
local function whole(s)
  return s and #s <= 16 and string.find(s, '^%d+$') and tonumber(s) < 9007199254740991
end

-- load reads state, owner, fence and the fields that the script names. It returns nil for a key that does not exist,
-- and a second value, the reply to give, for one that it cannot read.
local function load(...)
  local names = {'v', 'state', 'owner', 'fence', ...}
  local values = redis.pcall('HMGET', key, unpack(names))
  if values.err then
    local kind = redis.call('TYPE', key).ok
    if kind ~= 'hash' and kind ~= 'none' then
      return nil, unreadable('is a Redis ' .. kind .. ', not a hash')
    end
    return nil, values
  end
  local rec = {}
  for i, name in ipairs(names) do
    rec[name] = values[i] or nil
  end
  if not rec.v then
    if redis.call('EXISTS', key) == 1 then
      return nil, unreadable('has no field "v"')
    end
    return nil
  end
  if rec.v ~= '1' then
    return nil, unreadable('has version "' .. rec.v .. '", this program reads version "1"')
  end
  if rec.state ~= 'running' and rec.state ~= 'retryable' and rec.state ~= 'publishing' and rec.state ~= 'done' then
    return nil, unreadable('has state "' .. tostring(rec.state) .. '"')
  end
  if not whole(rec.fence) then
    return nil, unreadable('has fence "' .. tostring(rec.fence) .. '"')
  end
  return rec
end

local function held(rec, owner, fence)
  return rec and rec.owner == owner and rec.fence == fence
end

-- refusal is the error reply of a server that refuses to write, such as a replica, with its code in front, by which
-- clients know what to do: Redis 6.2 puts the place in the script before it.
local function refusal(reply)
  return {err = (string.gsub(reply.err, '^@[^:]*: %d+: %-?', ''))}
end

-- keep sets the key's time to live, in ms. It comes first of all writes: PEXPIRE is allowed at maxmemory, and after it
-- the same script may write the rest. It returns the refusal, if any.
local function keep(ms)
  local reply = redis.pcall('PEXPIRE', key, int(ms))
  if type(reply) == 'table' then
    return refusal(reply)
  end
end

local function has_settled(rec, owner)
  return rec.settled and string.find(' ' .. rec.settled .. ' ', ' ' .. owner .. ' ', 1, true)
end

local function remember(settled, owner)
  local owners = {}
  for o in string.gmatch(settled or '', '%S+') do
    owners[#owners + 1] = o
  end
  owners[#owners + 1] = owner
  return table.concat(owners, ' ', math.max(1, #owners - REMEMBERED + 1))
end
