-- The table of dedup records, one a key. All times are microseconds since 1970, UTC; 0: none. A text that may hold any
-- UTF-8 is VARBINARY, so that no character set changes it.
CREATE TABLE IF NOT EXISTS `{table}` (
	id             BINARY(16)      NOT NULL PRIMARY KEY, -- of SHA-256 of record_key, which is too long for an index
	record_key     VARCHAR(2700)   CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
	state          VARCHAR(10)     CHARACTER SET ascii COLLATE ascii_bin NOT NULL, -- running, retryable, publishing, done
	owner          VARCHAR(64)     CHARACTER SET ascii COLLATE ascii_bin NOT NULL, -- '' when there is none
	fence          BIGINT UNSIGNED NOT NULL,
	attempts       INT             NOT NULL,
	returned       INT             NOT NULL DEFAULT 0, -- runs that gave their attempt back
	reruns         INT             NOT NULL DEFAULT 0, -- how often it was run again on request
	started        TINYINT         NOT NULL DEFAULT 0, -- 1: the handler has been called, or is about to be
	lease_until    BIGINT          NOT NULL,
	due_at         BIGINT          NOT NULL DEFAULT 0,
	expires_at     BIGINT          NOT NULL,           -- from then on the record counts for nothing
	scheme         VARCHAR(64)     CHARACTER SET ascii COLLATE ascii_bin NOT NULL, -- of the fingerprint
	fingerprint    VARCHAR(128)    CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
	settled        VARCHAR(300)    CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '', -- the last owners that did
	trace          VARBINARY(64)   NOT NULL,
	decided        BIGINT UNSIGNED NOT NULL DEFAULT 0, -- the fence under which the outcome was decided
	kind           VARCHAR(10)     CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '', -- of the outcome
	exhausted      TINYINT         NOT NULL DEFAULT 0,
	truncated      TINYINT         NOT NULL DEFAULT 0,
	reason         VARBINARY(1024) NOT NULL DEFAULT '',
	result         LONGBLOB,
	stubs          LONGBLOB,       -- IDs, topics and keys of what the outcome produced
	contents       LONGBLOB,       -- headers and payloads of it, until it is published
	first_at       BIGINT          NOT NULL,           -- when the first claim came
	claimed_at     BIGINT          NOT NULL,           -- when the last owner got the key
	ended_at       BIGINT          NOT NULL DEFAULT 0, -- when its run ended
	holder         VARBINARY(22)   NOT NULL,           -- its host and process
	history        BLOB,           -- JSON: the attempts before the last one
	duplicates     BIGINT          NOT NULL DEFAULT 0, -- that came for the outcome
	last_duplicate BIGINT          NOT NULL DEFAULT 0, -- by the clock of the process that noted it
	crashes        INT             NOT NULL DEFAULT 0, -- runs before the last one, in a row, whose leases expired
	KEY `{table}_expires` (expires_at)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- When scopes were used. Claims do not need it.
CREATE TABLE IF NOT EXISTS `{table}_scopes` (
	scope    VARCHAR(1160) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY, -- tenant:group:handler
	first_at BIGINT        NOT NULL,                   -- by the clocks of those who used it
	last_at  BIGINT        NOT NULL
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

CREATE TABLE IF NOT EXISTS `{table}_version` (
	one     TINYINT NOT NULL PRIMARY KEY,
	version INT     NOT NULL
) ENGINE=InnoDB;

INSERT INTO `{table}_version` (one, version) VALUES (1, {version})
ON DUPLICATE KEY UPDATE version = GREATEST(version, VALUES(version));
