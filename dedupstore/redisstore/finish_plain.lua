-- finish: store the outcome of a run. This is its first part: nothing is to be published, and the run was not renewed.
--
-- KEYS[1]  record
-- ARGV     1 head of the record while it runs
--          2 head of the record when it has finished
--          3 sections of the outcome
--          4 retention ms
--          5 lease ms of the publish step; absent if nothing is to be published
-- Replies  1
--          0: another owner came, or the record is gone, released, or finished by another
--          'U' and the problem: the record cannot be read, and was not touched
--
-- Idempotent: the owner that finds its run finished already is told so, and nothing is written.

local raw = redis.pcall('GET', KEYS[1])
if not ARGV[5] and type(raw) == 'string' and string.sub(raw, 1, 27) == ARGV[1] and string.sub(raw, -14, -14) == 'L' then
  local set = redis.pcall('SET', KEYS[1], ARGV[2] .. string.sub(raw, 28, -15) .. ARGV[3], 'PX', ARGV[4])
  if set.ok then
    return 1
  end
end
