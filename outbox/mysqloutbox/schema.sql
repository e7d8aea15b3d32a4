-- The tables of an outbox. Every statement may be repeated. All times are microseconds since 1970, UTC. Texts are
-- VARBINARY, so that no character set or collation changes or confuses them. The name is the primary key, because a
-- repeated INSERT locks the row alone there; in any other unique key it would lock what lies between two names, and so
-- other messages. It begins with the time of the ID if that is a UUIDv7, so that rows of one time lie together.
CREATE TABLE IF NOT EXISTS `{table}` (
	name       BINARY(32)     NOT NULL PRIMARY KEY, -- of topic, id and copy: a message has one row
	number     BIGINT         NOT NULL AUTO_INCREMENT,
	state      TINYINT        NOT NULL DEFAULT 0, -- 0 pending, 1 leased or a suspect, 2 dead, 3 published
	at         BIGINT         NOT NULL,           -- when it is due, its lease ends, it died, or was published
	token      VARCHAR(64)    CHARACTER SET ascii COLLATE ascii_bin, -- who leases the row
	order_hash BINARY(16),                        -- of the key, while the row has a place in its order
	failures   INT            NOT NULL DEFAULT 0, -- attempts that were refused
	unknowns   INT            NOT NULL DEFAULT 0, -- attempts without an answer; a row that has one is a suspect
	replays    INT            NOT NULL DEFAULT 0, -- how often it was published once more
	written_at BIGINT         NOT NULL,
	not_before BIGINT         NOT NULL,           -- when it was due for the first time
	id         VARBINARY(512) NOT NULL,           -- message ID
	topic      VARBINARY(1024) NOT NULL,
	copy       VARBINARY(1024) NOT NULL,          -- purpose and generation of a deliberate copy
	message_key LONGBLOB      NOT NULL,
	header     LONGBLOB       NOT NULL,           -- JSON, without the one that repeats the ID; empty: no other
	payload    LONGBLOB       NOT NULL,
	last_error VARBINARY(4096) NOT NULL DEFAULT '',
	KEY `{table}_number` (number),
	KEY `{table}_next` (state, at, number),
	KEY `{table}_leased` (token){ordered}
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

CREATE TABLE IF NOT EXISTS `{table}_settings` (
	number  TINYINT NOT NULL PRIMARY KEY, -- 0: the settings; others: partitions of an ordered outbox
	version INT     NOT NULL,
	ordered TINYINT NOT NULL
) ENGINE=InnoDB;

-- Relays of an ordered outbox lock the settings, and writers of its keys their partitions, so that they take turns.
INSERT IGNORE INTO `{table}_settings` (number, version, ordered) VALUES {rows};
