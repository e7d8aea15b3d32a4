-- What an ordered outbox has beside: places, and more indexes of pending rows that have one.

-- With CACHE above 1, connections would allocate places ahead, and there would be no order.
CREATE SEQUENCE IF NOT EXISTS {places} OWNED BY {table}.place CACHE 1;

CREATE INDEX IF NOT EXISTS {keys} ON {table} (key, place)
	WHERE published_at IS NULL AND place IS NOT NULL;

-- Rows that may have to wait, and with them the later ones of their keys.
CREATE INDEX IF NOT EXISTS {delayed} ON {table} (due_at)
	WHERE published_at IS NULL AND dead_at IS NULL AND unknowns IS NULL AND place IS NOT NULL AND due_at IS NOT NULL;
