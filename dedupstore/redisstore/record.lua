-- What the scripts share. A record is one string: a head of 27 bytes, then sections.
--
--   1      '1', the version of this layout
--   2      state: R running, S running and started, T to be retried, P publishing, Q publishing by an owner that did not
--          decide the outcome, D done, E done by such an owner
--   3      kind of the outcome: s succeeded, f failed, x failed because attempts were spent, u unknown, - none yet
--   4-19   fence of the last owner, 16 digits
--   20-27  tag of the last owner; in P, D and T it is one that has settled a run
--
-- A section is a letter and its value. Of a fixed size, and left out where the default holds:
--
--   a 10  runs so far that count; default 1         n 10  runs that gave their attempt back; default 0
--   b 16  when the first claim came; default: fence  e 16  fence under which the outcome was decided; default: fence
--   f 20  fingerprint: tag of its scheme (4), digest  t 25  traceparent of the last run, binary
--   d 16  in T: when it may run again                 h  8  check of K and C, while both are to be published
--   k  8  how long the last owner's run took, ms; 99999999 (27 hours) stands for more; left out if it is not known
--   X  0  the result is only its beginning            o  0  an operator decided the outcome
--   l 16  when the lease ends                         L 16  the same, in µs after the fence; one of them, always last
--
-- Of any size, after eight hexadecimal digits that tell it, but w after two:
--
--   w  holder: host and process of the last owner     H  the attempts before the last one, oldest first: each has a
--                                                        length of eight digits, and sections b (its fence), k, w and M
--   T  a traceparent that is not of the usual form    S  tags of earlier owners that settled a run, 8 bytes each
--   r  how often it was run again on request, in decimal digits; default 0
--   c  how many runs before the last one, in a row, crashed, in decimal digits; default 0; means nothing in P, Q, D and E
--   M  reason of the outcome or of the last release   B  result
--   K  JSON: IDs, topics and keys of what was produced   C  JSON: headers and payloads, while they are to be published
--
-- A letter that is not known is a section of any size, written by a later version: it is kept.
--
-- Times are µs since 1970 by the server's clock, written with %016.0f: Lua would write 1.7e+15. The programs that write
-- this layout are these scripts and record.go.

local FIXED = {a = 10, n = 10, b = 16, e = 16, f = 20, t = 25, d = 16, h = 8, k = 8, X = 0, o = 0, l = 16, L = 16}
local ORDER = 'anrcbeftTwSdhkMXoBKCH'
local NUMBERS, COUNTS = 'anbedklL', 'an'
local REMEMBERED = 4

local function unreadable(problem)
  return 'U' .. problem
end

-- digits writes a time, count a number.
local function digits(n)
  return string.format('%016.0f', n)
end

local function count(n)
  return string.format('%010.0f', n)
end

-- lengthOf is how many digits tell the size of a section that may have any.
local function lengthOf(tag)
  return tag == 'w' and 2 or 8
end

-- sections reads what begins at a position into a record. It returns the reason if it cannot.
local function sections(rec, s, at)
  while at <= #s do
    local tag = string.sub(s, at, at)
    local size = FIXED[tag]
    at = at + 1
    if not size and string.find(tag, '%a') then
      size = tonumber(string.match(s, '^' .. string.rep('%x', lengthOf(tag)), at) or '', 16)
      at = at + lengthOf(tag)
      if not string.find(ORDER, tag, 1, true) then
        rec.unknown = (rec.unknown or '') .. tag
      end
    end
    if not size or rec[tag] or at + size - 1 > #s then
      return 'has a section "' .. tag .. '" that cannot be read'
    end
    local value = string.sub(s, at, at + size - 1)
    if string.find(NUMBERS, tag, 1, true) and not (string.find(value, '^%d+$')
      and tonumber(value) < (string.find(COUNTS, tag, 1, true) and 2147483647 or 9007199254740991)) then
      return 'has "' .. value .. '" in section "' .. tag .. '"'
    end
    rec[tag] = value
    at = at + size
  end
end

-- pack writes the sections of a record, the end of the lease last.
local function pack(rec)
  local parts = {}
  for tag in string.gmatch(ORDER .. (rec.unknown or '') .. 'lL', '.') do
    local value = rec[tag]
    if value then
      parts[#parts + 1] = tag
      if not FIXED[tag] then
        parts[#parts + 1] = string.format('%0' .. lengthOf(tag) .. 'x', #value)
      end
      parts[#parts + 1] = value
    end
  end
  return table.concat(parts)
end

-- read makes a record of what GET replied. It returns nil for a key that does not exist, and a second value, the reply
-- to give, for one that it cannot read.
local function read(s)
  if not s then
    return nil
  end
  if type(s) == 'table' then
    local kind = redis.call('TYPE', KEYS[1]).ok
    return nil, kind == 'string' and s or unreadable('is a Redis ' .. kind .. ', not a string')
  end
  if string.sub(s, 1, 1) ~= '1' then
    return nil, unreadable('has version "' .. string.sub(s, 1, 1) .. '", this program reads version "1"')
  end
  local rec = {raw = s, state = string.sub(s, 2, 2), kind = string.sub(s, 3, 3), fence = string.sub(s, 4, 19),
    owner = string.sub(s, 20, 27)}
  local known = string.find(s, '^1[RST]%-') or string.find(s, '^1[PQDE][sfxu]')
  local fence = string.find(rec.fence, '^%d+$') and tonumber(rec.fence) or 0
  if not known or #rec.owner < 8 or fence < 1 or fence >= 9007199254740991 then
    return nil, unreadable('begins with "' .. string.sub(s, 1, 19) .. '"')
  end
  local problem = sections(rec, s, 28)
  if problem then
    return nil, unreadable(problem)
  end
  rec.attempts = tonumber(rec.a or 1)
  rec.first = tonumber(rec.b or rec.fence)
  rec.due = tonumber(rec.d or 0)
  rec.ends = rec.L and tonumber(rec.fence) + tonumber(rec.L) or tonumber(rec.l or 0)
  return rec
end

-- refusal is the error reply of a server that refuses to write, such as a replica, with its code in front, by which
-- clients know what to do: Redis 6.2 puts the place in the script before it.
local function refusal(reply)
  return {err = (string.gsub(reply.err, '^@[^:]*: %d+: %-?', ''))}
end

-- write stores the record for so many ms. It returns what it wrote, or nil and the refusal. At maxmemory Redis refuses
-- PSETEX, but not PEXPIRE, and after the first write of a script the others are allowed: known records go on.
local function write(rec, ms)
  local s = '1' .. rec.state .. rec.kind .. rec.fence .. rec.owner .. pack(rec)
  ms = string.format('%.0f', ms)
  local reply = redis.pcall('PSETEX', KEYS[1], ms, s)
  if reply.err then
    local kept = redis.pcall('PEXPIRE', KEYS[1], ms)
    if type(kept) == 'table' then
      return nil, refusal(kept)
    end
    reply = redis.pcall('PSETEX', KEYS[1], ms, s)
    if reply.err then
      return nil, refusal(reply)
    end
  end
  return s
end

-- held tells whether fence and owner, as one string, are those of the record.
local function held(rec, fenced)
  return rec and rec.fence .. rec.owner == fenced
end

-- rewrite leaves a key as it is, and returns the refusal if that is not taken: a former master, to which a client still
-- has connections, may lack what it has not replicated yet.
local function rewrite()
  local left = redis.call('PTTL', KEYS[1])
  local reply = left ~= -1 and redis.pcall('PEXPIRE', KEYS[1], math.max(left, 1))
  return type(reply) == 'table' and refusal(reply)
end

-- lost is the reply to an owner that does not hold the record, given where writes are taken.
local function lost()
  return rewrite() or 0
end

-- settled tells whether the owner has settled a run of the record, as far as that is remembered.
local function settled(rec, owner)
  local owners = rec.S or ''
  if string.find(rec.state, '[PDT]') then
    owners = string.sub(owners, -8 * (REMEMBERED - 1)) .. rec.owner
  end
  for at = 1, #owners, 8 do
    if string.sub(owners, at, at + 7) == owner then
      return true
    end
  end
  return false
end

-- again counts one more run on request; runs that crashed, or gave their attempt back, count anew.
local function again(rec)
  rec.r, rec.n, rec.c = string.format('%.0f', (tonumber(rec.r) or 0) + 1), nil, nil
end

local function now_us()
  local t = redis.call('TIME')
  return t[1] * 1000000 + t[2]
end
