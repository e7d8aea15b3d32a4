-- release: give the key back after a run that may be tried again.
--
-- KEYS[1]  record
-- ARGV     1 fence and tag of the owner, 2 delay ms, 3 retention ms, 4 '1' if the run does not count, '2' if there was none,
--            5 sections k and M, or ''
-- Replies  1
--          0: another owner came, or the record is gone or finished
--          'U' and the problem: the record cannot be read, and was not touched
--
-- Idempotent: an owner that released before, while nobody has claimed since, is told so, and nothing is written.

local rec, problem = read(redis.pcall('GET', KEYS[1]))
if problem then
  return problem
end
if rec and rec.state == 'T' and settled(rec, string.sub(ARGV[1], 17)) then
  return 1
end
if not held(rec, ARGV[1]) or not string.find(rec.state, '[RS]') then
  return lost()
end
if ARGV[4] ~= '0' then
  if rec.attempts < 1 then
    return unreadable('has no attempt to give back')
  end
  rec.a = count(rec.attempts - 1)
  if ARGV[4] == '1' then
    rec.n = count(tonumber(rec.n or 0) + 1)
  end
end
rec.state, rec.l, rec.L = 'T', nil, nil
rec.d = digits(now_us() + ARGV[2] * 1000)
rec.M, rec.k = nil, nil
sections(rec, ARGV[5], 1)
local _, refused = write(rec, ARGV[2] + ARGV[3])
return refused or 1
