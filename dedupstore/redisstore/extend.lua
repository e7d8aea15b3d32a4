-- extend: renew the lease, and mark a run as started, if it has.
--
-- KEYS[1]  record
-- ARGV     1 fence and tag of the owner, then '1' if the handler has started or '0', 2 lease ms, 3 retention ms
-- Replies  1
--          0: another owner came, or the record is gone or settled
--          'U' and the problem: the record cannot be read, and was not touched
--
-- Idempotent: a repeated one renews the lease once more, for the same owner.

local rec, problem = read(redis.pcall('GET', KEYS[1]))
if problem then
  return problem
end
if not held(rec, string.sub(ARGV[1], 1, -2)) or not string.find(rec.state, '[RSPQ]') then
  return lost()
end
if rec.state == 'R' and string.sub(ARGV[1], -1) == '1' then
  rec.state = 'S'
end
rec.l, rec.L = digits(now_us() + ARGV[2] * 1000), nil
local _, refused = write(rec, ARGV[2] + ARGV[3])
return refused or 1
