-- change: change a record that somebody has looked at.
--
-- KEYS[1]  record
-- ARGV     1 the record as it was seen
--          2 'F' to forget it; 'R' to let it run again; or 'C', the kind of its outcome, and the sections of that
-- Replies  1
--          0: the record is not what was seen any more
--          'U' and the problem: the record cannot be read, and was not touched
--
-- Not idempotent: a repeated one is told 0.

local rec, problem = read(redis.pcall('GET', KEYS[1]))
if problem then
  return problem
end
if not rec or rec.raw ~= ARGV[1] then
  return lost()
end
local what = string.sub(ARGV[2], 1, 1)
if what == 'F' then
  local gone = redis.pcall('DEL', KEYS[1])
  return type(gone) == 'table' and refusal(gone) or 1
end
rec.M, rec.X, rec.B, rec.o = what == 'R' and rec.M or nil, nil, nil, what == 'C' and '' or nil
if what == 'R' then
  again(rec)
  rec.state, rec.kind, rec.a, rec.d, rec.e, rec.K = 'T', '-', count(0), digits(now_us()), nil, nil
else
  rec.kind = string.sub(ARGV[2], 2, 2)
  sections(rec, ARGV[2], 3)
end
local left = redis.call('PTTL', KEYS[1])
local _, refused = write(rec, left == -1 and 1e12 or math.max(left, 1)) -- 1e12: it had no end, and gets 31 years
return refused or 1
