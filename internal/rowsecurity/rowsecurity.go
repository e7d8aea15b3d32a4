// Package rowsecurity finds tables whose row-level security may hide rows from the database user. Code that works on
// all rows of a table takes hidden ones for gone, without an error.
package rowsecurity

import "context"

// Advice is what to do about a table that has been found.
const Advice = "has row-level security, which may hide rows from the database user: connect as the table's owner or " +
	"a role with BYPASSRLS, give the role a policy USING (true) for all commands and drop restrictive ones, " +
	"or ALTER TABLE … DISABLE ROW LEVEL SECURITY"

// A policy for all rows and commands is as good as none, unless another one restricts it. Those for other roles say
// nothing.
const hiddenSQL = `
SELECT coalesce(min(t.name), '') FROM unnest($1::text[]) AS t (name)
WHERE row_security_active(t.name) AND NOT coalesce((
	SELECT bool_and(p.polpermissive) AND bool_or(p.polcmd = '*' AND pg_get_expr(p.polqual, p.polrelid) = 'true'
		AND coalesce(pg_get_expr(p.polwithcheck, p.polrelid), 'true') = 'true')
	FROM pg_policy p
	WHERE p.polrelid = t.name::regclass
		AND EXISTS (SELECT FROM unnest(p.polroles) AS r (role)
			WHERE r.role = 0 OR pg_has_role(r.role, 'USAGE'))), false)`

// A querier is a *pgx.Conn, seen without its package: internal packages belong to a module that has no driver.
type querier[R interface{ Scan(dest ...any) error }] interface {
	QueryRow(ctx context.Context, sql string, args ...any) R
}

// Hidden returns the first table that may hide rows from the user, or "". Names are as statements have them.
func Hidden[R interface{ Scan(dest ...any) error }](
	ctx context.Context, conn querier[R], tables ...string,
) (table string, err error) {
	err = conn.QueryRow(ctx, hiddenSQL, tables).Scan(&table)
	return table, err
}
