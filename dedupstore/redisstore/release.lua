-- release: give the key back after a run that may be tried again.
--
-- KEYS[1]  record
-- ARGV     1 fence and tag of the owner, '1' if the run does not count, '2' if there was none, or '0', and sections k and M
--          2 delay ms, 3 retention ms
-- Replies  1
--          0: another owner came, or the record is gone or finished
--          'U' and the problem: the record cannot be read, and was not touched
--
-- Idempotent: an owner that released before, while nobody has claimed since, is told so, and nothing is written.

local rec, problem = read(redis.pcall('GET', KEYS[1]))
if problem then
  return problem
end
if rec and rec.state == 'T' and settled(rec, string.sub(ARGV[1], 17, 24)) then
  return 1
end
if not held(rec, string.sub(ARGV[1], 1, 24)) or not string.find(rec.state, '[RS]') then
  return lost()
end
local uncounted = string.sub(ARGV[1], 25, 25)
if uncounted ~= '0' then
  if rec.attempts < 1 then
    return unreadable('has no attempt to give back')
  end
  rec.a = count(rec.attempts - 1)
  if uncounted == '1' then
    rec.n = count(tonumber(rec.n or 0) + 1)
  end
else
  rec.c = nil
end
rec.state, rec.l, rec.L = 'T', nil, nil
rec.d = digits(now_us() + ARGV[2] * 1000)
rec.M, rec.k = nil, nil
sections(rec, ARGV[1], 26)
local _, refused = write(rec, ARGV[2] + ARGV[3])
return refused or 1
