// Package mysqltest runs MariaDB for tests, from Debian's package or another one in PATH.
package mysqltest
