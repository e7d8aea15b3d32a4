-- published: note that what the outcome produced has been published. Only IDs, topics and keys are kept of it.
--
-- KEYS[1]  record
-- ARGV     1 fence and tag of the owner, and section K of what was published, which counts if the outcome held nothing
--          2 retention ms
-- Replies  1
--          0: another owner came, or the record is gone or not finished
--          'U' and the problem: the record cannot be read, and was not touched
--
-- Idempotent: the owner that finds the record done already is told so, and nothing is written.

local rec, problem = read(redis.pcall('GET', KEYS[1]))
if problem then
  return problem
end
if not held(rec, string.sub(ARGV[1], 1, 24)) or not string.find(rec.state, '[PQDE]') then
  return lost()
end
if string.find(rec.state, '[DE]') then
  return 1
end
rec.state = rec.state == 'P' and 'D' or 'E'
rec.l, rec.L, rec.h, rec.C = nil, nil, nil, nil
if not rec.K then
  sections(rec, ARGV[1], 25)
end
local _, refused = write(rec, tonumber(ARGV[2]))
return refused or 1
