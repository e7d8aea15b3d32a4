-- rights: tell which command of the other scripts this user must not call in them, or the server does not have.
--
-- KEYS[1]  a name that no record has
-- Replies  '' or the command and the refusal
--
-- What the server refuses to everybody for a time, as at maxmemory, has a code of its own, such as OOM, and is none.
-- Idempotent: what it writes lives for a millisecond.

local calls = {{'GET'}, {'PSETEX', '1', ''}, {'PEXPIRE', '1'}, {'PTTL'}, {'TYPE'}}
for _, call in ipairs(calls) do
  local reply = redis.pcall(call[1], KEYS[1], unpack(call, 2))
  if type(reply) == 'table' and reply.err then
    local err = refusal(reply).err
    local code = string.match(err, '^(%u+) ') or 'ERR'
    if code == 'ERR' or code == 'NOPERM' then
      return call[1] .. ' ' .. err
    end
  end
end
return ''
