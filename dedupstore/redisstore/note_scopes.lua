-- note_scopes: replace what is known of the scopes of a group, if it is still what was read.
--
-- KEYS[1]  the string of the group
-- ARGV     1 what was read; '': nothing, 2 what replaces it, 3 ms for which to remember that
-- Replies  1, or 0 if somebody else has written it
--
-- Idempotent: a repeated one finds its own value.

local found = redis.call('GET', KEYS[1]) or ''
if found == ARGV[2] then return 1 end
if found ~= ARGV[1] then return 0 end
redis.call('PSETEX', KEYS[1], ARGV[3], ARGV[2])
return 1
